"""SLO attainment of the requests that ended lately: what a gauge shows, where counters only ever grow."""

from collections import deque
from collections.abc import Mapping
from threading import Lock

from sloserve.core.goodput import Attainment

SPAN_S = 300.0
"""Requests that ended longer ago are forgotten: five minutes, long enough for a class of few requests to show."""

MAX_REQUESTS = 1_000
"""At most so many are remembered, the latest: the third digit of a ratio, and a bound on memory."""

ALL = "all"
ALL_ADMITTED = "all_admitted"


class AttainmentWindow:
    """The latest requests of one class that had targets. One thread may record while another reads."""

    def __init__(self, span_s: float = SPAN_S, max_requests: int = MAX_REQUESTS) -> None:
        self._span_s = span_s
        self._ended: deque[tuple[float, Mapping[str, bool], bool]] = deque(maxlen=max_requests)
        self._lock = Lock()

    def record(self, met: Mapping[str, bool], rejected: bool, now_s: float) -> None:
        """Takes in a request that ended now. met: for each target it had, at least one, whether it was met."""
        with self._lock:
            self._ended.append((now_s, met, rejected))

    def ratios(self, now_s: float) -> dict[str, float]:
        """Share of requests, 0..1, that met: each target, among those that had it; all of theirs, under ``all``, and
        among those not rejected under ``all_admitted``. A share of nothing is left out."""
        with self._lock:
            while self._ended and self._ended[0][0] < now_s - self._span_s:
                self._ended.popleft()
            ended = list(self._ended)
        found: dict[str, list[bool]] = {}
        good = rejected = 0
        for _, met, was_rejected in ended:
            for name, was_met in met.items():
                found.setdefault(name, []).append(was_met)
            good += all(met.values())
            rejected += was_rejected
        counts = Attainment(good, len(ended), rejected)
        together = {ALL: counts.ratio, ALL_ADMITTED: counts.ratio_admitted}
        return {name: sum(verdicts) / len(verdicts) for name, verdicts in found.items()} | {
            name: ratio for name, ratio in together.items() if ratio is not None
        }
