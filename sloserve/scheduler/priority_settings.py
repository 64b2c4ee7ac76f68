"""Type of the setting that maps priorities of other routers to classes."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field, PlainValidator

from sloserve.core.files.json_schema import Written
from sloserve.core.files.model import Allowed
from sloserve.scheduler.tenant_settings import HEADER_NAME
from sloserve.wire.headers import is_ours

MOST_HEADERS: Final = 8
MOST_VALUES: Final = 32


def _priority_headers(value: Any) -> dict[str, dict[str, str]]:
    if not isinstance(value, Mapping) or len(value) > MOST_HEADERS:
        raise ValueError
    found: dict[str, dict[str, str]] = {}
    for name, classes in value.items():
        is_header = isinstance(name, str) and HEADER_NAME.fullmatch(name.lower()) and not is_ours(name.lower())
        if not is_header or not isinstance(classes, Mapping) or not 0 < len(classes) <= MOST_VALUES:
            raise ValueError
        if not all(isinstance(of, int | str) and isinstance(slo_class, str) for of, slo_class in classes.items()):
            raise ValueError
        found[name.lower()] = {str(of): slo_class for of, slo_class in classes.items()}
    return found


PriorityTables = Annotated[
    dict[str, dict[str, str]],
    PlainValidator(_priority_headers),
    Written(
        Annotated[
            dict[str, Annotated[dict[str, str], Field(min_length=1, max_length=MOST_VALUES)]],
            Field(max_length=MOST_HEADERS),
        ]
    ),
    Allowed(
        f"a mapping of at most {MOST_HEADERS} header names that are not ours, each to a mapping of 1 to {MOST_VALUES} "
        "values (whole numbers or words) to classes"
    ),
]
