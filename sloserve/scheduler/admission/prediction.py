"""TTFT and e2e latency of a request at its admission, from what the front end itself sees of earlier ones.

TTFT = time already passed + requests of its kind ahead * seconds from one start of its kind to the next + service of
its own prompt. Of one kind are the requests of a class that are equally urgent
(:mod:`sloserve.scheduler.admission.urgency`). Its queue and its rate are Little's law, so they hold under any policy: a
kind that others overtake starts more slowly, which is observed, not assumed. The service is a line in prompt tokens
through the TTFTs of requests that found no other waiting. A request with a promise waits no longer than until it is
served first and the promised requests ahead of it have begun. e2e = TTFT + output tokens, as stated, as the length
model predicts or as the class's outputs are long, within ``max_tokens`` * time per token of the kind at the load of
the moment.

What these estimates leave out (the order within a kind, what arrives later, the spread of lengths) is in the
calibration of each kind: quantiles of actual over predicted. As long as too few outcomes of a kind are known, the kind
of its class with most outcomes stands in. No quantile of e2e lies below the same quantile of TTFT.

All that is learnt of single requests is a median or a quantile, so that one outlier (the first request after a start, a
stall of the machine, one output of great length) moves no forecast beyond what ordinary requests say.

Events are calls with ``now_s``; no clock, no policy, no page. An event takes constant time except for the windows of
lengths and scores, which are bounded. All is deterministic. A request that is refused teaches nothing, so quantiles are
of admitted requests.
"""

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from sloserve.core.finished import Latency
from sloserve.core.predicted import LEVELS, MEDIAN, Predicted, Quantiles
from sloserve.core.slo import SLO
from sloserve.estimator.conformal import ConformalQuantiles, Prediction
from sloserve.estimator.length.at_admission import expected_tokens
from sloserve.estimator.length.empirical import EmpiricalLength
from sloserve.estimator.length.remaining import KnownRequests
from sloserve.estimator.step_time.running_fit import RunningLine
from sloserve.scheduler.admission.best_observed import Floors
from sloserve.scheduler.admission.outcomes import ClassOutcomes, LengthKnown
from sloserve.scheduler.admission.urgency import Urgency
from sloserve.scheduler.admission.waiting_queue import QueueAhead

_MAX_TOKENS = 2**31
_LEAST_S = 1e-3
"""Least remaining time in seconds that is predicted of a request that waits."""
_DUE_PER_REQUEST, _DUE_AT_REST = 16, 4096
"""Quantiles of a request in flight, and quantiles of requests that have ended, beyond which the latter are dropped."""


