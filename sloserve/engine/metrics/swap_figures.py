"""What a scheduler counts of swapping, and the metrics made of it; nothing is shown where there is no host pool.

A reason that is counted under another name than those here is on no page: a test holds these lists against the code.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

REFUSALS: Final = (
    "cost", "empty", "full", "loading", "must_compute", "reset", "session", "too_large",
)  # fmt: skip
"""Why the KV of a preempted request is not kept: counters ``swap_refused_<reason>``."""
DROPS: Final = (
    "differs",
    "ended",
    "epoch",
    "failed",
    "found_elsewhere",
    "late",
    "not_continued",
    "preempted_again",
    "retained_again",
    "taken_back",
    "worth_less",
)
"""Why what is kept is given up before it is loaded: counters ``swap_dropped_<reason>``."""
SWAP_BUCKETS: Final = (0, 1, 2, 3, 5, 8, 13)
"""Upper bounds of the histogram of how often a request's KV went to the host; one more bucket holds the rest."""


@dataclass(frozen=True)
class SwapFigures:
    """Pool gauges in bytes over all ranks of the engine, as of the last step; all else counts from its start.

    Args:
        swap_stores_of_ended: Ended requests with KV that is kept for others; ``swap_stores`` are preempted ones.
        swapped_by_policy: Stores of ``swap_stores`` for requests that a plan preempted.
        swap_out_seconds: Seconds during which copies to the host ran, of the rank that took longest.
        swap_in_seconds: Seconds during which copies to the device ran, of the rank that took longest.
        swaps_sum: Sum of swaps over the requests that ended.
    """

    swap_pool_used_bytes: float
    swap_pool_peak_bytes: float
    swap_pool_total_bytes: float
    swap_stores: float
    swap_stores_of_ended: float
    swap_loads: float
    swap_failures: float
    swapped_by_policy: float
    swapped_out_tokens: float
    swapped_in_tokens: float
    swap_out_bytes: float
    swap_in_bytes: float
    swap_out_seconds: float
    swap_in_seconds: float
    swaps_sum: float


SWAP_SCALARS: Final = tuple(f.name for f in fields(SwapFigures))
SWAP_COUNTERS: Final = tuple(
    name for name in SWAP_SCALARS if name.startswith(("swap_s", "swap_l", "swap_f", "swapped_"))
)
"""Figures that others count in the counters of the scheduler."""


class SwapPage(Protocol):
    """What of a page is read here; the figures by name besides."""

    @property
    def rank(self) -> int: ...
    @property
    def swap_refused(self) -> Mapping[str, int]: ...
    @property
    def swap_dropped(self) -> Mapping[str, int]: ...
    @property
    def swaps(self) -> Sequence[int]: ...


def swap_bucket(swaps: int) -> int:
    """Return the index of the histogram's bucket that a request falls into."""
    return bisect_left(SWAP_BUCKETS, swaps)


def swap_families(pages: Sequence[SwapPage], prefix: str) -> list[Metric]:
    """Return the metrics, with samples of the engines that have a pool.

    Args:
        pages: Pages of the engines.
        prefix: Prefix of the metrics' names.
    """

    def counter(name: str, documentation: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"{prefix}{name}", documentation, labels=["engine", *labels])

    pool = GaugeMetricFamily(
        f"{prefix}swap_pool_bytes", "Host memory for the KV of preempted and ended requests", labels=["engine", "kind"]
    )
    swaps = HistogramMetricFamily(
        f"{prefix}request_swaps",
        "Number of times that the KV of a request went to the host, of requests that ended",
        labels=["engine"],
    )
    events = {
        "swap_stores": counter("swap_stores", "Preemptions with the KV kept in the host pool"),
        "swap_stores_of_ended": counter(
            "swap_stores_of_ended", "Ended requests with the KV kept in the host pool for those that continue them"
        ),
        "swap_loads": counter("swap_loads", "Loads of kept KV that were begun"),
        "swap_failures": counter("swap_failures", "Stores and loads that failed; the KV is computed again"),
    }
    by_direction = {
        "swap_{}_bytes": counter("swap_bytes", "KV copied to the host (out) and back (in)", "direction"),
        "swap_{}_seconds": counter("swap_seconds", "Time during which such copies ran", "direction"),
        "swapped_{}_tokens": counter("swap_tokens", "Tokens with KV that was kept (out) and loaded (in)", "direction"),
    }
    refusals = counter("swap_refusals", "Preemptions without keeping the KV", "reason")
    drops = counter("swap_drops", "Kept KV that was given up before it was loaded", "reason")
    for page in pages:
        figure = {name: getattr(page, name) for name in SWAP_SCALARS}
        if not figure["swap_pool_total_bytes"]:
            continue
        engine = str(page.rank)
        for kind in ("used", "peak", "total"):
            pool.add_metric([engine, kind], figure[f"swap_pool_{kind}_bytes"])
        for name, family in events.items():
            family.add_metric([engine], figure[name])
        for name, family in by_direction.items():
            for direction in ("out", "in"):
                family.add_metric([engine, direction], figure[name.format(direction)])
        for reasons, family in ((page.swap_refused, refusals), (page.swap_dropped, drops)):
            for reason, count in reasons.items():
                family.add_metric([engine, reason], count)
        limits = [*(f"{limit:g}" for limit in SWAP_BUCKETS), "+Inf"]
        swaps.add_metric([engine], list(zip(limits, accumulate(page.swaps), strict=True)), figure["swaps_sum"])
    return [pool, swaps, *events.values(), *by_direction.values(), refusals, drops]
