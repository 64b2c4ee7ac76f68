"""One SLO out of everything a request says: header over body over service tier over the default class.

The result is written as the flat ``slo_*`` keys of ``vllm_xargs``, the one form that reaches the engine, so that there
is a single reader of values (:mod:`sloserve.wire.xargs`) and the engine cannot tell how an SLO was stated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sloserve.core.errors import InvalidRequest
from sloserve.core.slo import SLO, ClassTable
from sloserve.wire.body import BodyFields
from sloserve.wire.headers import Field, HeaderFields
from sloserve.wire.xargs import PREFIX, parse_slo

CLASS = "slo_class"
XARGS = "vllm_xargs"


@dataclass(frozen=True)
class Rules:
    """What a deployment makes of requests' SLOs.

    classes: its service classes. service_tiers: ``service_tier`` to class. unknown_to_default: whether an
    unknown class becomes the default one instead of an error. tenants: the most urgent class a tenant may use;
    tenant_default: that of tenants not named, ``None`` for no limit.
    """

    classes: ClassTable
    service_tiers: Mapping[str, str] = field(default_factory=dict)
    unknown_to_default: bool = False
    tenants: Mapping[str, str] = field(default_factory=dict)
    tenant_default: str | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request's SLO, and ``vllm_xargs`` that state it; ``xargs`` is ``None`` where the request has none."""

    slo: SLO
    xargs: dict[str, Any] | None


def resolve(rules: Rules, xargs: Mapping[str, Any] | None, headers: HeaderFields, body: BodyFields) -> Resolved:
    """Merges what a request states in ``vllm_xargs``, its headers and its body. ``xargs`` is left as it is.

    Raises: InvalidRequest that names the field as the client wrote it.
    """
    stated: dict[str, Field] = {}
    for key, value in (xargs or {}).items():
        if isinstance(key, str) and key.startswith(PREFIX):
            stated[key] = Field(f"{XARGS}.{key}", value)
    stated |= body.fields
    stated |= headers.fields
    if body.tier is not None:
        named = _class_of_tier(rules, body.tier)
        stated.setdefault(CLASS, Field("service_tier", named))
    if rules.unknown_to_default and CLASS in stated and stated[CLASS].value not in rules.classes.names:
        del stated[CLASS]
    merged = {key: item.value for key, item in stated.items()}
    slo = _parse(merged, stated, rules.classes)
    ceiling = rules.tenants.get(headers.tenant or "", rules.tenant_default)
    if ceiling is not None and slo.slo_class.rank < rules.classes[ceiling].rank:
        merged[CLASS] = ceiling
        slo = parse_slo(merged, rules.classes)
    others = {key: value for key, value in (xargs or {}).items() if key not in merged and key != CLASS}
    return Resolved(slo, others | merged or None)


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
