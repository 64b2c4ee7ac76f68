"""How likely requests are to go on, looked up: for policies that ask many steps ahead for all requests in each plan.

One curve per class suffices, since P(L > a + t | L > a) = P(L > a + t) / P(L > a).
"""

from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.survival import Chances, LengthColumns, chances, mean_left
from sloserve.estimator.length.remaining import KnownRequests, LengthEstimator

STRIDE_TOKENS: Final = 8
MOST_TOKENS: Final = 16384
"""Longest length with a curve of its own: a longer request has the curve of this length."""
_LENGTHS: Final[IntArray] = np.arange(0, MOST_TOKENS + 1, STRIDE_TOKENS)
_RENEW: Final = 32
_LEAST: Final = 1e-300
T = TypeVar("T")


class SurvivalTable:
    """``estimator``'s curves, renewed when they drift, and after 1, 2, 4, ... and then every 32 requests."""

    def __init__(self, estimator: LengthEstimator) -> None:
        self._estimator = estimator
        self._ended: dict[int, int] = {}
        self._longer: FloatArray = np.empty((0, _LENGTHS.size))
        """P(L > length), ``[classes, lengths]``."""
        self._beyond: FloatArray = np.empty((0, _LENGTHS.size))
        """Sum of ``_longer`` from each length on, in tokens."""

    def observe(self, class_id: int, output_tokens: int, *, cut: bool = False) -> None:
        """See :meth:`sloserve.estimator.length.remaining.LengthEstimator.observe`."""
        others_now = self._estimator.observe(class_id, output_tokens, cut=cut)
        ended = self._ended[class_id] = self._ended.get(class_id, 0) + 1
        due = others_now or ended % _RENEW == 0 or (ended < _RENEW and ended & (ended - 1) == 0)
        if due and class_id < len(self._longer):
            self._longer[class_id], self._beyond[class_id] = self._row(class_id)

    def mean(self, lengths: LengthColumns, slots: IntArray) -> FloatArray:
        """Return the expected tokens still to come, ``[len(slots)]``: at least 1, at most what ``max_tokens`` leaves.

        Args:
            lengths: The columns that say how long outputs are, by slot.
            slots: Slots of the requests.
        """
        return self._looked_up(
            lambda: mean_left(self._longer, self._beyond, STRIDE_TOKENS, lengths, slots), lengths.class_id, slots
        )

    def mean_within(self, lengths: LengthColumns, slots: IntArray, most: FloatArray) -> FloatArray:
        """Return :meth:`mean` under the condition that no more than ``most`` tokens are to come, ``[len(slots)]``.

        The result is :meth:`mean` itself if the condition is sure to hold, by the cap, or cannot hold.

        Args:
            lengths: The columns ``class_id``, ``output_tokens`` and ``max_tokens``, by slot.
            slots: Slots of the requests.
            most: Most tokens that are to come, ``[len(slots)]``.
        """
        mean = self.mean(lengths, slots)
        class_id, output_tokens = lengths.class_id[slots], lengths.output_tokens[slots]
        max_tokens = lengths.max_tokens[slots]
        last, ends = _LENGTHS.size - 1, output_tokens + np.maximum(most, 0.0)
        since = np.minimum(output_tokens // STRIDE_TOKENS, last)
        until = np.minimum(ends // STRIDE_TOKENS, last).astype(np.int64)
        longer = self._longer[class_id, until]
        chance = self._longer[class_id, since] - longer
        beyond = self._beyond[class_id, since] - self._beyond[class_id, until]
        is_open = (chance > 0.0) & (ends < max_tokens)
        within = (beyond - STRIDE_TOKENS * (until - since) * longer) / np.where(is_open, chance, 1.0)
        return np.where(is_open, np.maximum(within, 1.0), mean)

    def chances(
        self,
        lengths: LengthColumns,
        slots: IntArray,
        ahead: IntArray,
        known: tuple[FloatArray, IntArray] | None = None,
    ) -> Chances:
        """Return P(more than ``ahead`` tokens are still to come).

        See :func:`sloserve.core.kernels.survival.chances`.
        """
        return self._looked_up(
            lambda: chances(self._longer, STRIDE_TOKENS, lengths, slots, ahead, known), lengths.class_id, slots
        )

    def _looked_up(self, look_up: Callable[[], T], class_id: IntArray, slots: IntArray) -> T:
        """Return what ``look_up`` finds, once each class of ``slots`` has a curve: nearly always they all have."""
        try:
            return look_up()
        except ValueError:
            self._know(int(class_id[slots].max(initial=-1)))
            return look_up()

    def _know(self, most: int) -> None:
        for new in range(len(self._longer), most + 1):
            longer, beyond = self._row(new)
            self._longer = np.concatenate((self._longer, longer[None]))
            self._beyond = np.concatenate((self._beyond, beyond[None]))

    def _row(self, class_id: int) -> tuple[FloatArray, FloatArray]:
        n = _LENGTHS.size
        fresh = KnownRequests(
            class_id=np.full(n, class_id),
            output_tokens=np.zeros(n, np.int64),
            max_tokens=np.full(n, np.iinfo(np.int64).max),
        )
        rest = self._estimator.rest(fresh)
        # Conditional chances far beyond all that was seen are ratios of tiny numbers, not of zeros.
        longer = np.maximum(rest.survival(_LENGTHS), _LEAST)
        last = np.full(n, MOST_TOKENS)
        tail = self._estimator.rest(
            KnownRequests(class_id=fresh.class_id[:1], output_tokens=last[:1], max_tokens=fresh.max_tokens[:1])
        )
        # Trapezia between the lengths known, and what the last one still expects.
        between = STRIDE_TOKENS * (longer[:-1] + longer[1:]) / 2.0
        beyond = np.append(np.cumsum(between[::-1])[::-1], 0.0) + longer[-1] * tail.mean()[0]
        return longer, beyond
