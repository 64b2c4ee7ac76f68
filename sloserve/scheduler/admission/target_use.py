"""The use of targets by a request: the largest of latency over target, 1 for a request that just keeps them all."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sloserve.core.finished import Latency
from sloserve.core.promises import Promised
from sloserve.core.slo import Targets
from sloserve.estimator.conformal import Prediction
from sloserve.scheduler.admission.prediction import Figure, Forecast


@dataclass(slots=True, eq=False)
class OpenUse:
    """A request with targets that has not ended.

    Args:
        slo_class: Name of its class.
        targets: Targets of the request.
        arrival_s: Time from which the targets count.
        of_class: Predicted use as of any request of the class; ``None`` if it cannot be predicted.
        of_promised: Predicted use as of a promised request; ``None`` without a promise.
        prediction: Quantiles around it; ``None`` without a promise.
        promised: The promise; ``None`` for none.
        service_s: Seconds that the prompt takes of the engine.
        slack_s: Seconds by which a promised request can be delayed further.
        wait_s: Seconds from its arrival for which a promised request is predicted to wait for others at most.
        waits: Whether its first token is still to come.
        is_judged: Whether it is known that it keeps or misses its targets, or that this will never be known.
        is_watched: Whether it was admitted and has not ended.
        is_complete: Whether its last token is out, while it may still go on or be read.
    """

    slo_class: str
    targets: Targets
    arrival_s: float
    of_class: float | None
    of_promised: float | None = None
    prediction: Prediction | None = None
    promised: Promised | None = None
    service_s: float = 0.0
    slack_s: float = 0.0
    wait_s: float = 0.0
    waits: bool = True
    is_judged: bool = False
    is_watched: bool = False
    is_complete: bool = False

    @property
    def least_s(self) -> float:
        """The shorter one of the targets for the first token and the whole; 0 for targets of the pace alone."""
        return min(
            (limit_s for limit_s in (self.targets.ttft_s, self.targets.e2e_s) if limit_s is not None), default=0.0
        )

    @property
    def first_from_s(self) -> float:
        """Time from which on it comes first; without a promise the time of its arrival."""
        return self.arrival_s + (0.0 if self.promised is None else self.promised.first_after_s)

    @property
    def due_s(self) -> float:
        """Time of its next deadline; the arrival for targets of the pace alone."""
        return self.arrival_s + (self.targets.next_s() or 0.0)


def predicted_use(targets: Targets, forecast: Forecast, wait_s: float | None) -> float | None:
    """Return the predicted use of the targets; ``None`` if a figure is not known.

    Args:
        targets: Targets of the request.
        forecast: Prediction of the request.
        wait_s: Seconds that it waits for others; ``None`` for the wait of the forecast.
    """
    uses = []
    for target_s, figure in _judged(targets, forecast):
        if figure is None:
            return None
        waits_s = 0.0 if figure is forecast.tpot else wait_s
        predicted_s = figure.prediction.predicted if waits_s is None else figure.unqueued_s + waits_s
        uses.append(predicted_s / target_s)
    return max(uses)


def use_of(targets: Targets, latency: Latency) -> float:
    """Return the use of the targets by a request: the largest of latency over target."""
    found = (targets.ttft_s, latency.ttft_s), (targets.e2e_s, latency.e2e_s), (targets.pace_s, latency.tpot_s)
    return max(actual_s / target_s for target_s, actual_s in found if target_s is not None)


def class_factor(targets: Targets, forecast: Forecast, level: float) -> float:
    """Return the largest factor, at least 1, by which a latency of the class exceeds its prediction at a level."""
    factors = [1.0]
    for _, figure in _judged(targets, forecast):
        factor = None if figure is None else figure.factor(level)
        factors.append(math.inf if factor is None else factor)
    return max(factors)


def _judged(targets: Targets, forecast: Forecast) -> Iterator[tuple[float, Figure | None]]:
    """Yield the seconds of each target with its predicted figure, which is ``None`` if it is not known."""
    for target_s, figure in (
        (targets.ttft_s, forecast.ttft),
        (targets.e2e_s, forecast.e2e),
        (targets.pace_s, forecast.tpot),
    ):
        if target_s is not None:
            yield target_s, figure
