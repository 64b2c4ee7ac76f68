"""Output lengths as policies know them: predicted per class, or stated, with an error of a given size."""

import numpy as np

from sloserve.estimator.length import EmpiricalLength
from sloserve.estimator.length_given import OracleLength
from sloserve.estimator.length_rest import Requests, Rest
from sloserve.estimator.survival_table import SurvivalTable
from sloserve.scheduler.rows import FloatArray, IntArray, Rows

LENGTH_COLUMNS = frozenset({"class_id", "max_tokens", "oracle_output_tokens", "output_tokens"})
"""Columns that :class:`Lengths` reads."""


def check_lengths(length: str, length_error: float) -> None:
    """Raises: ValueError where one of the two settings is none."""
    if length not in ("predicted", "oracle"):
        raise ValueError(f"length: {length!r} is not one of predicted, oracle")
    if not 0.0 <= length_error < np.inf:
        raise ValueError(f"length_error: {length_error} is not 0 or more, and finite")


class Lengths:
    """How many tokens are still to come?

    Args:
        length: ``predicted`` from the requests of the class that ended, or ``oracle``: as the simulator or the client
            states; whoever states none is predicted.
        length_error: relative error put on what is stated. seed: of the errors.
    """

    def __init__(self, length: str, length_error: float, *, seed: int) -> None:
        self._table = SurvivalTable(EmpiricalLength())
        self._oracle = OracleLength(length_error, seed=seed) if length == "oracle" else None

    def observe(self, rows: Rows, slot: int) -> None:
        """A request ended, in whatever way; one without output tells nothing."""
        if rows.output_tokens[slot] > 0:
            self._table.observe(int(rows.class_id[slot]), int(rows.output_tokens[slot]))

    def left(self, rows: Rows, slots: IntArray) -> FloatArray:
        """Expected tokens still to come, at least 1, ``[n]``."""
        left = self._table.remaining(rows.class_id[slots], rows.output_tokens[slots], rows.max_tokens[slots])
        if self._oracle is not None:
            stated = rows.oracle_output_tokens[slots] >= 1
            left[stated] = _rest(self._oracle, rows, slots[stated]).mean()
        return left

    def survival(self, rows: Rows, slots: IntArray, ahead: IntArray) -> FloatArray:
        """P(more than ``ahead`` tokens are still to come), ``[n, len(ahead)]``."""
        runs = self._table.survival(rows.class_id[slots], rows.output_tokens[slots], rows.max_tokens[slots], ahead)
        if self._oracle is not None:
            stated = rows.oracle_output_tokens[slots] >= 1
            each = np.repeat(slots[stated], ahead.size)
            chances = _rest(self._oracle, rows, each).survival(np.tile(ahead, int(stated.sum())))
            runs[stated] = chances.reshape(-1, ahead.size)
        return runs


def _rest(oracle: OracleLength, rows: Rows, slots: IntArray) -> Rest:
    return oracle.rest(
        Requests(
            class_id=rows.class_id[slots],
            output_tokens=rows.output_tokens[slots],
            max_tokens=rows.max_tokens[slots],
            seq=rows.seq[slots],
            stated_tokens=rows.oracle_output_tokens[slots],
        )
    )
