"""SLO attainment of the requests that ended recently: a gauge shows it, since counters only ever grow.

A request without targets has nothing to attain. If it was not served, it is remembered as well, and counted apart.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from sloserve.core.goodput import Attainment
from sloserve.core.outcome import NOT_SERVED, Outcome
from sloserve.core.stamps import Ring, Stamps, latest

SPAN_S = 300.0
"""Requests that ended longer ago are forgotten: five minutes, long enough for a class of few requests to show."""

MAX_REQUESTS = 1_000
"""Most requests that are remembered, the latest ones: enough for the third digit of a ratio, and a bound on memory."""

SHOWN_SPANS_S: Final = (60.0, 600.0)
"""Spans in seconds over which watchers see the attainment."""

TARGETS: Final = ("ttft", "tpot", "e2e", "tds")
ALL = "all"
ALL_ADMITTED = "all_admitted"
_REJECTED = 1 << 2 * len(TARGETS)
_NOT_SERVED = _REJECTED << 1
_HAD_TARGETS = _REJECTED - 1


class AttainmentWindow:
    """The latest requests of one class that had targets or were not served, on ``stamps``.

    One bit says that a request had a target, the next that it met it; one behind these that it was rejected, and the
    last that it had no target and was not served.

    Args:
        stamps: Room for at most :data:`MAX_REQUESTS` requests.
    """

    def __init__(self, stamps: Stamps) -> None:
        self._ring = Ring(stamps)

    def record(self, met: Mapping[str, bool], outcome: Outcome, now_s: float) -> None:
        """Record a request that ended now, if it had a target or was not served.

        Args:
            met: Whether each target of the request was met, by its name.
            outcome: How the request ended.
            now_s: The present time, in epoch seconds.
        """
        bits = _REJECTED if outcome is Outcome.REJECTED else 0
        if not met:
            bits = _NOT_SERVED if outcome in NOT_SERVED else 0
        for name, was_met in met.items():
            bits |= (0b11 if was_met else 0b01) << 2 * TARGETS.index(name)
        if bits:
            self._ring.add(bits, now_s)


def ratios(windows: Iterable[Stamps], now_s: float) -> dict[str, float]:
    """Return the shares of requests, 0..1, that met their targets.

    Each target has the share among the requests that had it. ``all`` is the share of requests that met all of their
    targets, ``all_admitted`` the same share among requests that were not rejected. A share of no requests is left out.

    Args:
        windows: The windows of one class, one of each process that serves it; they count as one window.
        now_s: The present time, in epoch seconds.
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
    """Return how many requests ended within the last ``span_s`` seconds, and how many of them met all targets.

    Only requests that are still remembered count.

    Args:
        windows: The windows of one class, one of each process that serves it; they count as one window.
        now_s: The present time, in epoch seconds.
        span_s: Length of the span that ends now, in seconds.
    """
    return _counts(latest(windows, MAX_REQUESTS, now_s - span_s))


def missed_targets(windows: Iterable[Stamps], now_s: float, span_s: float) -> dict[str, int]:
    """Return how many requests that ended within the last ``span_s`` seconds missed each target; only the missed ones.

    Args:
        windows: The windows of one class, one of each process that serves it; they count as one window.
        now_s: The present time, in epoch seconds.
        span_s: Length of the span that ends now, in seconds.
    """
    ended = latest(windows, MAX_REQUESTS, now_s - span_s)
    counts = {name: int(np.count_nonzero(_verdicts(ended, i) == 0b01)) for i, name in enumerate(TARGETS)}
    return {name: count for name, count in counts.items() if count}


def shown(windows: Iterable[Stamps], now_s: float) -> list[list[float | int | None]]:
    """Return for each of :data:`SHOWN_SPANS_S` the share of requests that met all targets, and how many had targets.

    The share is ``None`` where no request had a target.

    Args:
        windows: The windows of one class, one of each process that serves it; they count as one window.
        now_s: The present time, in epoch seconds.
    """
    rings = list(windows)
    counts = [attained(rings, now_s, span_s) for span_s in SHOWN_SPANS_S]
    return [[None if one.ratio is None else round(one.ratio, 4), one.total] for one in counts]


def not_served(windows: Iterable[Stamps], now_s: float) -> list[int]:
    """Return for each of :data:`SHOWN_SPANS_S` how many requests without targets were not served.

    A client that leaves is none of them. A request that had targets counts in :func:`shown`, however it ended.

    Args:
        windows: The windows of one class, one of each process that serves it; they count as one window.
        now_s: The present time, in epoch seconds.
    """
    rings = list(windows)
    ended = [latest(rings, MAX_REQUESTS, now_s - span_s) for span_s in SHOWN_SPANS_S]
    return [int(np.count_nonzero(one & np.uint64(_NOT_SERVED))) for one in ended]


def _verdicts(ended: Stamps, target: int) -> Stamps:
    found: Stamps = ended >> np.uint64(2 * target) & np.uint64(0b11)
    return found


def _counts(ended: Stamps) -> Attainment:
    ended = ended[ended & np.uint64(_HAD_TARGETS) > 0]
    missed_any = np.zeros(ended.size, bool)
    for i in range(len(TARGETS)):
        missed_any |= _verdicts(ended, i) == 0b01
    rejected = int(np.count_nonzero(ended & np.uint64(_REJECTED)))
    return Attainment(int(np.count_nonzero(~missed_any)), ended.size, rejected)
