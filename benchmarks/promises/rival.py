"""What predicts the latency of a request at its arrival: the product, and its rivals, on the same recorded events."""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np
from scipy.stats import gamma

from sloserve.core.finished import Latency
from sloserve.core.predicted import LEVELS, PREDICTED
from sloserve.core.slo import SLO
from sloserve.estimator.step_time.running_fit import RunningMean
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.ticket import Ticket

Quantiles = list[list[float]]
"""Seconds by figure of ``PREDICTED`` and level of ``LEVELS``; not a number for what is not predicted."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What is known of a request when it arrives.

    Args:
        index: Number of the request.
        class_id: Index of its class.
        slo: Class and targets.
        arrival_s: Time of its arrival by the clock of the front end.
        prompt_tokens: Length of its prompt.
        max_tokens: Most tokens of its output.
    """

    index: int
    class_id: int
    slo: SLO
    arrival_s: float
    prompt_tokens: int
    max_tokens: int


class Rival(ABC):
    """What predicts latencies at arrival, and learns from what the front end sees."""

    @abstractmethod
    def arrives(self, new: Arrival, now_s: float) -> Quantiles:
        """Return the prediction of a request that arrives and is admitted."""

    @abstractmethod
    def starts(self, index: int, now_s: float) -> None:
        """Record that the first token of a request leaves."""

    @abstractmethod
    def ends(self, index: int, latency: Latency | None, tokens: int, now_s: float) -> None:
        """Record that a request has ended; ``latency`` is ``None`` if its client left before."""


def no_quantiles() -> Quantiles:
    """Return the prediction of what predicts nothing yet."""
    return [[np.nan] * len(LEVELS) for _ in PREDICTED]


class Product(Rival):
    """The product's own admission, which refuses no request."""

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self._admission = Admission(class_names, lambda place: True)
        self._tickets: dict[int, Ticket] = {}

    def arrives(self, new: Arrival, now_s: float) -> Quantiles:
        request = ArrivingRequest(new.slo, now_s, new.prompt_tokens, new.max_tokens)
        forecast = self._admission.forecast(request, now_s)
        self._tickets[new.index] = self._admission.admit(request, forecast, new.index, now_s)
        found, predicted = no_quantiles(), forecast.predicted
        if predicted is not None:
            for name, quantiles in predicted.figures():
                found[PREDICTED.index(name)] = list(quantiles.each)
        return found

    def starts(self, index: int, now_s: float) -> None:
        self._tickets[index].started(now_s)

    def ends(self, index: int, latency: Latency | None, tokens: int, now_s: float) -> None:
        self._tickets.pop(index).ended(latency, tokens, now_s)


class LastOutcomes(Rival):
    """Quantiles of the last 1,000 outcomes of the class, whatever waits."""

    COUNT = 1000

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self._latest: defaultdict[tuple[int, int], deque[float]] = defaultdict(lambda: deque(maxlen=self.COUNT))
        self._sorted: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
        self._arrived: dict[int, Arrival] = {}

    def arrives(self, new: Arrival, now_s: float) -> Quantiles:
        self._arrived[new.index] = new
        found = no_quantiles()
        for figure in range(len(PREDICTED)):
            seen = self._sorted[new.class_id, figure]
            if len(seen) > 1:
                ranks = [min(level * (len(seen) + 1), len(seen)) - 1.0 for level in LEVELS]
                found[figure] = [seen[max(round(rank), 0)] for rank in ranks]
        return found

    def starts(self, index: int, now_s: float) -> None:
        new = self._arrived[index]
        self._add(new.class_id, 0, now_s - new.arrival_s)

    def ends(self, index: int, latency: Latency | None, tokens: int, now_s: float) -> None:
        new = self._arrived.pop(index)
        if latency is not None:
            if tokens > 1:
                self._add(new.class_id, 1, latency.tpot_s)
            self._add(new.class_id, 2, latency.e2e_s)

    def _add(self, class_id: int, figure: int, outcome_s: float) -> None:
        latest, seen = self._latest[class_id, figure], self._sorted[class_id, figure]
        if len(latest) == self.COUNT:
            del seen[bisect_left(seen, latest[0])]
        latest.append(outcome_s)
        insort(seen, outcome_s)


class QueueTimesService(Rival):
    """Requests of the class that wait, this one counted, times the mean service; the mean decode comes after that.

    The mean service is the mean TTFT of requests that found no other waiting. Services and decodes are taken to be
    independent and exponential, and quantiles of their sum are those of a gamma distribution of the same mean and
    variance. It says nothing of TPOT.
    """

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self._waiting: list[dict[int, bool]] = [{} for _ in class_names]
        self._service_s = [RunningMean() for _ in class_names]
        self._decode_s = [RunningMean() for _ in class_names]
        self._arrived: dict[int, Arrival] = {}

    def arrives(self, new: Arrival, now_s: float) -> Quantiles:
        alone = not any(self._waiting)
        ahead = len(self._waiting[new.class_id])
        self._waiting[new.class_id][new.index] = alone
        self._arrived[new.index] = new
        found = no_quantiles()
        service_s, decode_s = self._service_s[new.class_id].value, self._decode_s[new.class_id].value
        if service_s is not None:
            mean_s, variance = (ahead + 1) * service_s, (ahead + 1) * service_s**2
            found[0] = _gamma_quantiles(mean_s, variance)
            if decode_s is not None:
                found[2] = _gamma_quantiles(mean_s + decode_s, variance + decode_s**2)
        return found

    def starts(self, index: int, now_s: float) -> None:
        new = self._arrived[index]
        if self._waiting[new.class_id].pop(index, False):
            self._service_s[new.class_id].add(now_s - new.arrival_s)

    def ends(self, index: int, latency: Latency | None, tokens: int, now_s: float) -> None:
        new = self._arrived.pop(index)
        self._waiting[new.class_id].pop(index, None)
        if latency is not None:
            self._decode_s[new.class_id].add(latency.e2e_s - latency.ttft_s)


def _gamma_quantiles(mean: float, variance: float) -> list[float]:
    return [float(value) for value in gamma.ppf(LEVELS, mean**2 / variance, scale=variance / mean)]
