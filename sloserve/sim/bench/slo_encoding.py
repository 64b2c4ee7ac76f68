"""The ways to state a request's SLO to the server: in ``vllm_xargs``, in headers, or not at all."""

from collections.abc import Callable
from enum import StrEnum

from sloserve.client.payload import SLOFields
from sloserve.core.slo import SLO
from sloserve.wire.xargs import to_xargs


class SendSLO(StrEnum):
    """The place in a request that states an SLO."""

    XARGS = "xargs"
    HEADERS = "headers"
    NONE = "none"


def in_xargs(slo: SLO) -> SLOFields:
    """Return the SLO as a field of the body, which plain vLLM carries to its engine too."""
    return SLOFields(body={"vllm_xargs": to_xargs(slo)})


def in_headers(slo: SLO) -> SLOFields:
    """Return the SLO as headers ``x-slo-*``; milliseconds are whole numbers, at least 1."""
    stated = to_xargs(slo).items()
    return SLOFields(headers={"x-" + key.replace("_", "-"): _text(key, value) for key, value in stated})


STATING: dict[SendSLO, Callable[[SLO], SLOFields] | None] = {
    SendSLO.XARGS: in_xargs,
    SendSLO.HEADERS: in_headers,
    SendSLO.NONE: None,
}


def _text(key: str, value: str | float) -> str:
    if isinstance(value, str):
        return value
    return str(max(1, round(value))) if key.endswith("_ms") else f"{value:.6g}"
