"""Latency of the requests that ended recently: quantiles for watchers, since histograms have a few wide buckets.

Each latency is one number of 16 bits beside its time (:mod:`sloserve.core.stamps`), on a logarithmic scale from 0.1 ms
to a day, off by 0.02 % at most.
"""

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from sloserve.core.stamps import BITS, Ring, Stamps, latest

MAX_LATENCIES: Final = 500
"""Most requests that are remembered, the latest ones: five of them stand above the 99th percentile."""
SPAN_S: Final = 60.0
QUANTILES: Final = (50, 99)
_LEAST_S: Final = 1e-4
_MOST_S: Final = 86_400.0
_STEP: Final = math.log(_MOST_S / _LEAST_S) / (2**BITS - 2)


class LatencyWindow:
    """The latest requests of one class, on ``stamps``, which has room for :data:`MAX_LATENCIES`."""

    def __init__(self, stamps: Stamps) -> None:
        self._ring = Ring(stamps)

    def record(self, latency_s: float, now_s: float) -> None:
        """Record a request that ended now."""
        within_s = min(max(latency_s, _LEAST_S), _MOST_S)
        self._ring.add(1 + round(math.log(within_s / _LEAST_S) / _STEP), now_s)


def quantiles_s(windows: Iterable[Stamps], now_s: float) -> list[float] | None:
    """Return the latency in seconds at each of :data:`QUANTILES` of requests that ended within :data:`SPAN_S`.

    The result is ``None`` if no request ended.

    Args:
        windows: The windows of one class, one of each process that serves it; they count as one window.
        now_s: The present time, in epoch seconds.
    """
    ended = latest(windows, MAX_LATENCIES, now_s - SPAN_S)
    if not ended.size:
        return None
    steps = np.percentile(ended.astype(np.float64) - 1.0, QUANTILES, method="inverted_cdf")
    return [float(f"{_LEAST_S * math.exp(step * _STEP):.3g}") for step in steps.tolist()]
