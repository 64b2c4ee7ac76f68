"""The pace that a request asks for after its first token: the tighter of its TPOT and its reader's speed.

A request is good when it meets every target it has (:mod:`sloserve.core.finished`), so neither of the two may win over
the other; every policy asks here.
"""

from typing import Final

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels.requests import token_pace
from sloserve.core.rows import Rows

PACE_COLUMNS: Final = frozenset({"tpot_s", "tds"})
"""Columns that :func:`pace_s` reads."""


def pace_s(rows: Rows, slots: IntArray) -> FloatArray:
    """Return the seconds that a token may take, ``[len(slots)]``: min(TPOT, 1 / TDS); nan if neither is stated."""
    return token_pace(rows.tpot_s, rows.tds, slots)
