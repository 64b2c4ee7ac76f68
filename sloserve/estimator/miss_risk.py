"""The probability that a request misses its targets, by the use of them that was predicted.

The use of a target is latency over target. A request of which a greater use was predicted misses its targets no less
often, whatever the policy does. So the risk of a request is at most the share of misses among the latest requests with
a predicted use from its own up to any greater one; the least of these shares counts, so that misses of requests that
were predicted to be close to their targets do not condemn the ones that were not. The request itself counts as one more
miss in each share: without any outcome its risk is 1, and a risk of 0.01 needs 99 outcomes without a miss.

Unlike a quantile of the latency this is sure of a policy that serves each request just in time, as deadlines want it.

Source: the shares are the upper sets of isotonic regression (Barlow et al., "Statistical inference under order
restrictions", 1972); the further miss is the one of the conformal p-value (Vovk, Gammerman and Shafer, "Algorithmic
Learning in a Random World", 2005, Sec. 2.2). Memory is bounded by the window. Deterministic, no clock.
"""

from bisect import bisect_left, insort
from collections import deque
from typing import Final

WINDOW: Final = 1024
"""Outcomes that count."""


class MissRisk:
    """The risk of missing all targets together, learnt from the outcomes of one kind of requests."""

    def __init__(self, window: int = WINDOW) -> None:
        self._latest: deque[tuple[float, bool]] = deque(maxlen=window)
        self._all: list[float] = []
        self._missed: list[float] = []

    def add(self, predicted: float, *, missed: bool) -> None:
        """Record an outcome.

        Args:
            predicted: Predicted use of the targets, the largest of all.
            missed: Whether any target was missed.
        """
        if len(self._latest) == self._latest.maxlen:
            use, was_missed = self._latest[0]
            del self._all[bisect_left(self._all, use)]
            if was_missed:
                del self._missed[bisect_left(self._missed, use)]
        self._latest.append((predicted, missed))
        insort(self._all, predicted)
        if missed:
            insort(self._missed, predicted)

    def is_at_most(self, risk: float, predicted: float) -> bool:
        """Return whether a request with this predicted use misses its targets with a probability of at most ``risk``.

        Its share of misses is sought from the shortest stretch of greater uses to the longest, up to one that has more
        misses than the longest may have.
        """
        first, before = bisect_left(self._all, predicted), bisect_left(self._missed, predicted)
        most = len(self._all) - first + 1
        for misses, use in enumerate(self._missed[before : before + int(risk * most) + 1], 1):
            if misses <= risk * (bisect_left(self._all, use) - first + 1):
                return True
        return len(self._missed) - before + 1 <= risk * most

    def safe_use(self, risk: float) -> float:
        """Return the predicted use up to which the risk is at most ``risk``, found by halving; 0 if there is none."""
        low, high = 0, len(self._all)
        while low < high:
            middle = (low + high) // 2
            if self.is_at_most(risk, self._all[middle]):
                low = middle + 1
            else:
                high = middle
        return self._all[low - 1] if low else 0.0

    def __len__(self) -> int:
        return len(self._latest)
