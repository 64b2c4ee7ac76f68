"""One SLO out of all statements of a request: header over body over service tier over the default class.

A gateway's objective stands for a header that names a class, where no header does; so does a priority that another
router's header states. Dynamo's hint of a priority in the body comes before the service tier. A tenant that is held to
a class may ask for nothing more urgent: neither a class, nor a target that is tighter than the target of its class or
that its class does not have, nor a deadline of a task, nor a ``priority`` ahead of vLLM's default.

The result is written as the flat ``slo_*`` keys of ``vllm_xargs``, the one form that reaches the engine, so that there
is a single reader of values (:mod:`sloserve.wire.xargs`) and the engine cannot tell how an SLO was stated.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sloserve.core.errors import InvalidRequest
from sloserve.core.slo import SLO, ClassTable, SLOClass, Targets
from sloserve.wire.body import PRIORITY_HINT, BodyFields
from sloserve.wire.headers import Field, HeaderFields, HeaderRules, read_headers
from sloserve.wire.priorities import PriorityHeaders
from sloserve.wire.tasks import DEFAULT_ALIASES, StatedTask, overlaid, stated_task, without_task
from sloserve.wire.xargs import (
    PREFIX,
    PROMISE,
    TARGET_KEYS,
    parse_slo,
    stated_targets,
)

CLASS = "slo_class"
TIERS = ("default", "priority", "flex", "scale")
"""OpenAI's tiers that a request can be served in; ``auto`` is only asked for."""
XARGS = "vllm_xargs"

MAX_REMEMBERED, MAX_REMEMBERED_CHARS = 1024, 32
"""Most SLOs that are remembered, and the longest values, in characters: clients state few SLOs, each many times."""

_Stated = tuple[tuple[str, Field, type], ...]
"""What a request states, by key of ``vllm_xargs``; ``True``, 1 and 1.0, which are equal, differ by their type."""

Classify = Callable[[Iterable[tuple[bytes, bytes]], Any], tuple[SLO, str | None]]
"""Returns the SLO and the tenant of a request by its headers and the address of its peer, before its body is read."""


@dataclass(frozen=True)
class Rules:
    """The rules by which a deployment reads requests' SLOs.

    Args:
        classes: The service classes.
        service_tiers: Class by ``service_tier``.
        unknown_to_default: Whether an unknown class becomes the default class instead of an error.
        tenants: The most urgent class that each tenant may use.
        tenant_default: The most urgent class of tenants that are not named; ``None`` for no limit.
        objectives: Class by a gateway's objective; an objective that is not named has no effect.
        task_aliases: Headers and fields of the body that may name a task, see :mod:`sloserve.wire.tasks`.
        priorities: Headers of other routers that state a priority, with the classes that it stands for.
    """

    classes: ClassTable
    service_tiers: Mapping[str, str] = field(default_factory=dict)
    unknown_to_default: bool = False
    tenants: Mapping[str, str] = field(default_factory=dict)
    tenant_default: str | None = None
    objectives: Mapping[str, str] = field(default_factory=dict)
    task_aliases: tuple[str, ...] = DEFAULT_ALIASES
    priorities: PriorityHeaders = field(default_factory=lambda: PriorityHeaders({}))

    @functools.cached_property
    def merge(self) -> Callable[[_Stated, str | None], tuple[SLO, dict[str, Any]]]:
        """The function :func:`_merge` under these rules, with a cache of its results."""
        return functools.lru_cache(MAX_REMEMBERED)(functools.partial(_merge, self.classes))

    def held_to(self, slo_class: str | None) -> "Rules":
        """Return these rules for a tenant that its key holds to a class; ``None`` for a key without a class."""
        return self if slo_class is None else self._of_class[slo_class]

    @functools.cached_property
    def _of_class(self) -> dict[str, "Rules"]:
        return {name: replace(self, tenants={}, tenant_default=name) for name in self.classes.names}


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request's SLO, and the ``vllm_xargs`` that state it.

    Args:
        slo: The SLO.
        xargs: The ``vllm_xargs``; ``None`` if the request has none.
        tier: The ``service_tier`` in which it is served, if it asks for one and the class has one.
        task: The task of which the request is a call; ``None`` if it states none.
    """

    slo: SLO
    xargs: dict[str, Any] | None
    tier: str | None = None
    task: StatedTask | None = None


def resolve(
    rules: Rules, xargs: Mapping[str, Any] | None, headers: HeaderFields, body: BodyFields, priority: int = 0
) -> Resolved:
    """Merge what a request states in ``vllm_xargs``, its headers and its body. ``xargs`` is left as it is.

    Args:
        rules: The rules of the deployment.
        xargs: The request's ``vllm_xargs``.
        headers: What its headers state.
        body: What its body states.
        priority: vLLM's number, as vLLM read it; lower is earlier.

    Raises: InvalidRequest that names the field as the client wrote it.
    """
    stated: dict[str, Field] = {}
    for key, value in (body.xargs | dict(xargs or {})).items():
        if _is_ours(key):
            stated[key] = Field(f"{XARGS}.{key}", value)
    stated = overlaid(stated, body.fields)
    named = _class_of_router(rules, headers)
    if named is not None:
        stated[CLASS] = named
    stated = overlaid(stated, headers.fields)
    task = stated_task(without_task(stated), rules.task_aliases, headers, body.sessions)
    if body.priority is not None and (hinted := rules.priorities.class_of_hint(body.priority)) is not None:
        stated.setdefault(CLASS, Field(PRIORITY_HINT, hinted))
    if body.tier is not None:
        stated.setdefault(CLASS, Field("service_tier", _class_of_tier(rules, body.tier)))
    if rules.unknown_to_default and CLASS in stated and stated[CLASS].value not in rules.classes.names:
        del stated[CLASS]
    ceiling = rules.tenants.get(headers.tenant or "", rules.tenant_default)
    if task is not None and ceiling is not None:
        task = replace(task, e2e_s=None, deadline_s=None)
    whole = tuple((key, item, type(item.value)) for key, item in stated.items())
    if all(_is_short(item.value) for item in stated.values()):
        slo, merged = rules.merge(whole, ceiling)
    else:
        slo, merged = _merge(rules.classes, whole, ceiling)
    if ceiling is not None and priority < 0:
        raise InvalidRequest("priority", priority, f"0 or more, the limit of class {ceiling!r}")
    others = {key: value for key, value in (xargs or {}).items() if not _is_ours(key)}
    return Resolved(slo, others | merged or None, _served_tier(rules, body.tier, slo.slo_class.name), task)


def resolve_headers(
    rules: Rules, header_rules: HeaderRules, headers: Iterable[tuple[bytes, bytes]], tenant: str | None = None
) -> tuple[SLO, str | None]:
    """Return a request's SLO and tenant by its headers, before the body is read.

    A request that cannot be read has the default class here; the server refuses it later.

    Args:
        rules: The rules of the deployment.
        header_rules: The deployment's rules for headers.
        headers: Headers of the request, names in lower case.
        tenant: The tenant of the request, where it is known; else the headers state it.
    """
    try:
        fields = read_headers(headers, header_rules)
        fields.tenant = tenant or fields.tenant
        return resolve(rules, None, fields, BodyFields()).slo, fields.tenant
    except InvalidRequest:
        return rules.classes.slo(None, Targets()), None


def stated_slo(
    rules: Rules, header_rules: HeaderRules, headers: Iterable[tuple[bytes, bytes]], tenant: str | None = None
) -> SLO | None:
    """Return a request's SLO if its headers name its class, for a request that is refused before its body is read.

    The result is ``None`` where they name none, since the body may, and where they cannot be read. The arguments are
    as of :func:`resolve_headers`.
    """
    try:
        fields = read_headers(headers, header_rules)
        fields.tenant = tenant or fields.tenant
        if CLASS not in fields.fields and _class_of_router(rules, fields) is None:
            return None
        return resolve(rules, None, fields, BodyFields()).slo
    except InvalidRequest:
        return None


def classify_by(rules: Rules, header_rules: HeaderRules) -> Classify:
    """Return a function that reads a request's SLO and tenant by its headers alone, from any peer."""
    return lambda headers, peer: resolve_headers(rules, header_rules, headers)


