"""What one request states, as the engine process keeps it: read once, when it is queued."""

from dataclasses import dataclass

from sloserve.core.slo import SLO
from sloserve.core.tasks import TaskCall


@dataclass(frozen=True, slots=True)
class StatedSLO:
    """What a request states.

    Args:
        class_id: Index of the request's class in the table of classes.
        output_tokens: Length of the output in tokens, where it is known.
        length: Quantiles of the output's length in tokens, at :data:`~sloserve.estimator.length.at_admission.LEVELS`,
            where the front end predicted them.
        account: Number of the account of the request's tenant, see :class:`~sloserve.core.tenants.TenantTable`.
        call: The task that the request is a call of; ``None`` for a request that is no part of a task.
        task: Number of that task, see :class:`~sloserve.core.tasks.TaskNumbers`; 0 for none.
        first_from_s: Epoch seconds from which on it comes before requests without a promise, as its targets were
            promised at its admission; ``None`` without a promise.
    """

    slo: SLO
    class_id: int
    output_tokens: int | None
    length: tuple[float, ...] | None = None
    account: int = 0
    call: TaskCall | None = None
    task: int = 0
    first_from_s: float | None = None
