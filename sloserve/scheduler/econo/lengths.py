"""Output lengths as the rivals know them: predicted per class, or stated, with an error of a given size."""

import numpy as np

from sloserve.estimator.length import EmpiricalLength
from sloserve.estimator.length_given import OracleLength
from sloserve.estimator.length_rest import Requests
from sloserve.estimator.length_table import LengthTable
from sloserve.scheduler.rows import FloatArray, IntArray, Rows

LENGTH_COLUMNS = frozenset({"class_id", "output_tokens", "max_tokens", "oracle_output_tokens"})
"""Columns that :class:`Lengths` reads."""


def check_lengths(length: str, length_error: float) -> None:
    """Raises: ValueError where one of the two settings is none."""
    if length not in ("predicted", "oracle"):
        raise ValueError(f"length: {length!r} is not predicted or oracle")
    if not 0.0 <= length_error < np.inf:
        raise ValueError(f"length_error: {length_error} is not a relative error of 0 or more")


class Lengths:
    """How many tokens are still to come?

    Args:
        length: ``predicted`` from the requests of the class that ended, or ``oracle``: as the simulator or the client
            states; whoever states none is predicted.
        length_error: relative error put on what is stated. seed: of the errors.
    """

    def __init__(self, length: str, length_error: float, *, seed: int) -> None:
        self._table = LengthTable(EmpiricalLength())
        self._oracle = OracleLength(length_error, seed=seed) if length == "oracle" else None

    def observe(self, rows: Rows, slot: int) -> None:
        """A request ended, in whatever way; one without output tells nothing."""
        class_id, tokens = int(rows.class_id[slot]), int(rows.output_tokens[slot])
        if tokens > 0:
            self._table.observe(class_id, tokens)
            if self._oracle is not None:
                self._oracle.observe(class_id, tokens)

    def left(self, rows: Rows, slots: IntArray) -> FloatArray:
        """Expected tokens still to come, at least 1, ``[len(slots)]``."""
        class_id, done, most = rows.class_id[slots], rows.output_tokens[slots], rows.max_tokens[slots]
        if self._oracle is None:
            return self._table.remaining(class_id, done, most)
        requests = Requests(
            class_id=class_id,
            output_tokens=done,
            max_tokens=most,
            seq=rows.seq[slots],
            stated_tokens=rows.oracle_output_tokens[slots],
        )
        return self._oracle.rest(requests).mean()
