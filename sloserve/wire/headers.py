"""SLOs in HTTP headers: the names, and what a request states in them.

Ours are ``x-slo-*``; llm-d's spellings of the same are accepted too. A header of ours that is misspelt or given twice
is an error, not a default: whoever sends it means something by it.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from sloserve.core.errors import InvalidRequest
from sloserve.core.predicted import Predicted, worst

FIELDS = {
    "x-slo-ttft-ms": "slo_ttft_ms",
    "x-slo-tpot-ms": "slo_tpot_ms",
    "x-slo-e2e-ms": "slo_e2e_ms",
    "x-slo-tds": "slo_tds",
    "x-slo-class": "slo_class",
    "x-slo-output-tokens": "slo_output_tokens",
    "x-llm-d-slo-ttft-ms": "slo_ttft_ms",
    "x-llm-d-slo-tpot-ms": "slo_tpot_ms",
}
"""Header to the key of ``vllm_xargs`` that says the same. Source of the aliases: llm-d-router, pkg/epp/metadata."""

REPORT = "x-slo-report"
PRIORITY = "x-vllm-priority"
"""vLLM's own; it beats the body's ``priority`` and is passed over where it is no whole number."""

TENANTS = ("x-tenant-id", "x-llm-d-inference-fairness-id")
REQUEST_ID = "x-request-id"
RETRY_AFTER = "retry-after"
DROPPED_REASON = "x-slo-dropped-reason"
PREDICTED_TTFT = "x-slo-predicted-ttft-ms"
PREDICTED_E2E = "x-slo-predicted-e2e-ms"
ANSWERS = frozenset({DROPPED_REASON, PREDICTED_TTFT, PREDICTED_E2E})
"""Names of ours that stand in answers; a proxy that copies them into a request is not told off."""

MAX_LABEL_CHARS = 128
"""Longest tenant or request id: they are kept in memory and written to logs."""

TRUE, FALSE = frozenset({"1", "true", "yes"}), frozenset({"0", "false", "no"})


class Field(NamedTuple):
    """A value as the client wrote it, under the name that the client used for it."""

    name: str
    value: object


@dataclass(slots=True)
class HeaderFields:
    """What the headers of one request state. fields: by key of ``vllm_xargs``. priority: vLLM's, a whole number."""

    fields: dict[str, Field] = field(default_factory=dict)
    tenant: str | None = None
    report: bool = False
    priority: Field | None = None


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> HeaderFields:
    """The SLO, tenant and wish for a report in ``headers``, names in lower case as ASGI has them.

    Raises: InvalidRequest for an unknown ``x-slo-*`` header, contradicting values, or a tenant that is no label.
    Values of targets are read later, together with those of the body.
    """
    found = HeaderFields()
    for raw_name, raw_value in headers:
        if not raw_name.startswith(b"x-"):
            continue
        name = raw_name.decode("latin-1")
        key = FIELDS.get(name)
        if key is not None:
            text = raw_value.decode("latin-1").strip()
            before = found.fields.setdefault(key, Field(name, text))
            if before.value != text:
                raise InvalidRequest(name, text, f"{before.value!r}, which {before.name} says; give one of them")
        elif name == REPORT:
            found.report = _flag(name, raw_value.decode("latin-1").strip())
        elif name == PRIORITY:
            found.priority = _priority(raw_value)
        elif name in TENANTS:
            tenant = label(name, raw_value)
            if found.tenant not in (None, tenant):
                raise InvalidRequest(name, tenant, f"{found.tenant!r}, which another tenant header says; give one")
            found.tenant = tenant
        elif name.startswith("x-slo-") and name not in ANSWERS:
            known = (*FIELDS, REPORT)
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InvalidRequest(name, raw_value.decode("latin-1"), f"a known SLO header: {', '.join(known)}{hint}")
    return found


def predictions(predicted: Iterable[Predicted]) -> list[tuple[str, str]]:
    """The headers that tell what was predicted of one HTTP request's calls of the engine: the worst of them.

    A structured field (RFC 8941): the median as an integer, the 0.9-quantile as its parameter, ``120;p90=480``, in ms.
    """
    told = worst(predicted)
    return [
        (name, f"{_whole_ms(quantiles.median_s)};p90={_whole_ms(quantiles.p90_s)}")
        for name, quantiles in ((PREDICTED_TTFT, told.ttft), (PREDICTED_E2E, told.e2e))
        if quantiles is not None
    ]


def _whole_ms(seconds: float) -> int:
    return max(round(seconds * 1e3), 1)


def label(name: str, raw: bytes) -> str:
    """``raw`` as a label of at most 128 visible characters. Raises: InvalidRequest."""
    text = raw.decode("latin-1").strip()
    if not text or len(text) > MAX_LABEL_CHARS or not text.isascii() or not text.isprintable():
        raise InvalidRequest(name, text[:MAX_LABEL_CHARS], f"1 to {MAX_LABEL_CHARS} visible ASCII characters")
    return text


def _flag(name: str, text: str) -> bool:
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise InvalidRequest(name, text, "1 or 0")


def _priority(raw: bytes) -> Field | None:
    try:
        return Field(PRIORITY, int(raw))
    except ValueError:
        return None
