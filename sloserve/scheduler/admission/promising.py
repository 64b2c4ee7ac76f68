"""Promises at admission: whether a request's targets can be kept with a probability, given what is promised already.

A promised request comes before all requests without a promise (:meth:`~sloserve.lso.plan.Snapshot.levels`), so that
only promised requests that are due earlier are ahead of it. Its latency is predicted from these: TTFT = service of its
prompt + their number * seconds from one start of a promised request to the next; e2e and TPOT as for any request.
The use of its targets is the largest of predicted latency over target. From it follows the risk that any target is
missed (:mod:`sloserve.estimator.miss_risk`), for all targets together, so that no correction for several is needed.

A promise is given if one of three calibrated figures allows it:

- the risk among promised requests of the class;
- the risk among all its requests with targets, with the use that is predicted behind the class's queue, or behind the
  promised requests of all classes if that is more: it is valid whatever was learnt of promised requests, since a
  promised request is served no later than others of its class;
- the quantile of the use among promised requests (:mod:`sloserve.estimator.conformal`) is at most 1. A risk says
  nothing of a use that is greater than all uses before, nor of a server that has been overloaded since it began. Until
  promises have ended, the quantiles of the class stand in, with factors of at least 1.

Each promised request that waits has a slack: the seconds by which it can be delayed further until its use is as large
as the largest one of small risk. A later promised request that is due earlier takes its own service out of the slack;
it gets no promise if that leaves any slack below 0. What is predicted holds for orders by deadline; under others, and
beside other API processes, the calibration makes up for what the prediction leaves out.

For a part of the time that a promised request has to spare it is served in the policy's own order, and then first. That
delay counts as use, so that a class with much time to spare is not promised all of an overloaded engine: without it, 90
of 100 batch lines and 2 of 100 chats were promised at 1.5 times the load, and fewer requests were in time in all.

The price of a promise is the delay that it causes: its service, for each request that waits without a promise.

Misses are counted as soon as a deadline has passed, and requests that are aborted before that are not counted. Memory
is bounded by the requests in flight, of which at most ``MOST_WAITING`` wait with a promise. Deterministic: time is an
argument, in seconds of a clock that is never set.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from sloserve.core.errors import PromiseRefused
from sloserve.core.finished import Latency
from sloserve.core.predicted import LEVELS
from sloserve.core.promises import Promised
from sloserve.estimator.conformal import ConformalQuantiles
from sloserve.estimator.miss_risk import MissRisk
from sloserve.scheduler.admission.drain_rates import SteadyRate
from sloserve.scheduler.admission.prediction import ArrivingRequest, Forecast
from sloserve.scheduler.admission.target_use import OpenUse, class_factor, predicted_use, use_of

MOST_WAITING: Final = 1024
"""Most requests that wait with a promise: each further promise looks at the slack of all of them."""
RESERVE: Final = 0.5
"""Part of the risk that a level allows up to which promises are given.

A risk is the least of several shares, which is less than each of them is on average.
"""
KEPT_BACK: Final = 0.5
MOST_KEPT_BACK_S: Final = 5.0
"""Part of the time that a promised request has to spare for which it comes first, and the most seconds of it.

