"""SLOs in HTTP headers: the names, and what a request states in them.

Ours are ``x-slo-*``; llm-d's spellings of the same are accepted too. A header of ours that is misspelt or given twice
is an error, not a default: its sender means something by it. An ``x-slo-*`` header that resembles none of ours is
another software's, and is passed over unless the deployment has it refused.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sloserve.core import numbers
from sloserve.core.errors import InvalidRequest
from sloserve.core.nearest import nearest
from sloserve.core.slo import DUE_NOW_S, MAX_TARGET_S
from sloserve.wire.held import HEADER as HELD
from sloserve.wire.held import Held, left_ms, read_held

FIELDS = {
    "x-slo-ttft-ms": "slo_ttft_ms",
    "x-slo-tpot-ms": "slo_tpot_ms",
    "x-slo-e2e-ms": "slo_e2e_ms",
    "x-slo-tds": "slo_tds",
    "x-slo-class": "slo_class",
    "x-slo-output-tokens": "slo_output_tokens",
    "x-slo-promise": "slo_promise",
    "x-slo-promise-fallback": "slo_promise_fallback",
    "x-slo-task-id": "slo_task_id",
    "x-slo-task-e2e-ms": "slo_task_e2e_ms",
    "x-slo-task-deadline": "slo_task_deadline",
    "x-slo-task-calls": "slo_task_calls",
    "x-slo-task-last": "slo_task_last",
    "x-llm-d-slo-ttft-ms": "slo_ttft_ms",
    "x-llm-d-slo-tpot-ms": "slo_tpot_ms",
}
"""Header to the key of ``vllm_xargs`` that says the same. Source of the aliases: llm-d-router, pkg/epp/metadata."""

REPORT = "x-slo-report"
UPDATES = "x-slo-updates"
"""Header of a client that wants comments in its stream while the request waits."""
TASK = "x-slo-task"
"""Header with the kind of task in a router's quality table; a fleet's gateway reads it."""

FINAL = "x-dynamo-session-final"
"""Header with which Dynamo's clients say that a session makes no further request."""

NETWORK = "x-slo-network-ms"
"""Header with the time that the way to the server and back takes; a fleet's gateway reads it."""

PRIORITY = "x-vllm-priority"
"""Header with vLLM's own priority, which vLLM reads."""

TENANT = "x-tenant-id"
"""Header in which a fleet's gateway states the tenant to engines."""

