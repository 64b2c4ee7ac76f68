"""What a client is told at admission about its request's latency: medians, and bounds that nine in ten keep."""

from collections.abc import Iterable
from dataclasses import dataclass

MEDIAN, P90 = 0.5, 0.9


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds from the arrival at our front end."""

    median_s: float
    p90_s: float

    def kept(self, actual_s: float) -> dict[float, bool]:
        """By level, 0.5 and 0.9: whether the request took no longer."""
        return {MEDIAN: actual_s <= self.median_s, P90: actual_s <= self.p90_s}


@dataclass(frozen=True, slots=True)
class Predicted:
    """One request's prediction; ``None`` for a figure of which too little was observed."""

    ttft: Quantiles | None
    e2e: Quantiles | None

    def kept(self, *, ttft_s: float, e2e_s: float) -> dict[tuple[str, float], bool]:
        """By figure, ``ttft`` or ``e2e``, and level: whether a request that took so long took no longer than told."""
        told = (("ttft", self.ttft, ttft_s), ("e2e", self.e2e, e2e_s))
        return {
            (name, level): kept
            for name, quantiles, actual_s in told
            if quantiles is not None
            for level, kept in quantiles.kept(actual_s).items()
        }


def worst(predictions: Iterable[Predicted]) -> Predicted:
    """The prediction for a client that waits for all of them: the greatest of each figure."""
    each = list(predictions)
    if len(each) == 1:
        return each[0]
    return Predicted(_worst(p.ttft for p in each), _worst(p.e2e for p in each))


def _worst(quantiles: Iterable[Quantiles | None]) -> Quantiles | None:
    known = [q for q in quantiles if q is not None]
    if not known:
        return None
    return Quantiles(max(q.median_s for q in known), max(q.p90_s for q in known))