It is served in the policy's own order before that. What delays a request that comes first, such as long steps, lasts
seconds whatever its targets are. Half of a minute made promised batches go before chats without a promise that would
have been in time, a tenth of a second breaks promises of chats.
"""
_DEADLINES_AT_REST: Final = 4096
"""Deadlines of requests that have ended up to which they are not dropped."""
_ROUNDING: Final = 1e-9
_LEAST_USE: Final = 1e-6


class _Due(Enum):
    """What is due of a request at a time."""

    BEGINNING = auto()
    FIRST_TOKEN = auto()
    LAST_TOKEN = auto()


@dataclass(slots=True)
class _OfClass:
    """What is learnt of one class: the risk of all requests with targets, and risk and use of promised ones alone."""

    every: MissRisk = field(default_factory=MissRisk)
    promised: MissRisk = field(default_factory=MissRisk)
    uses: ConformalQuantiles = field(default_factory=lambda: ConformalQuantiles(LEVELS))


class Promising:
    """Gives promises, and learns from the latencies of the requests that have them."""

    def __init__(self, class_names: Iterable[str]) -> None:
        """Create an empty set of promises.

        Args:
            class_names: Names of the service classes.
        """
        self._classes = {name: _OfClass() for name in class_names}
        self._waiting: dict[OpenUse, None] = {}
        self._rate, self._instances, self._serves = SteadyRate(), 1, True
        self._seen_s: float | None = None
        self._deadlines: list[tuple[float, int, OpenUse, _Due]] = []
        self._counter = self._in_flight = 0

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
        predicted = predicted_use(new.slo.targets, forecast, None)
        return OpenUse(new.slo.slo_class.name, new.slo.targets, new.arrival_s, predicted)

    def watch(self, one: OpenUse, *, streamed: bool) -> None:
        """Note that the request was admitted, so that its deadlines can pass.

        Args:
            one: Use of the targets by the request.
            streamed: Whether its first token is seen when it leaves; else it may have come in time.
        """
        self._in_flight += 1
        one.is_watched = True
        if one.prediction is not None:
            self._classes[one.slo_class].uses.awaits(one.prediction)
        if one.targets.ttft_s is not None and streamed:
            self._due(one, one.arrival_s + one.targets.ttft_s, _Due.FIRST_TOKEN)
        if one.targets.e2e_s is not None:
            self._due(one, one.arrival_s + one.targets.e2e_s, _Due.LAST_TOKEN)
        if one.promised is not None and not streamed:
            self._due(one, one.arrival_s + one.wait_s + one.service_s, _Due.BEGINNING)

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
        level, of_class = new.slo.promise.level, self._classes[one.slo_class]
        if not self._serves:
            raise _refused(new, "late", "no instance serves the model now")
        wait_s = self._wait_s(forecast, one.due_s)
        use = predicted_use(new.slo.targets, forecast, wait_s)
        if use is None or one.of_class is None or forecast.ttft is None:
            raise _refused(new, "unknown", "too few requests of its class have ended to tell")
        use = max(use, _LEAST_USE)
        most = RESERVE * (1.0 - level) + _ROUNDING
        # Behind the queue of its class alone it would not see what was promised to other classes.
        behind_all = max(one.of_class, use)
        is_safe = of_class.promised.is_at_most(most, use) or of_class.every.is_at_most(most, behind_all)
        at = next(known for known in LEVELS if known >= level)
        prediction = of_class.uses.predict(use)
        quantile = class_factor(new.slo.targets, forecast, at) * use
        if prediction.quantiles is not None:
            quantile = prediction.quantiles[at]
        if not is_safe and quantile > 1.0:
            needed = math.ceil(1.0 / (RESERVE * (1.0 - level))) - 1
            if len(of_class.every) < needed:
                text = (
                    f"{len(of_class.every)} requests of its class with targets have ended, {needed} are needed to tell"
                )
                raise _refused(new, "unknown", text)
            raise _refused(
                new, "late", f"a latency of {quantile:.3g} times its target is predicted at that probability"
            )
        one.service_s = self._service_s(new, forecast)
        self._take_slack(new, one.due_s, one.service_s)
        one.of_promised, one.prediction = use, prediction
        # The use may become as large as one of small risk, or as one with a quantile of 1.
        safe = max(min(of_class.promised.safe_use(most), 1.0), use / quantile)
        spare_s = one.least_s * max(1.0 - max(quantile, use), 0.0)
        first_after_s = spare_s - min(KEPT_BACK * spare_s, MOST_KEPT_BACK_S)
        one.slack_s = max(one.least_s * (safe - use) - first_after_s, spare_s - first_after_s)
        one.wait_s = first_after_s + wait_s
        one.promised = Promised(level, one.service_s * others_waiting, first_after_s)
        self._waiting[one] = None

    def take_over(
        self, one: OpenUse, new: ArrivingRequest, forecast: Forecast, others_waiting: int, first_after_s: float
    ) -> None:
        """Take over a promise that a gateway has given, whatever is known here: the client has been promised it.

        Args:
            one: Use of the targets by the request.
            new: The request.
            forecast: Prediction of the request as one without a promise.
            others_waiting: Number of requests that wait without a promise.
            first_after_s: Seconds from its arrival after which it comes first.
        """
        assert new.slo.promise is not None
        wait_s = self._wait_s(forecast, one.due_s)
        use = predicted_use(new.slo.targets, forecast, wait_s)
        if use is not None:
            one.of_promised = max(use, _LEAST_USE)
            one.prediction = self._classes[one.slo_class].uses.predict(one.of_promised)
            one.slack_s = max(one.least_s * (1.0 - one.of_promised) - first_after_s, 0.0)
        one.service_s = self._service_s(new, forecast)
        one.wait_s = first_after_s + wait_s
        one.promised = Promised(new.slo.promise.level, one.service_s * others_waiting, first_after_s)
        if len(self._waiting) < MOST_WAITING:
            self._waiting[one] = None

    def begins(self, one: OpenUse, now_s: float) -> None:
        """Record that the first token of a request is known to be out."""
        self._pass_time(now_s)
        if one in self._waiting:
            self._rate.start()
        self._leave(one)

    def started(self, one: OpenUse, ttft_s: float, now_s: float) -> None:
        """Record that the first token of a request came after ``ttft_s``."""
        self.begins(one, now_s)
        if one.targets.stated == ("ttft_s",):
            self._judge(one, Latency(ttft_s, 0.0, ttft_s))

    def holds(self, one: OpenUse) -> None:
        """Note that the request is complete, unless it goes on, so that no deadline of it passes any more."""
        one.is_complete = True

    def ended(self, one: OpenUse, latency: Latency | None, now_s: float) -> None:
        """Record that a request has ended.

        Args:
            one: Use of the targets by the request.
            latency: Latency of the request; ``None`` unless it was completed as predicted, in one call of the engine.
            now_s: The present time, in seconds.
        """
        self._pass_time(now_s)
        self._leave(one)
        if one.is_watched:
            one.is_watched = False
            self._in_flight -= 1
            self._drop_deadlines()
        if latency is not None:
            self._judge(one, latency)
            return
        one.is_judged = True
        if one.prediction is not None:
            used = 0.0 if one.targets.e2e_s is None else max(now_s - one.arrival_s, 0.0) / one.targets.e2e_s
            self._classes[one.slo_class].uses.left(one.prediction, used)

    def _service_s(self, new: ArrivingRequest, forecast: Forecast) -> float:
        """Return the seconds that the prompt takes of the engine; 0 if that is not known."""
        passed_s = max((self._seen_s or 0.0) - new.arrival_s, 0.0)
        return 0.0 if forecast.ttft is None else max(forecast.ttft.unqueued_s - passed_s, 0.0)

    def _wait_s(self, forecast: Forecast, due_s: float) -> float:
        """Return the seconds for which a promised request is predicted to wait for the ones that are due earlier."""
        interval_s = self._rate.interval_s
        if interval_s is None:
            interval_s = 0.0 if forecast.ttft is None else forecast.ttft.unqueued_s
        ahead = sum(one.due_s <= due_s for one in self._waiting)
        return ahead * interval_s

    def _take_slack(self, new: ArrivingRequest, due_s: float, service_s: float) -> None:
        """Take the service of a promised request out of the slack of the requests that it may be served before.

        Raises: PromiseRefused, and nothing has changed.
        """
        if len(self._waiting) >= MOST_WAITING:
            raise _refused(new, "others", f"{MOST_WAITING} requests wait with a promise, and no more may")
        # What is served while a request is still served in the policy's order does not delay it.
        later = [one for one in self._waiting if one.due_s > due_s and one.first_from_s < due_s]
        if any(one.slack_s < service_s for one in later):
            raise _refused(new, "others", "it would delay a request that was promised its targets before")
        for one in later:
            one.slack_s -= service_s

    def _due(self, one: OpenUse, at_s: float, what: "_Due") -> None:
        self._counter += 1
        heapq.heappush(self._deadlines, (at_s, self._counter, one, what))

    def _drop_deadlines(self) -> None:
        """Drop the deadlines of requests that have ended, once they are most of the deadlines."""
        if len(self._deadlines) > 4 * self._in_flight + _DEADLINES_AT_REST:
            self._deadlines = [deadline for deadline in self._deadlines if deadline[2].is_watched]
            heapq.heapify(self._deadlines)

    def _leave(self, one: OpenUse) -> None:
        one.waits = False
        self._waiting.pop(one, None)

    def _judge(self, one: OpenUse, latency: Latency | None) -> None:
        """Learn from a request, of which a deadline has passed if its latency is ``None``."""
        of_class = self._classes[one.slo_class]
        if one.prediction is not None and latency is not None and not one.prediction.over:
            of_class.uses.observe(one.prediction, use_of(one.targets, latency))
        if one.is_judged:
            return
        one.is_judged = True
        missed = latency is None or use_of(one.targets, latency) > 1.0 + _ROUNDING
        for risk, predicted in ((of_class.every, one.of_class), (of_class.promised, one.of_promised)):
            if predicted is not None:
                risk.add(predicted, missed=missed)

    def _pass_time(self, now_s: float) -> None:
        if self._waiting and self._seen_s is not None and now_s > self._seen_s:
            self._rate.pass_time(now_s - self._seen_s)
        self._seen_s = now_s
        while self._deadlines and self._deadlines[0][0] < now_s:
            _, _, one, what = heapq.heappop(self._deadlines)
            if what is _Due.BEGINNING:  # nothing shows when it begins, so that the prediction stands for it
                if one in self._waiting:
                    self._rate.start()
                self._leave(one)
            elif not one.is_complete and (one.waits or what is _Due.LAST_TOKEN):
                self._judge(one, None)


def _refused(new: ArrivingRequest, why: str, because: str) -> PromiseRefused:
    assert new.slo.promise is not None
    return PromiseRefused(
        f"promise of {new.slo.promise.level:g}: {because}; retry later, ask for larger targets, or send "
        "x-slo-promise-fallback: 1 to be served without the promise",
        why,
        new.slo.slo_class.name,
    )
