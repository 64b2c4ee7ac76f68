"""The latency that is predicted at admission of a request: its median, 0.9-quantile and 0.99-quantile."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

MEDIAN, P90, P99 = 0.5, 0.9, 0.99
LEVELS: Final = (MEDIAN, P90, P99)
"""Levels of the quantiles that are predicted for every request, ascending."""
PREDICTED: Final = ("ttft", "tpot", "e2e")
"""Names of the figures that are predicted."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of one figure in seconds, ascending; TTFT and e2e count from the arrival at our front end."""

    median_s: float
    p90_s: float
    p99_s: float

    @property
    def each(self) -> tuple[float, float, float]:
        """The quantiles in the order of :data:`LEVELS`."""
        return self.median_s, self.p90_s, self.p99_s

    def kept(self, actual_s: float) -> dict[float, bool]:
        """Return by level whether the request took no longer than predicted."""
        return {level: actual_s <= limit_s for level, limit_s in zip(LEVELS, self.each, strict=True)}


@dataclass(frozen=True, slots=True)
class Predicted:
    """One request's prediction; ``None`` for a figure of which too little was observed.

    Args:
        ttft: Seconds from the arrival to the first token.
        e2e: Seconds from the arrival to the last token.
        tpot: Mean seconds per output token after the first.
    """

    ttft: Quantiles | None
    e2e: Quantiles | None
    tpot: Quantiles | None = None

    def figures(self) -> Iterator[tuple[str, Quantiles]]:
        """Yield the name and the quantiles of each figure of :data:`PREDICTED` that is known."""
        for name in PREDICTED:
            found: Quantiles | None = getattr(self, name)
            if found is not None:
                yield name, found


def worst(predictions: Iterable[Predicted]) -> Predicted:
    """Return the prediction for a client that waits for all of these requests: the greatest of each figure."""
    each = list(predictions)
    if len(each) == 1:
        return each[0]
    return Predicted(*(_worst(getattr(one, name) for one in each) for name in ("ttft", "e2e", "tpot")))


def _worst(quantiles: Iterable[Quantiles | None]) -> Quantiles | None:
    known = [found.each for found in quantiles if found is not None]
    return Quantiles(*(max(at) for at in zip(*known, strict=True))) if known else None
