"""Settings of the shares that tenants have of an engine."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from sloserve.core.files.json_schema import Written
from sloserve.core.files.model import NOT_TINY, Allowed
from sloserve.core.slo import MAX_TARGET_S
from sloserve.core.tenants import LEAST_WEIGHT, MOST_TENANTS, MOST_WEIGHT

_MOST_NAMED = MOST_TENANTS - 1


def _weights(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or len(value) > _MOST_NAMED:
        raise ValueError
    for name, weight in value.items():
        is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not (isinstance(name, str) and name and is_number and LEAST_WEIGHT <= weight <= MOST_WEIGHT):
            raise ValueError
    return {name: float(weight) for name, weight in value.items()}


class ShareSettings(BaseModel):
    """How tenants share an engine, see :mod:`sloserve.engine.tenant_shares`.

    Args:
        half_life_s: Seconds in which a tenant's service so far halves.
        weights: Weight of each tenant; 1 for a tenant that is not named.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    half_life_s: Annotated[
        float,
        Field(strict=True, gt=0.0, le=MAX_TARGET_S),
        NOT_TINY,
        Allowed(f"a number of seconds above 0, up to {MAX_TARGET_S:.0f}"),
    ] = 30.0
    weights: Annotated[
        Mapping[str, float],
        PlainValidator(_weights),
        Written(
            Annotated[
                dict[str, Annotated[float, Field(ge=LEAST_WEIGHT, le=MOST_WEIGHT)]], Field(max_length=_MOST_NAMED)
            ]
        ),
        Allowed(f"a mapping of at most {_MOST_NAMED} tenants to numbers from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}"),
    ] = {}