@dataclass(frozen=True, slots=True)
class ArrivingRequest:
    """What is known of a request at its admission; ``None`` for what is not known.

    Args:
        arrival_s: Time from which its latency counts, in seconds.
        output_tokens: The output's length in tokens as the client states it.
        num_outputs: Number of outputs for this one prompt; lengths are of each of them.
        streamed: Whether its first token is seen when it leaves.
        length_quantiles: Output tokens at ``LEVELS``, as the server's length model predicts them.
        key: Function that returns a key which is equal when a client resends the same request; called under overload
            alone.
        tenant: Name of its tenant.
    """

    slo: SLO
    arrival_s: float
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    output_tokens: int | None = None
    num_outputs: int = 1
    streamed: bool = True
    length_quantiles: Sequence[float] | None = None
    key: Callable[[], Hashable] | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One predicted figure, in seconds from arrival.

    Args:
        prediction: The prediction, by the outcomes of requests of its own kind.
        unqueued_s: Part of the figure that remains if no request waits ahead, in seconds.
        calibration: The stream of predictions that it belongs to.
        quantiles: The quantiles that hold, of another kind while its own has too few outcomes; ``None`` if no kind has
            enough.
    """

    prediction: Prediction
    unqueued_s: float
    calibration: ConformalQuantiles
    quantiles: Mapping[float, float] | None

    def factor(self, level: float) -> float | None:
        """Return the factor by which the prediction is multiplied at ``level``; ``None`` if it is unknown."""
        return None if self.quantiles is None else self.quantiles[level] / self.prediction.predicted

    def observe(self, actual_s: float) -> None:
        """Record the actual value."""
        self.calibration.observe(self.prediction, actual_s)


@dataclass(slots=True)
class RequestInFlight:
    """State of the server when a request arrived.

    Args:
        arrival_s: Time from which its latency counts, in seconds.
        streamed: Whether its first token is seen when it leaves.
        others: Number of requests in flight.
        in_flight: Whether the request itself is counted as in flight.
    """

    arrival_s: float
    streamed: bool
    others: int
    in_flight: bool = False


@dataclass(frozen=True, slots=True)
class Forecast:
    """The prediction of one request.

    Args:
        urgency: How urgently it is served.
        ahead: Number of requests of its class that waited.
        alone: Whether no request waited, in any class.
        arrived: When the request arrived, how many were in flight then, and whether it is one of them.
    """

    ttft: Figure | None
    e2e: Figure | None
    urgency: Urgency
    ahead: int
    alone: bool
    arrived: RequestInFlight
    tpot: Figure | None = None

    def figures(self) -> Iterator[Figure]:
        """Yield the figures that are predicted."""
        for figure in (self.ttft, self.tpot, self.e2e):
            if figure is not None:
                yield figure

    @property
    def predicted(self) -> Predicted | None:
        """The prediction for the client; ``None`` while nothing can be predicted."""
        found = Predicted(_quantiles_of(self.ttft), _quantiles_of(self.e2e), _quantiles_of(self.tpot))
        return found if any(found.figures()) else None


class Predictor:
    """Predictor of when a request will get its first token and its last, and of how sure that is."""

    def __init__(self, class_names: Iterable[str], levels: Iterable[float] = ()) -> None:
        """Create a predictor that has seen no request.

        Args:
            class_names: Names of the service classes.
            levels: Levels of the quantiles that are wanted besides :data:`~sloserve.core.predicted.LEVELS`.
        """
        wanted = tuple(sorted({*LEVELS, *levels}))
        self.floors = Floors()
        self._line = RunningLine()
        self._due: list[tuple[float, int, Figure, float]] = []
        self._counter = self._in_flight = 0
        self._now_s = -math.inf
        self._lengths = (
            EmpiricalLength()
        )  # for requests that no length model predicts; it takes account of outputs cut short
        self._classes = {name: ClassOutcomes(i, wanted) for i, name in enumerate(class_names)}

    def set_levels(self, levels: Iterable[float]) -> None:
        """Give the quantiles of ``levels`` beside the usual ones to later requests."""
        for of_class in self._classes.values():
            of_class.set_levels(tuple(sorted({*LEVELS, *levels})))

    def forecast(self, new: ArrivingRequest, queue: QueueAhead, now_s: float, *, alone: bool) -> Forecast:
        """Return the prediction of a request without a promise.

        Args:
            new: The request.
            queue: What waits ahead of it.
            now_s: The present time, in seconds.
            alone: Whether no request waits, in any class.
        """
        self._run_out(now_s)
        urgency = Urgency.stated_by(new.slo)
        arrived = RequestInFlight(new.arrival_s, new.streamed, self._in_flight)
        made = Forecast(None, None, urgency, queue.ahead, alone, arrived)
        service_s = self._line.at(new.prompt_tokens)
        if service_s is None:
            return made
        return self._figures(new, made, queue.wait_s(service_s), service_s, now_s)

    def with_promise(self, new: ArrivingRequest, forecast: Forecast, wait_s: float, now_s: float) -> Forecast:
        """Return the prediction of a request that is promised its targets.

        Args:
            new: The request.
            forecast: The prediction of the request without the promise.
            wait_s: Seconds from its arrival within which the promised requests ahead of it will have begun.
            now_s: The present time, in seconds.
        """
        service_s = self._line.at(new.prompt_tokens)
        if forecast.ttft is None or service_s is None:
            return replace(forecast, urgency=Urgency.PROMISED)
        without_s = forecast.ttft.prediction.predicted - forecast.ttft.unqueued_s
        made = replace(forecast, urgency=Urgency.PROMISED)
        return self._figures(new, made, min(wait_s, without_s), service_s, now_s)

    def _figures(self, new: ArrivingRequest, made: Forecast, wait_s: float, service_s: float, now_s: float) -> Forecast:
        """Return a forecast with its figures, for a request that waits ``wait_s`` for others."""
        of_class = self._classes[new.slo.slo_class.name]
        own, others = of_class.of(made.urgency), tuple(of_class.others(made.urgency))
        unqueued_s = max(now_s - new.arrival_s, 0.0) + service_s
        ttft = _figure(own.ttft, [kind.ttft for kind in others], unqueued_s, wait_s)
        tpot_s = of_class.tpot_s(made.urgency, made.arrived.others)
        if tpot_s is None:
            return replace(made, ttft=ttft)
        known, decode_s = _length_known(new), (self._output_tokens(of_class, new) - 1.0) * tpot_s
        alike = [kind.e2e[known] for kind in others]
        e2e = _figure(own.e2e[known], alike, unqueued_s + decode_s, wait_s, ttft.quantiles)
        tpot = _figure(own.tpot, [kind.tpot for kind in others], tpot_s, 0.0)
        return replace(made, ttft=ttft, e2e=e2e, tpot=tpot)

    def admitted(self, new: ArrivingRequest, forecast: Forecast) -> None:
        """Record that the request was admitted, so that its quantiles can be passed."""
        if not forecast.arrived.in_flight:
            forecast.arrived.in_flight = True
            self._in_flight += 1
        for figure in forecast.figures():
            figure.calibration.awaits(figure.prediction)
        # A first token that is not seen may have come in time.
        for seen in (forecast.ttft if new.streamed else None, forecast.e2e):
            if seen is not None:
                for level, limit_s in (seen.prediction.quantiles or {}).items():
                    self._counter += 1
                    heapq.heappush(self._due, (new.arrival_s + limit_s, self._counter, seen, level))

    def started(self, new: ArrivingRequest, forecast: Forecast, ttft_s: float, now_s: float) -> None:
        """Record that the first token of the request came after ``ttft_s``."""
        self._now_s = max(self._now_s, now_s)
        if forecast.alone and new.prompt_tokens is not None:
            self._line.add(new.prompt_tokens, ttft_s)
            self.floors.saw_ttft(new.prompt_tokens, ttft_s, now_s)
        if forecast.ttft is not None:
            forecast.ttft.observe(ttft_s)

    def gave_up(self, forecast: Forecast) -> None:
        """Record that the request ended early: close its quantiles, of which some may have passed."""
        self._leaves(forecast.arrived)
        # The time of the last event: a little less than the time now, of which this event does not say.
        passed_s = max(self._now_s - forecast.arrived.arrival_s, 0.0)
        if forecast.ttft is not None:
            forecast.ttft.calibration.left(forecast.ttft.prediction, passed_s if forecast.arrived.streamed else 0.0)
        if forecast.e2e is not None:
            forecast.e2e.calibration.left(forecast.e2e.prediction, passed_s)
        if forecast.tpot is not None:
            forecast.tpot.calibration.left(forecast.tpot.prediction, 0.0)

    def completed(
        self, new: ArrivingRequest, forecast: Forecast, latency: Latency, output_tokens: int, now_s: float
    ) -> None:
        """Record that the request is complete, after ``output_tokens`` in all its outputs."""
        self._now_s = max(self._now_s, now_s)
        self._leaves(forecast.arrived)
        output_tokens = max(output_tokens // new.num_outputs, 1)
        of_class = self._classes[new.slo.slo_class.name]
        if output_tokens > 1:
            of_class.of(forecast.urgency).pace.add(latency.tpot_s, new.arrival_s, forecast.arrived.others)
            if forecast.tpot is not None:
                forecast.tpot.observe(latency.tpot_s)
            self.floors.saw_tpot(output_tokens, latency.tpot_s, now_s)
        cut = new.max_tokens is not None and output_tokens >= new.max_tokens
        of_class.saw_length(changed=self._lengths.observe(of_class.id, output_tokens, cut=cut))
        if forecast.e2e is not None:
            forecast.e2e.prediction.over = False  # it was held while it might have gone on
            forecast.e2e.observe(latency.e2e_s)

    def _leaves(self, arrived: RequestInFlight) -> None:
        if arrived.in_flight:
            arrived.in_flight = False
            self._in_flight -= 1

    def _run_out(self, now_s: float) -> None:
        self._now_s = max(self._now_s, now_s)
        due = self._due
        while due and due[0][0] < now_s:
            _, _, figure, level = heapq.heappop(due)
            figure.calibration.ran_out(figure.prediction, level)
        # High quantiles pass long after most requests have ended, which would be kept until then.
        if len(due) > _DUE_PER_REQUEST * self._in_flight + _DUE_AT_REST:
            self._due = [one for one in due if not one[2].prediction.over]
            heapq.heapify(self._due)

    def _output_tokens(self, of_class: ClassOutcomes, new: ArrivingRequest) -> float:
        limit = _MAX_TOKENS if new.max_tokens is None else max(new.max_tokens, 1)
        if new.output_tokens is not None:
            return float(min(new.output_tokens, limit))
        if new.length_quantiles is not None:
            return expected_tokens(new.length_quantiles, limit)
        if of_class.length is None:
            none = np.zeros(1, np.int64)
            asked = KnownRequests(class_id=none + of_class.id, output_tokens=none, max_tokens=none + _MAX_TOKENS)
            of_class.length = float(self._lengths.rest(asked).quantile(MEDIAN)[0])
        return min(of_class.length, float(limit))

    def remaining_ttft(
        self, new: ArrivingRequest, urgency: Urgency, position: int, interval_s: float | None, now_s: float
    ) -> Quantiles | None:
        """Return the seconds from now to the first token of a waiting request; ``None`` while too little is known.

        Its start is the ``position``-th of its kind from now, and it takes at least the rest of its own service. What
        is left out is calibrated as at admission. Near the front of a queue chance decides: no upper quantile is below
        the quantile of the time that as many starts at random times take (a gamma distribution).

        Args:
            new: What is known of the request.
            urgency: How urgently it is served.
            position: Place among the waiting requests of its kind, 1 for the next.
            interval_s: Seconds from one start of its kind to the next; ``None`` if unknown.
            now_s: The present time, in seconds.
        """
        service_s = self._line.at(new.prompt_tokens)
        if service_s is None:
            return None
        starts_s = 0.0 if interval_s is None else position * interval_s
        left_s = max(service_s - max(now_s - new.arrival_s, 0.0), starts_s, _LEAST_S)
        of_class = self._classes[new.slo.slo_class.name]
        alike = [kind.ttft for kind in of_class.others(urgency)]
        found = _figure(of_class.of(urgency).ttft, alike, left_s, 0.0).quantiles
        if found is None:
            return None
        by_chance = {level: starts_s * _late_start(level, position) for level in LEVELS if level > MEDIAN}
        return Quantiles(*(max(found[level], by_chance.get(level, 0.0)) for level in LEVELS))


def _late_start(level: float, number: int) -> float:
    """Return the quantile of the time of the ``number``-th of starts at random times, over its mean.

    Source: Wilson and Hilferty, "The distribution of chi-square" (PNAS 1931).
    """
    ninth = 1.0 / (9.0 * number)
    return float((1.0 - ninth + NormalDist().inv_cdf(level) * ninth**0.5) ** 3)


def _length_known(new: ArrivingRequest) -> LengthKnown:
    if new.output_tokens is not None:
        return LengthKnown.STATED
    return LengthKnown.OF_CLASS if new.length_quantiles is None else LengthKnown.PREDICTED


def _figure(
    own: ConformalQuantiles,
    others: Sequence[ConformalQuantiles],
    unqueued_s: float,
    wait_s: float,
    at_least: Mapping[float, float] | None = None,
) -> Figure:
    prediction = own.predict(unqueued_s + wait_s, at_least)
    quantiles = prediction.quantiles
    if quantiles is None and others:
        quantiles = max(others, key=len).predict(unqueued_s + wait_s, at_least).quantiles
    return Figure(prediction, unqueued_s, own, quantiles)


def _quantiles_of(figure: Figure | None) -> Quantiles | None:
    if figure is None or figure.quantiles is None:
        return None
    return Quantiles(*(figure.quantiles[level] for level in LEVELS))
