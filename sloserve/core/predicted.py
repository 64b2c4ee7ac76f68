"""The latency that is predicted at admission of a request: medians, and bounds that nine in ten requests keep."""

from collections.abc import Iterable
from dataclasses import dataclass

MEDIAN, P90 = 0.5, 0.9


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles in seconds from the arrival at our front end."""

    median_s: float
    p90_s: float

    def kept(self, actual_s: float) -> dict[float, bool]:
        """Return by level, 0.5 and 0.9, whether the request took no longer than predicted."""
        return {MEDIAN: actual_s <= self.median_s, P90: actual_s <= self.p90_s}


@dataclass(frozen=True, slots=True)
class Predicted:
    """One request's prediction; ``None`` for a figure of which too little was observed."""

    ttft: Quantiles | None
    e2e: Quantiles | None

    def kept(self, *, ttft_s: float, e2e_s: float) -> dict[tuple[str, float], bool]:
        """Return whether a request took no longer than predicted, by figure, ``ttft`` or ``e2e``, and level.

        Args:
            ttft_s: Measured seconds from the arrival to the first token.
            e2e_s: Measured seconds from the arrival to the last token.
        """
        every = (("ttft", self.ttft, ttft_s), ("e2e", self.e2e, e2e_s))
        return {
            (name, level): kept
            for name, quantiles, actual_s in every
            if quantiles is not None
            for level, kept in quantiles.kept(actual_s).items()
        }


def worst(predictions: Iterable[Predicted]) -> Predicted:
    """Return the prediction for a client that waits for all of these requests: the greatest of each figure."""
    each = list(predictions)
    if len(each) == 1:
        return each[0]
    return Predicted(_worst(p.ttft for p in each), _worst(p.e2e for p in each))


def _worst(quantiles: Iterable[Quantiles | None]) -> Quantiles | None:
    known = [q for q in quantiles if q is not None]
    if not known:
        return None
    return Quantiles(max(q.median_s for q in known), max(q.p90_s for q in known))
