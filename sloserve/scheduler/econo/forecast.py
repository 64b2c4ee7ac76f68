"""What will the KV cache hold at future steps, and who fits in beside?

EconoServe promises each request blocks for its predicted length (exact allocation), and lends what is not used yet (KVC
pipelining). Both trust one figure per request, and must pad it. With a distribution of lengths neither is needed:
occupancy at a future step is a sum over many requests, whose errors even out. Its mean and variance follow from the
chance of each that it still runs by then, and who is admitted leaves room for some standard deviations. With lengths
that are known this is the step function of :class:`sloserve.kernels.kv_reservation.KvReservation`, looked at on a grid.
"""

from typing import Final

import numpy as np

from sloserve.estimator.length import EmpiricalLength
from sloserve.estimator.length_given import OracleLength
from sloserve.estimator.length_rest import Requests
from sloserve.estimator.survival_table import SurvivalTable
from sloserve.scheduler.rows import FloatArray, IntArray, Rows

AHEAD: Final[IntArray] = np.unique(np.append(0, np.geomspace(4, 8192, 36).astype(np.int64)))
"""Steps ahead at which occupancy is foreseen, ``[t]``."""
_GROWN: Final[FloatArray] = (AHEAD + np.append(AHEAD[1:], AHEAD[-1])) / 2.0
"""Tokens that come until then: who still runs at one such step ends, for all that is known, halfway to the next."""

FORECAST_COLUMNS = frozenset({"class_id", "max_tokens", "oracle_output_tokens", "output_tokens", "prompt_tokens"})
"""Columns that :class:`Forecast` reads."""


class Forecast:
    """How long requests go on, and what they hold by then.

    Args:
        oracle: ask the stated lengths, with a relative ``error``, where a request has one. seed: of the errors.
    """

    def __init__(self, *, oracle: bool, error: float = 0.0, seed: int = 0) -> None:
        self._table = SurvivalTable(EmpiricalLength())
        self._oracle = OracleLength(error, seed=seed) if oracle else None

    def observe(self, rows: Rows, slot: int) -> None:
        """A request ended."""
        if rows.output_tokens[slot] > 0:
            self._table.observe(int(rows.class_id[slot]), int(rows.output_tokens[slot]))

    def left_tokens(self, rows: Rows, slots: IntArray) -> FloatArray:
        """Expected output tokens still to come, ``[n]``, 1 at least."""
        class_id, done, most = rows.class_id[slots], rows.output_tokens[slots], rows.max_tokens[slots]
        left = self._table.remaining(class_id, done, most)
        stated = rows.oracle_output_tokens[slots] >= 1
        if self._oracle is None or not stated.any():
            return left
        left[stated] = self._oracle.rest(_requests(rows, slots[stated])).mean()
        return left

    def occupancy(self, rows: Rows, slots: IntArray, block_size: int) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the blocks that each will hold AHEAD, ``[n, t]``."""
        class_id, done, most = rows.class_id[slots], rows.output_tokens[slots], rows.max_tokens[slots]
        runs = self._table.survival(class_id, done, most, AHEAD)
        stated = rows.oracle_output_tokens[slots] >= 1
        if self._oracle is not None and stated.any():
            known = slots[stated]
            each = np.repeat(known, AHEAD.size)
            asked = np.tile(AHEAD, known.size)
            runs[stated] = self._oracle.rest(_requests(rows, each)).survival(asked).reshape(known.size, AHEAD.size)
        # Half of the last block is empty.
        blocks = ((rows.prompt_tokens[slots] + done)[:, None] + _GROWN) / block_size + 0.5
        mean = blocks * runs
        return mean, mean * (blocks - mean)


def how_many_fit(
    held: tuple[FloatArray, FloatArray], asked: tuple[FloatArray, FloatArray], capacity_blocks: float, sigmas: float
) -> int:
    """How many of ``asked``, in order, fit beside ``held``: none behind the first that does not.

    held, asked: mean and variance of the blocks, ``[n, t]`` and ``[m, t]``.
    """
    mean = held[0].sum(axis=0) + np.cumsum(asked[0], axis=0)
    variance = held[1].sum(axis=0) + np.cumsum(asked[1], axis=0)
    over = (mean + sigmas * np.sqrt(variance) > capacity_blocks).any(axis=1)
    return int(np.argmax(over)) if over.any() else over.size


def _requests(rows: Rows, slots: IntArray) -> Requests:
    return Requests(
        class_id=rows.class_id[slots],
        output_tokens=rows.output_tokens[slots],
        max_tokens=rows.max_tokens[slots],
        seq=rows.seq[slots],
        stated_tokens=rows.oracle_output_tokens[slots],
    )
