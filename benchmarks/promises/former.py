"""The predictor as it was before p99 was calibrated: a rival of the product's, on the same events.

A quantile is the prediction times a quantile of the last 128 ratios of actual to predicted, taken at a level that rises
by 0.02 with each miss beyond the misses that are allowed. What waits and how fast it starts comes from the backlog of
the product, as it did.
"""

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.promises.rival import Arrival, Quantiles, Rival, no_quantiles
from sloserve.core.finished import Latency
from sloserve.core.predicted import LEVELS, MEDIAN
from sloserve.estimator.length.empirical import EmpiricalLength
from sloserve.estimator.length.remaining import KnownRequests
from sloserve.estimator.step_time.running_fit import RunningLine, RunningMedian
from sloserve.scheduler.admission.backlog import Backlog
from sloserve.scheduler.admission.urgency import Urgency
from sloserve.scheduler.admission.waiting_queue import WaitingPlace

WINDOW, RATE, MIN_SCORES = 128, 0.02, 8
_MAX_LEVEL, _BEYOND, _MAX_STALE, _MAX_TOKENS = 1.2, 100.0, 64, 2**31


@dataclass(slots=True, eq=False)
class _Made:
    predicted: float
    quantiles: Mapping[float, float] | None
    broken: set[float] = field(default_factory=set)
    over: bool = False


class FormerQuantiles:
    """Quantiles of one stream of predictions."""

    def __init__(self) -> None:
        self._at = {level: level for level in LEVELS}
        self._latest: deque[float] = deque(maxlen=WINDOW)
        self._sorted: list[float] = []

    def predict(self, predicted: float, at_least: Mapping[float, float] | None = None) -> _Made:
        if len(self._sorted) < MIN_SCORES:
            return _Made(predicted, None)
        found, least = {}, 0.0
        for level, at in self._at.items():
            bound = 0.0 if at_least is None else at_least[level]
            least = found[level] = max(self._factor(at) * predicted, least, bound)
        return _Made(predicted, found)

    def ran_out(self, made: _Made, level: float) -> None:
        if not made.over and level not in made.broken:
            made.broken.add(level)
            self._judge(level, kept=False)

    def observe(self, made: _Made, actual: float) -> None:
        for level, limit in (made.quantiles or {}).items():
            if actual > limit:
                self.ran_out(made, level)
            elif level not in made.broken:
                self._judge(level, kept=True)
        made.over = True
        score = max(actual, 1e-9) / max(made.predicted, 1e-9)
        if len(self._latest) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._latest[0])]
        self._latest.append(score)
        insort(self._sorted, score)

    def _judge(self, level: float, *, kept: bool) -> None:
        at = self._at[level] + RATE * ((0.0 if kept else 1.0) - (1.0 - level))
        self._at[level] = min(max(at, 0.0), _MAX_LEVEL)

    def _factor(self, at: float) -> float:
        scores, most = self._sorted, len(self._sorted) - 2
        rank = at * (len(scores) + 1) - 1.0
        if rank >= most:
            return float(scores[most] * _BEYOND ** max(at - 1.0, 0.0))
        low = max(int(rank), 0)
        return scores[low] + max(rank - low, 0.0) * (scores[low + 1] - scores[low])


