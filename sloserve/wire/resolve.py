"""One SLO out of everything a request says: header over body over service tier over the default class.

A gateway's objective stands for a header that names a class, where no header does. A tenant that is held to a class may
ask for nothing more urgent: neither a class, nor a target that is tighter than that of its class, or of a kind that its
class does not have, nor a ``priority`` ahead of vLLM's default.

The result is written as the flat ``slo_*`` keys of ``vllm_xargs``, the one form that reaches the engine, so that there
is a single reader of values (:mod:`sloserve.wire.xargs`) and the engine cannot tell how an SLO was stated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sloserve.core.errors import InvalidRequest
from sloserve.core.slo import SLO, ClassTable, SLOClass
from sloserve.wire.body import BodyFields
from sloserve.wire.headers import Field, HeaderFields
from sloserve.wire.xargs import PREFIX, TARGET_KEYS, parse_slo, stated_targets

CLASS = "slo_class"
TIERS = ("default", "priority", "flex", "scale")
"""OpenAI's tiers that a request can be served in; ``auto`` is only asked for."""
XARGS = "vllm_xargs"


@dataclass(frozen=True)
class Rules:
    """What a deployment makes of requests' SLOs.

    classes: its service classes. service_tiers: ``service_tier`` to class. unknown_to_default: whether an
    unknown class becomes the default one instead of an error. tenants: the most urgent class a tenant may use;
    tenant_default: that of tenants not named, ``None`` for no limit. objectives: a gateway's objective to class; one
    that is not named says nothing.
    """

    classes: ClassTable
    service_tiers: Mapping[str, str] = field(default_factory=dict)
    unknown_to_default: bool = False
    tenants: Mapping[str, str] = field(default_factory=dict)
    tenant_default: str | None = None
    objectives: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request's SLO, and ``vllm_xargs`` that state it; ``xargs`` is ``None`` where the request has none.

    tier: the ``service_tier`` that it is served in, where it asks for one and the class has one.
    """

    slo: SLO
    xargs: dict[str, Any] | None
    tier: str | None = None


def resolve(
    rules: Rules, xargs: Mapping[str, Any] | None, headers: HeaderFields, body: BodyFields, priority: int = 0
) -> Resolved:
    """Merges what a request states in ``vllm_xargs``, its headers and its body. ``xargs`` is left as it is.

    priority: vLLM's number, as vLLM read it.
    Raises: InvalidRequest that names the field as the client wrote it.
    """
    stated: dict[str, Field] = {}
    for key, value in (xargs or {}).items():
        if _is_ours(key):
            stated[key] = Field(f"{XARGS}.{key}", value)
    stated |= body.fields
    if headers.objective is not None and str(headers.objective.value) in rules.objectives:
        stated[CLASS] = Field(headers.objective.name, rules.objectives[str(headers.objective.value)])
    stated |= headers.fields
    if body.tier is not None:
        named = _class_of_tier(rules, body.tier)
        stated.setdefault(CLASS, Field("service_tier", named))
    if rules.unknown_to_default and CLASS in stated and stated[CLASS].value not in rules.classes.names:
        del stated[CLASS]
    merged = {key: item.value for key, item in stated.items()}
    slo = _parse(merged, stated, rules.classes)
    ceiling = rules.tenants.get(headers.tenant or "", rules.tenant_default)
    if ceiling is not None:
        held = _held(rules.classes[ceiling], slo, merged)
        if priority < 0:
            raise InvalidRequest("priority", priority, f"0 or more, the limit of class {ceiling!r}")
        if held != merged:
            merged, slo = held, parse_slo(held, rules.classes)
    others = {key: value for key, value in (xargs or {}).items() if not _is_ours(key)}
    return Resolved(slo, others | merged or None, _served_tier(rules, body.tier, slo.slo_class.name))


def _is_ours(key: Any) -> bool:
    return isinstance(key, str) and key.startswith(PREFIX)


def _held(ceiling: SLOClass, slo: SLO, merged: Mapping[str, Any]) -> dict[str, Any]:
    """What is stated, lowered to what ``ceiling`` allows."""
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
    return lowered


def _served_tier(rules: Rules, tier: str | None, class_name: str) -> str | None:
    if tier is None:
        return None
    if tier != "auto" and rules.service_tiers.get(tier) == class_name:
        return tier
    return next((name for name in TIERS if rules.service_tiers.get(name) == class_name), None)


def _class_of_tier(rules: Rules, tier: str) -> str:
    named = rules.service_tiers.get(tier)
    if named is None:
        if not rules.unknown_to_default:
            raise InvalidRequest("service_tier", tier, f"one of {', '.join(rules.service_tiers)}")
        return rules.classes.default.name
    return named


def _parse(merged: dict[str, Any], stated: Mapping[str, Field], classes: ClassTable) -> SLO:
    try:
        return parse_slo(merged, classes)
    except InvalidRequest as error:
        raise InvalidRequest(stated[error.field].name, error.value, error.allowed) from None