TENANTS = (TENANT, "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
"""Headers that name the tenant, unless the deployment names others."""

OBJECTIVES = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
"""llm-d and the Gateway API's inference extension: the name of an InferenceObjective, which a table maps to a class."""

TTL = "x-request-ttl-ms"
"""Header with the time for which the request may wait for its first token."""

COUNTING_DOWN = {"slo_ttft_ms": "ttft_s", "slo_e2e_ms": "e2e_s"}
"""Targets that count from the client's request, as :data:`TTL` does: key of ``vllm_xargs`` to field of ``Targets``.

A server that holds a request for a while states the rest of them to the next one, see :func:`left_ms`.
"""

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
"""Headers of one connection, which no proxy passes on, and which HTTP/3 does not have. Source: RFC 2616, Sec. 13.5.1;
RFC 9110, Sec. 7.6.1; RFC 9114, Sec. 4.2."""

REQUEST_ID = "x-request-id"
RETRY_AFTER = "retry-after"
DROPPED_REASON = "x-slo-dropped-reason"
LLM_D_DROPPED_REASON = "x-llm-d-request-dropped-reason"
"""llm-d's header for the same, with values of llm-d's own list. Source: llm-d-router, pkg/common/error."""

PREDICTED_TTFT = "x-slo-predicted-ttft-ms"
PREDICTED_E2E = "x-slo-predicted-e2e-ms"
PREDICTED_TPOT = "x-slo-predicted-tpot-ms"
PREDICTED_TASK = "x-slo-predicted-task-ms"
PROMISED = "x-slo-promised"
"""Header of a response: what was promised, or why no promise was given, see :mod:`sloserve.wire.response_headers`.

In a request of a gateway to an engine: what the gateway has promised, see :func:`given_header`.
"""
_FIRST, _MOST_DIGITS = "first-ms", 9
QUEUE_POSITION = "x-slo-queue-position"
ANSWERS = frozenset(
    {DROPPED_REASON, PREDICTED_TTFT, PREDICTED_E2E, PREDICTED_TPOT, PREDICTED_TASK, PROMISED, QUEUE_POSITION}
)
"""Names of our headers that stand in responses; a proxy that copies them into a request gets no error."""

RATE_LIMITS = tuple(
    f"x-ratelimit-{part}-{what}" for what in ("requests", "tokens") for part in ("limit", "remaining", "reset")
)
"""Names of OpenAI's headers with the limits of a tenant."""

EXPOSED = (REQUEST_ID, RETRY_AFTER, LLM_D_DROPPED_REASON, *sorted(ANSWERS), *RATE_LIMITS)
"""Headers of a response that a page of another origin may read, if the server lets it read responses at all."""

DUE_NOW = f"{DUE_NOW_S * 1e3:g}"
"""Milliseconds as which a TTFT of 0 or less is read."""

MAX_IGNORED = 32
"""Most unknown headers of one request that are ignored: each is compared with all our names, before any key is."""

MAX_LABEL_CHARS = 128
"""Longest tenant or request id: they are kept in memory and written to logs."""


def _stem(name: str) -> str:
    return name.removeprefix("x-slo-").removesuffix("-ms")


_OURS = {key: name for name, key in FIELDS.items() if name.startswith("x-slo-")}
_KNOWN = {_stem(name): name for name in (*FIELDS, REPORT, UPDATES, TASK, NETWORK) if name.startswith("x-slo-")}
_CLOSE, _CLOSE_TASK = 0.6, 0.8
"""Likeness, without prefix and unit, from which on a name is taken for a misspelt one of ours.

It is higher for the names of a task, which are long: another software's ``x-slo-deadline`` is not one of them.
"""

_OF_TASK = [stem for stem in _KNOWN if stem.startswith("task-")]
_OTHERS = [stem for stem in _KNOWN if stem not in _OF_TASK]

TRUE, FALSE = frozenset({"1", "true", "yes"}), frozenset({"0", "false", "no"})


class Field(NamedTuple):
    """A value as the client wrote it, under the name that the client used for it."""

    name: str
    value: object


def is_ours(name: str) -> bool:
    """Return whether a header, named in lower case, already has a meaning other than the tenant of the request."""
    return name.startswith("x-slo-") or name in FIELDS or name in (PRIORITY, TTL, REQUEST_ID, *OBJECTIVES)


@dataclass(frozen=True)
class HeaderRules:
    """The rules of a deployment for headers.

    Args:
        tenant_headers: Names of headers that state the tenant, in lower case.
        reject_unknown: Whether every unknown ``x-slo-*`` header is refused.
        session_headers: Names of headers that may name a task, in lower case, see :mod:`sloserve.wire.tasks`.
        priority_headers: Names of headers that state a priority, in lower case, see :mod:`sloserve.wire.priorities`.
        trusts_gateway: Whether the sender is trusted to be a gateway, so that its promises hold.
        trusts_proxy: Whether the sender is a trusted proxy, so that recordings state how long it held a request.
    """

    tenant_headers: tuple[str, ...] = TENANTS
    reject_unknown: bool = False
    session_headers: frozenset[bytes] = frozenset()
    priority_headers: frozenset[bytes] = frozenset()
    trusts_gateway: bool = False
    trusts_proxy: bool = False

    @functools.cached_property
    def tenant_names(self) -> frozenset[bytes]:
        """Names in ``tenant_headers`` as bytes, as ASGI has them."""
        return frozenset(name.encode("latin-1", "replace") for name in self.tenant_headers)


@dataclass(slots=True)
class HeaderFields:
    """What the headers of one request state.

    Args:
        fields: Stated fields by key of ``vllm_xargs``.
        tenant: The tenant of the request.
        report: Whether the client asks for a report of its outcome.
        updates: Whether the client asks for comments while the request waits; ``None`` if no header says so.
        objective: The objective that a gateway states.
        ttl_s: Seconds from arrival to the first token, after which the client no longer wants the response.
        task: Task of the request, for a router of models.
        network_s: Seconds that the network takes, for a router of models.
        ignored: Names of ``x-slo-*`` headers that are not ours.
        sessions: Values of headers that may name a task, by the header's name.
        final: Whether a header of Dynamo says that no further request of the session follows.
        priorities: Values of headers that state a priority, by the header's name; of a repeated header the first.
        given_after_s: Seconds from arrival after which the request comes first, as a gateway has promised; ``None``
            for no such promise.
        held: What a gateway says of the time before the request was sent here; ``None`` without a gateway.
    """

    fields: dict[str, Field] = field(default_factory=dict)
    tenant: str | None = None
    report: bool = False
    updates: bool | None = None
    objective: Field | None = None
    ttl_s: float | None = None
    task: str | None = None
    network_s: float | None = None
    ignored: tuple[str, ...] = ()
    sessions: dict[str, str] = field(default_factory=dict)
    final: bool = False
    priorities: dict[str, str] = field(default_factory=dict)
    given_after_s: float | None = None
    held: Held | None = None


DEFAULT_RULES = HeaderRules()


def read_headers(headers: Iterable[tuple[bytes, bytes]], rules: HeaderRules = DEFAULT_RULES) -> HeaderFields:
    """Return the SLO, the tenant and the wish for a report in ``headers``, names in lower case as ASGI has them.

    Values of targets are read later, together with the values of the body; but a TTFT of 0 or less, which only a header
    may state, is read as due now.

    Raises: InvalidRequest for a misspelt ``x-slo-*`` header, contradicting values, or a tenant that is no label.
    """
    found = HeaderFields()
    for raw_name, raw_value in headers:
        if raw_name in rules.session_headers:
            found.sessions.setdefault(raw_name.decode("latin-1"), raw_value.decode("latin-1").strip())
        if raw_name in rules.priority_headers:
            found.priorities.setdefault(raw_name.decode("latin-1"), raw_value.decode("latin-1"))
        is_tenant = raw_name in rules.tenant_names
        if not (is_tenant or raw_name.startswith(b"x-")):
            continue
        name = raw_name.decode("latin-1")
        if is_tenant:
            tenant = label(name, raw_value)
            if found.tenant not in (None, tenant):
                raise InvalidRequest(
                    name, tenant, f"{found.tenant!r}, which another tenant header states; give one of them"
                )
            found.tenant = tenant
            continue
        key = FIELDS.get(name)
        if key is not None:
            text = raw_value.decode("latin-1").strip()
            if key == "slo_ttft_ms" and _is_past(text):
                text = DUE_NOW
            before = found.fields.setdefault(key, Field(name, text))
            if before.value != text:
                raise InvalidRequest(name, text, f"{before.value!r}, which {before.name} states; give one of them")
        elif name == PROMISED and rules.trusts_gateway:
            found.given_after_s = _given_after_s(raw_value)
        elif name == HELD:
            found.held = read_held(raw_value) if rules.trusts_proxy else None
        elif name == FINAL:
            found.final = raw_value.strip().lower() == b"true"
        elif name == REPORT:
            found.report = _flag(name, raw_value.decode("latin-1").strip())
        elif name == UPDATES:
            found.updates = _flag(name, raw_value.decode("latin-1").strip())
        elif name in OBJECTIVES:
            objective = label(name, raw_value)
            if found.objective is not None and found.objective.value != objective:
                raise InvalidRequest(name, objective, f"{found.objective.value!r}, which {found.objective.name} states")
            found.objective = Field(name, objective)
        elif name in _ONCE:
            field_name, read = _ONCE[name]
            value, before_it = read(name, raw_value), getattr(found, field_name)
            if before_it not in (None, value):
                text = raw_value.decode("latin-1").strip()
                raise InvalidRequest(name, text, "the value of the same header before it; give it once")
            setattr(found, field_name, value)
        elif name.startswith("x-slo-") and name not in ANSWERS:
            if len(found.ignored) >= MAX_IGNORED:
                allowed = f"one of at most {MAX_IGNORED} unknown x-slo-* headers that are ignored"
                raise InvalidRequest(name, raw_value.decode("latin-1"), allowed)
            close = _likely(name)
            if close is None and not rules.reject_unknown:
                found.ignored += (name,)
                continue
            hint = f"; did you mean {close}?" if close is not None else ""
            known = f"a known SLO header: {', '.join((*FIELDS, REPORT, UPDATES, TASK, NETWORK))}{hint}"
            raise InvalidRequest(name, raw_value.decode("latin-1"), known)
    return found


def _likely(name: str) -> str | None:
    """Return the header of ours of which ``name`` is a misspelling; ``None`` if it resembles none."""
    stem = _stem(name)
    found = nearest(stem, _OF_TASK, _CLOSE_TASK) or nearest(stem, _OTHERS, _CLOSE)
    return None if found is None else _KNOWN[found]


def stating(xargs: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the headers that state what ``xargs`` do, keys and values as in ``vllm_xargs``.

    This is the inverse of what is read here.

    Raises: UnicodeEncodeError for the name of a class that no header can carry.
    """
    stated = [(name, str(xargs[key])) for key, name in _OURS.items() if key in xargs]
    for _, value in stated:
        value.encode("latin-1")
    return stated


_OF_GATEWAYS = frozenset((HELD.encode(), PROMISED.encode()))
_COUNTING_DOWN = frozenset(name.encode() for name, key in FIELDS.items() if key in COUNTING_DOWN) | {TTL.encode()}


def remaining(headers: Iterable[tuple[bytes, bytes]], late_s: float) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers as they are passed on ``late_s`` seconds after they came, names in lower case.

    What a gateway alone states to its engines is left out, since the next server trusts the sender. A value that is no
    time above 0 stays as it is: the server that reads it judges it.
    """
    for name, value in headers:
        if name in _OF_GATEWAYS:
            continue
        if name in _COUNTING_DOWN and late_s >= 1e-3:
            total_s = _seconds(value.decode("latin-1"))
            value = str(left_ms(total_s, late_s)).encode() if 0.0 < total_s <= MAX_TARGET_S else value
        yield name, value


def _is_past(text: str) -> bool:
    """Return whether a gateway says that no time is left: llm-d's batch gateway sends 0 and less."""
    try:
        return numbers.number(text) <= 0.0
    except ValueError:
        return False


def _time_s(name: str, raw: bytes) -> float:
    """Return the seconds of a header that states milliseconds.

    Raises: InvalidRequest for anything but a time in range; for a :data:`TTL` also for 0.
    """
    text = raw.decode("latin-1").strip()
    seconds, above = _seconds(text), name == TTL
    if not 0.0 <= seconds <= MAX_TARGET_S or (above and seconds == 0.0):
        least = "above 0 and up" if above else "from 0"
        raise InvalidRequest(name, text, f"a number of milliseconds {least} to {MAX_TARGET_S * 1e3:.0f}")
    return seconds


def _seconds(text: str) -> float:
    """Return the seconds of a text that states milliseconds; nan if it is no number."""
    try:
        return numbers.number(text) / 1e3
    except ValueError:
        return math.nan


def given_header(level: float, after_s: float) -> str:
    """Return what a gateway has promised, as a structured field: ``0.99;first-ms=120``.

    Args:
        level: Probability of the promise, 0..1.
        after_s: Seconds from now after which the request comes first; less than 0 counts as 0.
    """
    return f"{level:g};{_FIRST}={max(round(after_s * 1e3), 0)}"


def _given_after_s(raw: bytes) -> float | None:
    """Return the seconds of :func:`given_header`; ``None`` for a value of a response, which may have been copied."""
    _, _, text = raw.decode("latin-1").partition(f";{_FIRST}=")
    return int(text) / 1e3 if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else None


def label(name: str, raw: bytes) -> str:
    """Return ``raw`` as a label of at most 128 visible characters.

    Raises: InvalidRequest for anything else.
    """
    text = raw.decode("latin-1").strip()
    if not is_label(text):
        raise InvalidRequest(name, text[:MAX_LABEL_CHARS], f"1 to {MAX_LABEL_CHARS} visible ASCII characters")
    return text


def is_label(text: str) -> bool:
    """Return whether ``text`` is 1 to 128 visible ASCII characters."""
    return 0 < len(text) <= MAX_LABEL_CHARS and text.isascii() and text.isprintable()


def _flag(name: str, text: str) -> bool:
    if text.lower() in TRUE:
        return True
    if text.lower() in FALSE:
        return False
    raise InvalidRequest(name, text, "1 or 0")


_ONCE: dict[str, tuple[str, Callable[[str, bytes], object]]] = {
    TTL: ("ttl_s", _time_s),
    TASK: ("task", label),
    NETWORK: ("network_s", _time_s),
}
"""Headers with one value: the field of :class:`HeaderFields`, and what reads it."""
