"""SLOs in the request body: the nested ``slo`` object and OpenAI's ``service_tier``.

The body belongs to vLLM; of it only these are read, everything else is skipped without being built. Whatever body its
server accepts is read as the server reads it, or refused: no SLO is lost in silence.
"""

import functools
import json
import re
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from sloserve.core.errors import InvalidRequest
from sloserve.wire.headers import Field
from sloserve.wire.xargs import MAX_OUTPUT_TOKENS, stating_keys

NESTED = {
    "ttft_ms": "slo_ttft_ms",
    "tpot_ms": "slo_tpot_ms",
    "e2e_ms": "slo_e2e_ms",
    "tds": "slo_tds",
    "class": "slo_class",
    "output_tokens": "slo_output_tokens",
}
REPORT = "report"
LENGTH_HINT = "nvext.agent_hints.osl"
"""Where Dynamo's clients say how long a reply is expected to be: a hint, which states no SLO."""

_FORM = b"multipart/form-data"
_FORM_FIELD = re.compile(rb'name="?slo["\[;\s]')
"""Begins with a plain word, so that megabytes of audio are searched in milliseconds."""


class Body(msgspec.Struct):
    """What of a body is read here, as it stands there. Who needs more of it reads a subclass."""

    slo: Any = None
    service_tier: Any = None
    nvext: Any = None
    vllm_xargs: Any = None


Read = TypeVar("Read", bound=Body)


@dataclass(slots=True)
class BodyFields:
    """What the body of one request states.

    fields: by key of ``vllm_xargs``. tier: its ``service_tier``. xargs: those of its ``vllm_xargs`` that state an SLO,
    since vLLM passes none on for a beam search.
    """

    fields: dict[str, Field] = field(default_factory=dict)
    tier: str | None = None
    report: bool = False
    xargs: dict[str, Any] = field(default_factory=dict)


def read_body(body: bytes, content_type: bytes = b"application/json") -> BodyFields:
    """The SLO that a body states beside ``vllm_xargs``; no body, and JSON that is no object, state none.

    Raises: InvalidRequest for an ``slo`` that is no object, or has an unknown key, for a tier that is no string, and
    for a body that cannot be searched for an SLO. (Where the server cannot read it either, its answer comes first.)
    """
    if not body:
        return BodyFields()
    if content_type.strip().lower().startswith(_FORM):
        _refuse_form_field(body)
        return BodyFields()
    return fields_of(parse(body, Body))


def fields_of(read: Body) -> BodyFields:
    """The SLO in what was read of a body. Raises: as :func:`read_body`."""
    found = BodyFields()
    if read.service_tier is not None:
        if not isinstance(read.service_tier, str):
            raise InvalidRequest("service_tier", read.service_tier, "a string")
        found.tier = read.service_tier
    length = _expected_length(read.nvext)
    if length is not None:
        found.fields["slo_output_tokens"] = Field(LENGTH_HINT, length)
    if isinstance(read.vllm_xargs, dict):
        found.xargs = stating_keys(read.vllm_xargs)
    if read.slo is None:
        return found
    if not isinstance(read.slo, dict):
        raise InvalidRequest("slo", read.slo, f"an object with keys of {', '.join(NESTED)}, {REPORT}")
    for name, value in read.slo.items():
        if name == REPORT:
            if not isinstance(value, bool):
                raise InvalidRequest("slo.report", value, "true or false")
            found.report = value
        elif name not in NESTED:
            raise InvalidRequest(f"slo.{name}", value, f"a known key; known: {', '.join(NESTED)}, {REPORT}")
        elif value is not None:
            found.fields[NESTED[name]] = Field(f"slo.{name}", value)
    return found


def _expected_length(nvext: Any) -> int | None:
    """The reply's length in tokens as Dynamo's agent hints have it; a hint that cannot be one is passed over."""
    hints = nvext.get("agent_hints") if isinstance(nvext, dict) else None
    length = hints.get("osl") if isinstance(hints, dict) else None
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= MAX_OUTPUT_TOKENS:
        return None
    return length


@functools.cache
def _decoder(kind: type[Read]) -> msgspec.json.Decoder[Read]:
    return msgspec.json.Decoder(kind)


def parse(body: bytes, kind: type[Read]) -> Read:
    """The fields of a JSON body that ``kind`` has, as vLLM's server would find them: by Python's ``json``.

    That one takes more than JSON (NaN, lone surrogates, UTF-16) and builds the whole body. Most bodies are read by a
    stricter parser in a tenth of the time, which finds the same where it finds no fault.

    Raises: InvalidRequest for what cannot be read.
    """
    try:
        read: Read = _decoder(kind).decode(body)
        return read
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        allowed = f"JSON that can be searched for an SLO ({type(error).__name__}: {error})"
        raise InvalidRequest("request body", body, allowed) from None
    return kind(**{name: values.get(name) for name in kind.__struct_fields__}) if isinstance(values, dict) else kind()


def _refuse_form_field(body: bytes) -> None:
    """Raises: InvalidRequest where a form (audio to transcribe) has a field ``slo``: only headers state its SLO."""
    for match in _FORM_FIELD.finditer(body):
        # One byte, not the body up to it: a body of nothing but this name would be copied at each match.
        if body[max(match.start() - 1, 0) : match.start()] in (b";", b" ", b"\t"):
            raise InvalidRequest("slo", "a form field", "read; state an SLO in x-slo-* headers, or in vllm_xargs")
