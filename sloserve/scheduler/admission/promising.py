"""Promises at admission: whether a request's targets can be kept with a probability, given what is promised already.

A promised request comes before all requests without a promise (:meth:`~sloserve.lso.plan.Snapshot.levels`), so that
only other promised requests are ahead of it. Its latency is predicted from these: TTFT = service of its prompt +
promised requests that wait * seconds from one start of a promised request to the next; e2e and TPOT as for any request.
What is judged is one number, the *use* of the targets: the largest of latency over target. A promise is kept if the use
is at most 1, so one calibrated quantile of the use covers all targets of a request together; no correction for several
targets is needed. The calibration is by class, of promised requests alone.

A promise is given if either of two calibrated quantiles is at most 1: of the use by promised requests of the class, or
of the use by all its requests with targets, predicted behind the class's queue. The latter is sure whatever was learnt
of promised requests, since a promised request is served no later than others. It decides until enough promises have
ended, and again after promises were given up for a while.

Each promised request that waits has a slack: the seconds by which it can be delayed further and is still promised its
targets. A later promised request that is due earlier takes its own service out of the slack; it gets no promise if that
leaves any slack below 0. So no promise is given at the expense of an earlier one.

The price of a promise is the delay that it causes: its service, for each request that waits without a promise.

Requests that are aborted close their prediction and teach nothing. Memory is bounded by the requests in flight, of
which at most ``MOST_WAITING`` wait with a promise. Deterministic: time is an argument, in seconds of a clock that is
never set.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from sloserve.core.errors import PromiseRefused
from sloserve.core.finished import Latency
from sloserve.core.predicted import LEVELS
from sloserve.core.promises import Promised
from sloserve.core.slo import Targets
from sloserve.estimator.conformal import ConformalQuantiles, Prediction
from sloserve.scheduler.admission.drain_rates import SteadyRate
from sloserve.scheduler.admission.prediction import ArrivingRequest, Figure, Forecast

MOST_WAITING: Final = 1024
"""Most requests that wait with a promise: each further promise looks at the slack of all of them."""


@dataclass(slots=True, eq=False)
class OpenUse:
    """A request with targets that has not ended.

    Args:
        slo_class: Name of its class.
        targets: Targets of the request.
        arrival_s: Time from which the targets count.
        of_class: Prediction of the use as of any request of the class; ``None`` if it cannot be predicted.
        of_promised: Prediction of the use as of a promised request; ``None`` without a promise.
        promised: The promise; ``None`` for none.
        service_s: Seconds that the prompt takes of the engine.
        slack_s: Seconds by which a promised request can be delayed further.
        waits: Whether its first token is still to come.
    """

    slo_class: str
    targets: Targets
    arrival_s: float
    of_class: Prediction | None
    of_promised: Prediction | None = None
    promised: Promised | None = None
    service_s: float = 0.0
    slack_s: float = 0.0
    waits: bool = True

    @property
    def due_s(self) -> float:
        """Time of its next deadline; the arrival for targets of the pace alone."""
        return self.arrival_s + (self.targets.next_s() or 0.0)


@dataclass(slots=True)
class _OfClass:
    """What is learnt of the use of targets in one class: by all requests with targets, and by promised ones alone."""

    every: ConformalQuantiles = field(default_factory=lambda: ConformalQuantiles(LEVELS))
    promised: ConformalQuantiles = field(default_factory=lambda: ConformalQuantiles(LEVELS))


class Promising:
    """Gives promises, and learns from the latencies of the requests that have them."""

    def __init__(self, class_names: Iterable[str]) -> None:
        """Create a book of promises without any.

        Args:
            class_names: Names of the service classes.
        """
        self._classes = {name: _OfClass() for name in class_names}
        self._waiting: dict[OpenUse, None] = {}
        self._rate, self._instances, self._serves = SteadyRate(), 1, True
        self._seen_s: float | None = None
        self._due: list[tuple[float, int, ConformalQuantiles, Prediction, float]] = []
        self._counter = 0

    @property
    def waiting(self) -> int:
        """Number of requests that wait with a promise."""
        return len(self._waiting)

    def serves_with(self, instances: int) -> None:
        """Note how many instances serve the requests now: with more, promised requests start sooner one after another.

        Without any there are no promises: when the next one will serve is not known well enough.
        """
        self._serves = instances > 0
        if instances > 0 and instances != self._instances:
            self._rate.scale(self._instances / instances)
            self._instances = instances

    def foresee(self, new: ArrivingRequest, forecast: Forecast, now_s: float) -> OpenUse:
        """Predict how a request that has targets will use them; it gets no promise.

        Args:
            new: The request.
            forecast: Prediction of the request as one without a promise.
            now_s: The present time, in seconds.
        """
        self._pass_time(now_s)
        every, uses = self._classes[new.slo.slo_class.name].every, []
        for target_s, figure in _judged(new.slo.targets, forecast):
            uses.append(None if figure is None else figure.prediction.predicted / target_s)
        known = [use for use in uses if use is not None]
        of_class = every.predict(max(known)) if len(known) == len(uses) else None
        return OpenUse(new.slo.slo_class.name, new.slo.targets, new.arrival_s, of_class)

    def watch(self, one: OpenUse) -> None:
        """Note that the request was admitted, so that quantiles of its use can be passed before it ends."""
        of_class = self._classes[one.slo_class]
        for quantiles, prediction in ((of_class.every, one.of_class), (of_class.promised, one.of_promised)):
            if prediction is None or prediction.quantiles is None:
                continue
            quantiles.awaits(prediction)
            if one.targets.e2e_s is None:
                continue
            for level, use in prediction.quantiles.items():
                self._counter += 1
                at_s = one.arrival_s + use * one.targets.e2e_s
                heapq.heappush(self._due, (at_s, self._counter, quantiles, prediction, level))

    def promise(self, one: OpenUse, new: ArrivingRequest, forecast: Forecast, others_waiting: int) -> None:
        """Promise a request its targets.

        Args:
            one: Use of the targets by the request.
            new: The request, which asks for a promise.
            forecast: Prediction of the request as one without a promise.
            others_waiting: Number of requests that wait without a promise.

        Raises: PromiseRefused, and nothing has changed.
        """
        assert new.slo.promise is not None
        level = next(known for known in LEVELS if known >= new.slo.promise.level)
        if not self._serves:
            raise _refused(new, "late", "no instance serves the model now")
        predicted = self._predict_promised(new, forecast)
        if predicted is None or forecast.ttft is None:
            raise _refused(new, "unknown", "too few requests of its class have ended to tell")
        of_promised = self._classes[one.slo_class].promised.predict(predicted)
        known = [one.quantiles[level] for one in (of_promised, one.of_class) if one is not None and one.quantiles]
        if not known:
            raise _refused(new, "unknown", "too few requests of its class have ended to tell")
        if (use := min(known)) > 1.0:
            raise _refused(new, "late", f"a latency of {use:.3g} times its target is predicted at that probability")
        service_s = forecast.ttft.unqueued_s
        self._take_slack(new, one.due_s, service_s)
        one.of_promised, one.promised, one.service_s = (
            of_promised,
            Promised(level, service_s * others_waiting),
            service_s,
        )
        times_s = [target_s for target_s in (one.targets.ttft_s, one.targets.e2e_s) if target_s is not None]
        one.slack_s = min(times_s, default=0.0) * (1.0 - use)
        self._waiting[one] = None

    def started(self, one: OpenUse, ttft_s: float, now_s: float) -> None:
        """Record that the first token of a request is out after ``ttft_s``."""
        self._pass_time(now_s)
        if one in self._waiting:
            self._rate.start()
        self._leave(one)
        if one.targets.stated == ("ttft_s",):
            self._learn(one, Latency(ttft_s, 0.0, ttft_s))

    def ended(self, one: OpenUse, latency: Latency | None, now_s: float) -> None:
        """Record that a request has ended.

        Args:
            one: The use of its targets.
            latency: Latency of the request; ``None`` unless it was completed as predicted, in one call of the engine.
            now_s: The present time, in seconds.
        """
        self._pass_time(now_s)
        self._leave(one)
        if latency is not None:
            self._learn(one, latency)
            return
        of_class, elapsed_s = self._classes[one.slo_class], max(now_s - one.arrival_s, 0.0)
        used = 0.0 if one.targets.e2e_s is None else elapsed_s / one.targets.e2e_s
        for quantiles, prediction in ((of_class.every, one.of_class), (of_class.promised, one.of_promised)):
            if prediction is not None and not prediction.over:
                quantiles.left(prediction, used)

    def _predict_promised(self, new: ArrivingRequest, forecast: Forecast) -> float | None:
        """Return the use of its targets that is predicted behind the promised requests; ``None`` if it is not known."""
        if forecast.ttft is None:
            return None
        interval_s = self._rate.interval_s
        wait_s = len(self._waiting) * (forecast.ttft.unqueued_s if interval_s is None else interval_s)
        uses = []
        for target_s, figure in _judged(new.slo.targets, forecast):
            if figure is None:
                return None
            uses.append((figure.unqueued_s + (0.0 if figure is forecast.tpot else wait_s)) / target_s)
        return max(uses)

    def _take_slack(self, new: ArrivingRequest, due_s: float, service_s: float) -> None:
        """Take the service of a promised request out of the slack of the requests that it may be served before.

        Raises: PromiseRefused, and nothing has changed.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise _refused(new, "others", f"{MOST_WAITING} requests wait with a promise, and no more may")
        later = [one for one in self._waiting if one.due_s > due_s]
        if any(one.slack_s < service_s for one in later):
            raise _refused(new, "others", "it would delay a request that was promised its targets before")
        for one in later:
            one.slack_s -= service_s

    def _leave(self, one: OpenUse) -> None:
        one.waits = False
        self._waiting.pop(one, None)

    def _learn(self, one: OpenUse, latency: Latency) -> None:
        use, of_class = use_of(one.targets, latency), self._classes[one.slo_class]
        for quantiles, prediction in ((of_class.every, one.of_class), (of_class.promised, one.of_promised)):
            if prediction is not None and not prediction.over:
                quantiles.observe(prediction, use)

    def _pass_time(self, now_s: float) -> None:
        if self._waiting and self._seen_s is not None and now_s > self._seen_s:
            self._rate.pass_time(now_s - self._seen_s)
        self._seen_s = now_s
        while self._due and self._due[0][0] < now_s:
            _, _, quantiles, prediction, level = heapq.heappop(self._due)
            quantiles.ran_out(prediction, level)


def use_of(targets: Targets, latency: Latency) -> float:
    """Return the use of the targets by a request: the largest of latency over target."""
    found = (
        (targets.ttft_s, latency.ttft_s),
        (targets.e2e_s, latency.e2e_s),
        (targets.pace_s, latency.tpot_s),
    )
    return max(actual_s / target_s for target_s, actual_s in found if target_s is not None)


def _judged(targets: Targets, forecast: Forecast) -> Iterator[tuple[float, Figure | None]]:
    """Yield the seconds of each target with its predicted figure, which is ``None`` if it is not known."""
    for target_s, figure in (
        (targets.ttft_s, forecast.ttft),
        (targets.e2e_s, forecast.e2e),
        (targets.pace_s, forecast.tpot),
    ):
        if target_s is not None:
            yield target_s, figure


def _refused(new: ArrivingRequest, why: str, because: str) -> PromiseRefused:
    assert new.slo.promise is not None
    return PromiseRefused(
        f"promise of {new.slo.promise.level:g}: {because}; retry later, ask for larger targets, or send "
        "x-slo-promise-fallback: 1 to be served without the promise",
        why,
        new.slo.slo_class.name,
    )
