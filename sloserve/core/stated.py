"""What one request states, as the engine process keeps it: read once, when it is queued."""

from dataclasses import dataclass

from sloserve.core.slo import SLO


@dataclass(frozen=True, slots=True)
class StatedSLO:
    """What a request states. class_id: index of its class in the table. output_tokens: of the reply, where known.

    length: quantiles of the reply's length in tokens, at :data:`~sloserve.estimator.length.at_admission.LEVELS`, where
    the front end predicted them.
    """

    slo: SLO
    class_id: int
    output_tokens: int | None
    length: tuple[float, ...] | None = None