def _is_ours(key: Any) -> bool:
    return isinstance(key, str) and key.startswith(PREFIX)


def _held(ceiling: SLOClass, slo: SLO, merged: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stated keys, lowered to what ``ceiling`` allows."""
    lowered = dict(merged)
    if slo.slo_class.rank < ceiling.rank:
        lowered[CLASS] = ceiling.name
    stated = stated_targets(merged)
    held = stated.no_tighter_than(ceiling.targets)
    for key, (name, factor, _, _) in TARGET_KEYS.items():
        value = getattr(held, name)
        if value != getattr(stated, name):
            del lowered[key]
            if value is not None:
                lowered[key] = value / factor
    most = 0.0 if ceiling.promise is None else ceiling.promise.level
    if slo.promise is not None and slo.promise.level > most:
        lowered[PROMISE] = most
    return lowered


def _served_tier(rules: Rules, tier: str | None, class_name: str) -> str | None:
    if tier is None:
        return None
    if tier != "auto" and rules.service_tiers.get(tier) == class_name:
        return tier
    return next((name for name in TIERS if rules.service_tiers.get(name) == class_name), None)


def _class_of_router(rules: Rules, headers: HeaderFields) -> Field | None:
    """Return the class for which a gateway's objective stands, else a router's priority; ``None`` if neither does."""
    if headers.objective is not None and str(headers.objective.value) in rules.objectives:
        return Field(headers.objective.name, rules.objectives[str(headers.objective.value)])
    found = rules.priorities.find(headers.priorities)
    return None if found is None else Field(*found)


def _class_of_tier(rules: Rules, tier: str) -> str:
    named = rules.service_tiers.get(tier)
    if named is None:
        if not rules.unknown_to_default:
            raise InvalidRequest("service_tier", tier, f"one of {', '.join(rules.service_tiers)}")
        return rules.classes.default.name
    return named


def _is_short(value: object) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= MAX_REMEMBERED_CHARS)


def _merge(classes: ClassTable, stated: _Stated, ceiling: str | None) -> tuple[SLO, dict[str, Any]]:
    """Return the SLO that is stated, and the keys that state it, lowered to the class ``ceiling`` if there is one.

    Raises: InvalidRequest.
    """
    merged = {key: item.value for key, item, _ in stated}
    try:
        slo = parse_slo(merged, classes)
    except InvalidRequest as error:
        name = next(item.name for key, item, _ in stated if key == error.field)
        raise InvalidRequest(name, error.value, error.allowed) from None
    held = merged if ceiling is None else _held(classes[ceiling], slo, merged)
    return (slo, merged) if held == merged else (parse_slo(held, classes), held)
