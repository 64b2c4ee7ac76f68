"""What a request states, read from the arguments that an engine gets with it."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from sloserve.core.rows import LENGTH_QUANTILES
from sloserve.core.slo import SLO, ClassTable
from sloserve.core.stated import StatedSLO
from sloserve.core.tasks import TaskNumbers
from sloserve.core.tenants import TenantTable
from sloserve.wire.xargs import (
    KEYS,
    PREFIX,
    PROMISE,
    PROMISE_FALLBACK,
    TASK_KEYS,
    parse_slo,
    predicted_length,
    progress,
    promised_first_s,
    stated_call,
    stated_output_tokens,
    stated_tenant,
)

KEPT: Final = 1024
"""Most combinations of statements that are remembered after the first reading: a deployment has few."""
_KEYS: Final = frozenset((*KEYS, *TASK_KEYS))
_FRONT_END_KEYS: Final = frozenset({"slo_output_tokens", PROMISE, PROMISE_FALLBACK})
_SLO_KEYS: Final = tuple(key for key in KEYS if key not in _FRONT_END_KEYS)
_ABSENT: Final = object()


class StatedReader:
    """Reads what requests state, by the classes of one deployment.

    Args:
        classes: The service classes.
        tenants: Table in which tenants get their numbers; ``None`` where tenants do not matter.
    """

    def __init__(self, classes: ClassTable, tenants: TenantTable | None = None) -> None:
        self._tenants, self._tasks = tenants, TaskNumbers()
        self._classes, self._ids = classes, {name: k for k, name in enumerate(classes.names)}
        # By type too: True is no number on the wire, and equals 1.
        self._known = lru_cache(KEPT, typed=True)(self._parse)

    def follow(self, classes: ClassTable) -> None:
        """Read the requests to come by ``classes``, which have the names of the classes so far."""
        self._classes = classes
        self._known.cache_clear()

    def read(self, extra_args: Mapping[str, Any] | None, adapter: str | None = None) -> StatedSLO:
        """Return what ``extra_args`` state; of a request's further call of the engine, what is left of its targets.

        Args:
            extra_args: Arguments that came with the request.
            adapter: Name of the request's LoRA adapter; ``None`` for the model itself.

        Raises: InvalidRequest, as :func:`~sloserve.wire.xargs.parse_slo` does.
        """
        args: Mapping[str, Any] = extra_args or {}
        unknown = [key for key in args if key not in _KEYS and isinstance(key, str) and key.startswith(PREFIX)]
        slo = None
        if not unknown:
            try:
                slo = self._known(*[args.get(key, _ABSENT) for key in _SLO_KEYS])
            except TypeError:  # a value that has no hash, and so is none that is allowed
                pass
        if slo is None:
            slo = parse_slo(args, self._classes)
        so_far = progress(args)
        if so_far is not None:
            elapsed_s, begun = so_far
            slo = SLO(slo.slo_class, slo.targets.left(elapsed_s, begun=begun))
        length = predicted_length(args, len(LENGTH_QUANTILES))
        account = 0 if self._tenants is None else self._tenants.account_of(stated_tenant(args), adapter)
        call = stated_call(args)
        task, class_id = self._tasks.number_of(call), self._ids[slo.slo_class.name]
        return StatedSLO(
            slo, class_id, stated_output_tokens(args), length, account, call, task, first_from_s=promised_first_s(args)
        )

    def _parse(self, *values: Any) -> SLO:
        stated = zip(_SLO_KEYS, values, strict=True)
        return parse_slo({key: value for key, value in stated if value is not _ABSENT}, self._classes)
