"""Output lengths as policies know them: one interface over the request table for every predictor.

Which predictor: the option ``length`` of a policy, see :mod:`sloserve.estimator.length.choice`.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.requests import places_stated
from sloserve.core.kernels.survival import Chances
from sloserve.core.rows import LENGTH_QUANTILES, Rows
from sloserve.estimator.length.at_admission import LEVELS
from sloserve.estimator.length.choice import ORACLE, PREDICTED, check_lengths, of_class, reads_quantiles
from sloserve.estimator.length.quantiles import quantile_lengths
from sloserve.estimator.length.remaining import KnownRequests, LengthEstimator, Rest, rest_of
from sloserve.estimator.length.survival_table import SurvivalTable

LENGTH_COLUMNS = frozenset(
    {"aborted", "class_id", "max_tokens", "oracle_output_tokens", "output_tokens", *LENGTH_QUANTILES}
)
"""Columns that :class:`Lengths` reads."""

_Known = tuple[IntArray, Callable[[int], Rest]]
"""Places of requests, and a function that returns what remains of them, each repeated as often as it is given."""


class Lengths:
    """Predictions of how many tokens are still to come.

    Args:
        length: Name of the predictor, one of :func:`~sloserve.estimator.length.choice.length_names`.
        length_error: Relative error put on what is stated, for ``oracle``.
        seed: Seed of the errors.

    Raises: ValueError for an unknown predictor or a negative error.
    """

    def __init__(self, length: str = PREDICTED, length_error: float = 0.0, *, seed: int) -> None:
        check_lengths(length, length_error)
        self._of_class = SurvivalTable(of_class(length))
        self._reads_quantiles = reads_quantiles(length)
        self._oracle: LengthEstimator | None = None
        if length == ORACLE:
            from sloserve.estimator.length.given import OracleLength  # loads scipy

            self._oracle = OracleLength(length_error, seed=seed)

    def observe(self, rows: Rows, slot: int) -> None:
        """Learn from a request that ended, in whatever way; a request without output teaches nothing.

        An output that its cap, its client or an error cut is known only to be longer.
        """
        tokens = int(rows.output_tokens[slot])
        if tokens > 0:
            cut = bool(tokens >= rows.max_tokens[slot] or rows.aborted[slot])
            self._of_class.observe(int(rows.class_id[slot]), tokens, cut=cut)

    def learn(self, class_id: int, output_tokens: int) -> None:
        """Learn from a request of the class that ended by itself after ``output_tokens``, 1 or more."""
        self._of_class.observe(class_id, output_tokens)

    def left(self, rows: Rows, slots: IntArray) -> FloatArray:
        """Return the expected tokens still to come, ``[n]``: at least 1, at most what ``max_tokens`` leaves."""
        return self._left(rows, slots, self._better_known(rows, slots))

    def chances(self, rows: Rows, slots: IntArray, ahead: IntArray) -> Chances:
        """Return P(more than ``ahead`` tokens are to come) of each, looked up when read, until the rows change."""
        return self._chances(rows, slots, ahead, self._better_known(rows, slots))

    def outlook(self, rows: Rows, slots: IntArray, ahead: IntArray) -> tuple[FloatArray, Chances]:
        """Return :meth:`left` and :meth:`chances`."""
        better = self._better_known(rows, slots)
        return self._left(rows, slots, better), self._chances(rows, slots, ahead, better)

    def _left(self, rows: Rows, slots: IntArray, better: list[_Known]) -> FloatArray:
        return _with_better(self._of_class.mean(rows, slots), better)

    def _chances(self, rows: Rows, slots: IntArray, ahead: IntArray, better: list[_Known]) -> Chances:
        if not better:
            return self._of_class.chances(rows, slots, ahead)
        tables, row, rows_known = [], np.full(slots.size, -1, np.int64), 0
        for known, rest in better:
            some = known.size
            tables.append(rest(ahead.size).survival(np.tile(ahead, some)).reshape(-1, ahead.size))
            row[known] = np.arange(rows_known, rows_known + some)
            rows_known += some
        return self._of_class.chances(rows, slots, ahead, (np.concatenate(tables), row))

    def left_within(self, rows: Rows, slots: IntArray, most: FloatArray) -> FloatArray:
        """Return :meth:`left` under the condition that no more than ``most`` tokens come.

        Where more is known of a request than its class, the result is :meth:`left` itself.
        """
        left = self._of_class.mean_within(rows, slots, most)
        return _with_better(left, self._better_known(rows, slots))

    def survival(self, rows: Rows, slots: IntArray, ahead: IntArray) -> FloatArray:
        """Return all of :meth:`chances`, ``[n, len(ahead)]``."""
        return self.chances(rows, slots, ahead).matrix().reshape(-1, ahead.size)

    def _better_known(self, rows: Rows, slots: IntArray) -> list[_Known]:
        """Return the requests of which more is known than their class, the surest knowledge last."""
        found: list[_Known] = []
        if self._reads_quantiles:
            known = places_stated(getattr(rows, LENGTH_QUANTILES[0]), slots)
            if known.size:
                found.append((known, partial(_by_quantiles, rows, slots[known])))
        if self._oracle is not None:
            stated = np.flatnonzero(rows.oracle_output_tokens[slots] >= 1)
            if stated.size:
                found.append((stated, partial(_as_stated, self._oracle, rows, slots[stated])))
        return found


def _with_better(left: FloatArray, better: list[_Known]) -> FloatArray:
    for known, rest in better:
        left[known] = rest(1).mean()
    return left


def _by_quantiles(rows: Rows, slots: IntArray, times: int) -> Rest:
    each = np.repeat(slots, times)
    tokens = np.stack([getattr(rows, name)[each] for name in LENGTH_QUANTILES], axis=1)
    return rest_of(quantile_lengths(LEVELS, tokens), _requests(rows, each))


def _as_stated(oracle: LengthEstimator, rows: Rows, slots: IntArray, times: int) -> Rest:
    return oracle.rest(_requests(rows, np.repeat(slots, times)))


def _requests(rows: Rows, slots: IntArray) -> KnownRequests:
    return KnownRequests(
        class_id=rows.class_id[slots],
        output_tokens=rows.output_tokens[slots],
        max_tokens=rows.max_tokens[slots],
        seq=rows.seq[slots],
        stated_tokens=rows.oracle_output_tokens[slots],
    )