class _OfClass:
    def __init__(self) -> None:
        self.ttft, self.tpot, self.e2e = FormerQuantiles(), FormerQuantiles(), FormerQuantiles()
        self.tpot_s = RunningMedian()
        self.length: float | None = None
        self._seen = self._seen_since = 0

    def saw_length(self, *, changed: bool) -> None:
        self._seen += 1
        self._seen_since += 1
        if changed or self._seen_since >= min(1 + self._seen // 16, _MAX_STALE):
            self._seen_since, self.length = 0, None


@dataclass(slots=True)
class _Ticket:
    new: Arrival
    place: WaitingPlace
    alone: bool
    ttft: _Made | None
    tpot: _Made | None = None
    e2e: _Made | None = None
    judged: bool = False

    @property
    def quantiles(self) -> Quantiles:
        found = [None if made is None else made.quantiles for made in (self.ttft, self.tpot, self.e2e)]
        return [[np.nan] * len(LEVELS) if of is None else [of[level] for level in LEVELS] for of in found]


class FormerPredictor(Rival):
    """The former predictor."""

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self._names = class_names
        self._backlog = Backlog(class_names, lambda place: True)
        self._classes = [_OfClass() for _ in class_names]
        self._line, self._lengths = RunningLine(), EmpiricalLength()
        self._due: list[tuple[float, int, FormerQuantiles, _Made, float]] = []
        self._counter = 0
        self._tickets: dict[int, _Ticket] = {}

    def arrives(self, new: Arrival, now_s: float) -> Quantiles:
        while self._due and self._due[0][0] < now_s:
            _, _, calibration, made, level = heapq.heappop(self._due)
            calibration.ran_out(made, level)
        of_class, queue = self._classes[new.class_id], self._backlog.queue_of(self._names[new.class_id])
        interval_s, ahead, alone = queue.interval_s(Urgency.TARGETS, now_s), len(queue.waiting), self._backlog.is_empty
        ticket = _Ticket(new, queue.enter(new.index, now_s), alone, None)
        self._tickets[new.index] = ticket
        service_s = self._line.at(new.prompt_tokens)
        if service_s is None:
            return no_quantiles()
        wait_s = ahead * (service_s if interval_s is None else interval_s)
        ticket.ttft = of_class.ttft.predict(service_s + wait_s)
        tpot_s = of_class.tpot_s.value
        if tpot_s is not None:
            decode_s = (self._output_tokens(of_class, new) - 1.0) * tpot_s
            ticket.e2e = of_class.e2e.predict(service_s + decode_s + wait_s, ticket.ttft.quantiles)
            ticket.tpot = of_class.tpot.predict(tpot_s)
        for calibration, found in ((of_class.ttft, ticket.ttft), (of_class.e2e, ticket.e2e)):
            if found is not None:
                for level, limit_s in (found.quantiles or {}).items():
                    self._counter += 1
                    heapq.heappush(self._due, (now_s + limit_s, self._counter, calibration, found, level))
        return ticket.quantiles

    def starts(self, index: int, now_s: float) -> None:
        ticket = self._tickets[index]
        ticket.place.started(now_s)
        self._judge(ticket, now_s - ticket.new.arrival_s)

    def ends(self, index: int, latency: Latency | None, tokens: int, now_s: float) -> None:
        ticket = self._tickets.pop(index)
        if latency is None:
            ticket.place.left(now_s)
            for made in (ticket.ttft, ticket.tpot, ticket.e2e):
                if made is not None:
                    made.over = True
            return
        self._judge(ticket, latency.ttft_s)
        of_class, new = self._classes[ticket.new.class_id], ticket.new
        if tokens > 1:
            of_class.tpot_s.add(latency.tpot_s)
            if ticket.tpot is not None:
                of_class.tpot.observe(ticket.tpot, latency.tpot_s)
        cut = tokens >= new.max_tokens
        of_class.saw_length(changed=self._lengths.observe(new.class_id, tokens, cut=cut))
        if ticket.e2e is not None:
            of_class.e2e.observe(ticket.e2e, latency.e2e_s)

    def _judge(self, ticket: _Ticket, ttft_s: float) -> None:
        if ticket.judged:
            return
        ticket.judged = True
        if ticket.alone:
            self._line.add(ticket.new.prompt_tokens, ttft_s)
        if ticket.ttft is not None:
            self._classes[ticket.new.class_id].ttft.observe(ticket.ttft, ttft_s)

    def _output_tokens(self, of_class: Any, new: Arrival) -> float:
        if of_class.length is None:
            none = np.zeros(1, np.int64)
            asked = KnownRequests(class_id=none + new.class_id, output_tokens=none, max_tokens=none + _MAX_TOKENS)
            of_class.length = float(self._lengths.rest(asked).quantile(MEDIAN)[0])
        return min(float(of_class.length), float(new.max_tokens))
