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
from sloserve.wire.tasks import body_aliases
from sloserve.wire.xargs import MAX_OUTPUT_TOKENS, stating_keys

NESTED = {
    "ttft_ms": "slo_ttft_ms",
    "tpot_ms": "slo_tpot_ms",
    "e2e_ms": "slo_e2e_ms",
    "tds": "slo_tds",
    "class": "slo_class",
    "output_tokens": "slo_output_tokens",
    "promise": "slo_promise",
    "promise_fallback": "slo_promise_fallback",
    "task_id": "slo_task_id",
    "task_e2e_ms": "slo_task_e2e_ms",
    "task_deadline": "slo_task_deadline",
    "task_calls": "slo_task_calls",
    "task_last": "slo_task_last",
}
REPORT, UPDATES = "report", "updates"
_KEYS = ", ".join((*NESTED, REPORT, UPDATES))
BYTES_PER_TOKEN = 4
"""Usual bytes of a token in an English prompt."""
LENGTH_HINT = "nvext.agent_hints.osl"
"""Field in which Dynamo's clients state the expected length of the output: a hint, which states no SLO."""
PRIORITY_HINT = "nvext.agent_hints.priority"
"""Field in which Dynamo's clients state a priority, higher is earlier; the settings may map it to a class."""
_MAX_PRIORITY = 2**31 - 1
"""Dynamo's priority has 32 bits."""

_FORM = b"multipart/form-data"
_FORM_FIELD = re.compile(rb'name="?slo["\[;\s]')
"""Begins with a plain word, so that megabytes of audio are searched in milliseconds."""


class Body(msgspec.Struct):
    """The fields of a body that are read here, as they stand there; a reader that needs more reads a subclass."""

    slo: Any = None
    service_tier: Any = None
    nvext: Any = None
    vllm_xargs: Any = None
    session_id: Any = None
    conversation: Any = None
    metadata: Any = None
    previous_response_id: Any = None
    prompt_cache_key: Any = None
    use_beam_search: Any = None


Read = TypeVar("Read", bound=Body)


@dataclass(slots=True)
class BodyFields:
    """What the body of one request states.

    Args:
        fields: Stated fields by key of ``vllm_xargs``.
        tier: The ``service_tier`` of the body.
        report: Whether the client asks for a report of its outcome.
        updates: Whether the client asks for comments while the request waits.
        xargs: Entries of ``vllm_xargs`` that state an SLO; vLLM passes no ``vllm_xargs`` on for a beam search.
        sessions: Values that may name a task, by :data:`sloserve.wire.tasks.BODY_ALIASES`.
        is_search: Whether it asks for a beam search, which calls the engine for each beam and token.
        priority: The priority by Dynamo's hint, higher is earlier; ``None`` without one.
    """

    fields: dict[str, Field] = field(default_factory=dict)
    tier: str | None = None
    report: bool = False
    updates: bool = False
    xargs: dict[str, Any] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)
    is_search: bool = False
    priority: int | None = None


def read_body(body: bytes, content_type: bytes = b"application/json") -> BodyFields:
    """Return the SLO that a body states beside ``vllm_xargs``.

    An empty body, and JSON that is no object, state none.

    Raises: InvalidRequest for an ``slo`` that is no object or has an unknown key, for a tier that is no string, and for
    a body that cannot be searched for an SLO. (If vLLM's server cannot read the body either, its error comes first.)
    """
    if not body:
        return BodyFields()
    if content_type.strip().lower().startswith(_FORM):
        _refuse_form_field(body)
        return BodyFields()
    return fields_of(parse(body, Body))


def fields_of(read: Body) -> BodyFields:
    """Return the SLO in the fields that were read of a body.

    Raises: the errors of :func:`read_body`.
    """
    found = BodyFields()
    if read.service_tier is not None:
        if not isinstance(read.service_tier, str):
            raise InvalidRequest("service_tier", read.service_tier, "a string")
        found.tier = read.service_tier
    hints = read.nvext.get("agent_hints") if isinstance(read.nvext, dict) else None
    if isinstance(hints, dict):
        length = _hinted(hints, "osl", 1, MAX_OUTPUT_TOKENS)
        if length is not None:
            found.fields["slo_output_tokens"] = Field(LENGTH_HINT, length)
        found.priority = _hinted(hints, "priority", -_MAX_PRIORITY, _MAX_PRIORITY)
    if isinstance(read.vllm_xargs, dict):
        found.xargs = stating_keys(read.vllm_xargs)
    found.is_search = read.use_beam_search is True
    found.sessions = body_aliases(
        read.session_id, read.conversation, read.metadata, read.previous_response_id, read.prompt_cache_key
    )
    if read.slo is None:
        return found
    if not isinstance(read.slo, dict):
        raise InvalidRequest("slo", read.slo, f"an object with keys of {_KEYS}")
    for name, value in read.slo.items():
        if name in (REPORT, UPDATES):
            if not isinstance(value, bool):
                raise InvalidRequest(f"slo.{name}", value, "true or false")
            setattr(found, name, value)
        elif name not in NESTED:
            raise InvalidRequest(f"slo.{name}", value, f"a known key; known: {_KEYS}")
        elif value is not None:
            found.fields[NESTED[name]] = Field(f"slo.{name}", value)
    return found


def _hinted(hints: dict[str, Any], name: str, least: int, most: int) -> int | None:
    """Return a whole number of Dynamo's agent hints; a value of another type, or out of range, is ignored."""
    value = hints.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        return None
    return value


@functools.cache
def _decoder(kind: type[Read]) -> msgspec.json.Decoder[Read]:
    return msgspec.json.Decoder(kind)


def parse(body: bytes, kind: type[Read]) -> Read:
    """Return the fields of a JSON body that ``kind`` has, as vLLM's server would find them by Python's ``json``.

    Python's parser takes more than JSON (NaN, lone surrogates, UTF-16) and builds the whole body. Most bodies are read
    by a stricter parser in a tenth of the time; it finds the same values if it finds no fault.

    Raises: InvalidRequest for a body that cannot be read.
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
    """Raise InvalidRequest if a form (audio to transcribe) has a field ``slo``: only headers state its SLO."""
    for match in _FORM_FIELD.finditer(body):
        # One byte, not the body up to it: a body of nothing but this name would be copied at each match.
        if body[max(match.start() - 1, 0) : match.start()] in (b";", b" ", b"\t"):
            raise InvalidRequest("slo", "a form field", "read; state an SLO in x-slo-* headers, or in vllm_xargs")
