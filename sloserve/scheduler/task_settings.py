"""Types of the settings of tasks: how requests name them, and how many are known for how long."""

from typing import Annotated, Any, Final

from pydantic import Field, PlainValidator

from sloserve.core.files.json_schema import Written
from sloserve.core.files.model import Allowed
from sloserve.core.tasks import MOST_TASKS
from sloserve.scheduler.tenant_settings import HEADER_NAME
from sloserve.wire.headers import is_ours
from sloserve.wire.tasks import BODY, BODY_ALIASES

MOST_ALIASES: Final = 32


def _aliases(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError
    names = [name.lower() for name in value if isinstance(name, str)]
    if len(names) != len(value) or len(names) > MOST_ALIASES:
        raise ValueError
    for name in names:
        is_known = name in BODY_ALIASES if name.startswith(BODY) else HEADER_NAME.fullmatch(name) and not is_ours(name)
        if not is_known:
            raise ValueError
    return tuple(dict.fromkeys(names))


TaskAliases = Annotated[
    tuple[str, ...],
    PlainValidator(_aliases),
    Written(Annotated[list[str], Field(max_length=MOST_ALIASES)]),
    Allowed(f"a list of at most {MOST_ALIASES} header names that are not ours, or of {', '.join(BODY_ALIASES)}"),
]
MaxTasks = Annotated[int, Field(strict=True, ge=1, le=MOST_TASKS), Allowed(f"a whole number from 1 to {MOST_TASKS}")]
