"""SLO attainment of the requests that ended lately: what a gauge shows, where counters only ever grow."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from sloserve.core.goodput import Attainment
from sloserve.core.stamps import Ring, Stamps, latest

SPAN_S = 300.0
"""Requests that ended longer ago are forgotten: five minutes, long enough for a class of few requests to show."""

MAX_REQUESTS = 1_000
"""At most so many are remembered, the latest: the third digit of a ratio, and a bound on memory."""

SHOWN_SPANS_S: Final = (60.0, 600.0)
"""What people who watch are shown."""

TARGETS: Final = ("ttft", "tpot", "e2e", "tds")
ALL = "all"
ALL_ADMITTED = "all_admitted"
_REJECTED = 1 << 2 * len(TARGETS)


class AttainmentWindow:
    """The latest requests of one class that had targets, on ``stamps``, which has room for :data:`MAX_REQUESTS`.

    One bit says that a request had a target, the next that it met it; the last that it was rejected.
    """

    def __init__(self, stamps: Stamps) -> None:
        self._ring = Ring(stamps)

    def record(self, met: Mapping[str, bool], rejected: bool, now_s: float) -> None:
        """Takes in a request that ended now. met: for each target it had, at least one, whether it was met."""
        bits = _REJECTED if rejected else 0
        for name, was_met in met.items():
            bits |= (0b11 if was_met else 0b01) << 2 * TARGETS.index(name)
        self._ring.add(bits, now_s)


def ratios(windows: Iterable[Stamps], now_s: float) -> dict[str, float]:
    """Share of requests, 0..1, that met: each target, among those that had it; all of theirs, under ``all``, and
    among those not rejected under ``all_admitted``. A share of nothing is left out.

    windows: of one class, of each process that serves it; they count as one.
    """
    ended = latest(windows, MAX_REQUESTS, now_s - SPAN_S)
    found = {}
    for i, name in enumerate(TARGETS):
        verdicts = _verdicts(ended, i)
        had = int(np.count_nonzero(verdicts))
        if had:
            found[name] = int(np.count_nonzero(verdicts == 0b11)) / had
    counts = _counts(ended)
    together = {ALL: counts.ratio, ALL_ADMITTED: counts.ratio_admitted}
    return found | {name: ratio for name, ratio in together.items() if ratio is not None}


def attained(windows: Iterable[Stamps], now_s: float, span_s: float) -> Attainment:
    """Requests that ended within the last ``span_s``, as far as they are remembered: of how many all targets were met.

    windows: as for :func:`ratios`.
    """
    return _counts(latest(windows, MAX_REQUESTS, now_s - span_s))


def shown(windows: Iterable[Stamps], now_s: float) -> list[list[float | int | None]]:
    """For each of :data:`SHOWN_SPANS_S` the share of the requests that met all targets, and how many had some.

    windows: as for :func:`ratios`. The share is ``None`` where none had any.
    """
    rings = list(windows)
    counts = [attained(rings, now_s, span_s) for span_s in SHOWN_SPANS_S]
    return [[None if one.ratio is None else round(one.ratio, 4), one.total] for one in counts]


def _verdicts(ended: Stamps, target: int) -> Stamps:
    found: Stamps = ended >> np.uint64(2 * target) & np.uint64(0b11)
    return found


def _counts(ended: Stamps) -> Attainment:
    missed_any = np.zeros(ended.size, bool)
    for i in range(len(TARGETS)):
        missed_any |= _verdicts(ended, i) == 0b01
    rejected = int(np.count_nonzero(ended & np.uint64(_REJECTED)))
    return Attainment(int(np.count_nonzero(~missed_any)), ended.size, rejected)
