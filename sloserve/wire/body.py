"""SLOs in the request body: the nested ``slo`` object and OpenAI's ``service_tier``.

The body belongs to vLLM; of it only these and its own ``priority`` are read, everything else is skipped without being
built.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from sloserve.core.errors import InvalidRequest
from sloserve.wire.headers import Field
from sloserve.wire.xargs import MAX_OUTPUT_TOKENS

NESTED = {
    "ttft_ms": "slo_ttft_ms",
    "tpot_ms": "slo_tpot_ms",
    "e2e_ms": "slo_e2e_ms",
    "tds": "slo_tds",
    "class": "slo_class",
    "output_tokens": "slo_output_tokens",
}
REPORT = "report"


class _Body(msgspec.Struct):
    slo: Any = None
    service_tier: Any = None
    priority: Any = None
    nvext: Any = None


_decoder = msgspec.json.Decoder(_Body)


@dataclass(slots=True)
class BodyFields:
    """What the body of one request states.

    fields: by key of ``vllm_xargs``. tier: its ``service_tier``. priority: vLLM's, where it is a whole number.
    """

    fields: dict[str, Field] = field(default_factory=dict)
    tier: str | None = None
    report: bool = False
    priority: Field | None = None


def read_body(body: bytes) -> BodyFields:
    """The SLO that a JSON body states beside ``vllm_xargs``; a body that is no JSON object states none.

    Raises: InvalidRequest for an ``slo`` that is no object, or has an unknown key, and for a tier that is no string.
    """
    found = BodyFields()
    try:
        read = _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return found  # vLLM says what is wrong with it
    if isinstance(read.priority, int) and not isinstance(read.priority, bool):
        found.priority = Field("priority", read.priority)
    if read.service_tier is not None:
        if not isinstance(read.service_tier, str):
            raise InvalidRequest("service_tier", read.service_tier, "a string")
        found.tier = read.service_tier
    length = _expected_length(read.nvext)
    if length is not None:
        found.fields["slo_output_tokens"] = Field("nvext.agent_hints.osl", length)
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
