"""Padding, reserve and buffer of EconoServe, set by how far its recent predictions have been off.

The paper tries values by hand for each dataset: padding 10 to 20 %, reserve 2 to 4 %, buffer 10 to 15 % (Sec. 2.3, 4,
Fig. 4 and 15). Here each is read off the requests that ended. Neither a clock nor chance counts: the same ends give the
same shares.

Differs: at the paper's best padding 70 to 77 % of the predictions are not exceeded, here a quarter, by which padding is
as a rule negative. A request that outlives its grant keeps its KV and is granted what is missing a little later, so
exceeding is cheap. A reservation is dear, since no other request may have its blocks before they are used, and half of
that time they are not. The best padding was measured to fall as errors grow; this quarter follows it
(docs/benchmarks/econo.md).
"""

from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np

WINDOW: Final = 256
"""Requests, the last that ended, which count."""
LEAST: Final = 16
"""Number of ended requests up to which the first shares stay."""
PADDED, BUFFERED = 0.25, 0.4
"""Shares of the requests that end within their padded prediction, and within that and the buffer."""
_PADDING = (-0.3, 1.0)
"""Least and greatest padding. With less, where predictions are of a class's mean, too many requests outlive their
grants, and the waits for the next grant cost most: the best is at -0.5 under one workload and at -0.3 under another,
and worse than none at -0.7.
"""
_RESERVE = (0.01, 0.1)
_BUFFER = (0.0, 0.5)


@dataclass(frozen=True, slots=True)
class Shares:
    """The three shares of EconoServe.

    Args:
        padding: Share of a predicted length that is added to it; may be negative.
        reserve: Share of the KV blocks that grants leave free.
        buffer: Share of a guest's padded length by which it should end before its host needs the span.
    """

    padding: float
    reserve: float
    buffer: float


class Tuning:
    """The shares, and what they are learned from.

    Args:
        shares: The shares as of now.
        tuned: Names of the shares that follow the requests that end; the others stay as given.
    """

    def __init__(self, shares: Shares, tuned: frozenset[str] = frozenset(Shares.__slots__)) -> None:
        self.shares = shares
        self.tuned = tuned
        self._ended: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)

    def observe(self, predicted: float, actual: float, context: float) -> None:
        """Record a request that ended.

        Args:
            predicted: Tokens that were to come, by its first prediction; not 0.
            actual: Tokens that came after it.
            context: Tokens that the request had at that time.
        """
        if not self.tuned:
            return
        self._ended.append((predicted, actual, context))
        if len(self._ended) >= LEAST:
            sought = asdict(self._sought())
            self.shares = replace(self.shares, **{name: sought[name] for name in self.tuned})

    def _sought(self) -> Shares:
        predicted, actual, context = np.array(self._ended).T
        within, nearly_all = np.quantile(actual / predicted, (PADDED, BUFFERED)).tolist()
        padding = _clipped(within - 1.0, _PADDING) if "padding" in self.tuned else self.shares.padding
        granted = predicted * (1.0 + padding)
        over = float(np.maximum(actual - granted, 0.0).sum())
        return Shares(
            padding=padding,
            reserve=_clipped(over / float((context + granted).sum()), _RESERVE),
            buffer=_clipped(nearly_all / (1.0 + padding) - 1.0, _BUFFER),
        )


def _clipped(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])
