"""Chances that requests go on, and for how long, looked up in a table of each class.

A plan that makes all of them makes ten thousands of look-ups.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sloserve.core.kernels import _csrc
from sloserve.core.kernels._csrc import Chances

__all__ = ["Chances", "LengthColumns", "chances", "mean_left"]


class LengthColumns(Protocol):
    """Columns of the request table that say how long outputs are, by slot; a class is a row of the tables here."""

    @property
    def class_id(self) -> NDArray[np.int64]: ...
    @property
    def output_tokens(self) -> NDArray[np.int64]: ...
    @property
    def max_tokens(self) -> NDArray[np.int64]: ...


_NONE_KNOWN = np.empty((0, 0))


def chances(
    longer: NDArray[np.float64],
    stride: int,
    lengths: LengthColumns,
    slots: NDArray[np.int64],
    ahead: NDArray[np.int64],
    known: tuple[NDArray[np.float64], NDArray[np.int64]] | None = None,
) -> Chances:
    """Return P(more than ``ahead`` tokens are still to come) of each of ``slots``, looked up when another kernel asks.

    The arrays are read at that time: use the result before they change. ``matrix()`` has all chances, ``[len(slots) *
    len(ahead)]``.

    Args:
        longer: ``[classes, lengths]``, above 0: P(length > place * stride) of each class.
        stride: Tokens between two lengths.
        lengths: How long outputs are; a class is a row of ``longer``.
        slots: ``[n]``, of these columns.
        ahead: Tokens, ascending from 0.
        known: Chances that stand instead, ``[rows, len(ahead)]``, and the row of each request, ``[n]``, -1 for none.

    Raises: ValueError for a class without a row, a slot out of range, tokens below 0 or above 2^32 - 1, ``ahead`` that
        does not ascend from 0, or arrays that do not fit together.
    """
    table, rows = (_NONE_KNOWN, None) if known is None else (np.ascontiguousarray(known[0]), known[1])
    return Chances(
        longer,
        stride=stride,
        class_id=lengths.class_id,
        output_tokens=lengths.output_tokens,
        max_tokens=lengths.max_tokens,
        slots=np.ascontiguousarray(slots),
        ahead=ahead,
        known=table,
        known_row=rows,
    )


def mean_left(
    longer: NDArray[np.float64],
    beyond: NDArray[np.float64],
    stride: int,
    lengths: LengthColumns,
    slots: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Return the expected tokens still to come, ``[len(slots)]``: at least 1, at most what ``max_tokens`` leaves.

    Args:
        longer: P(length > place * stride) of each class, above 0, ``[classes, lengths]``.
        beyond: Sum of ``longer`` over all tokens from a length on, ``[classes, lengths]``.
        stride: Tokens between two lengths.
        lengths: The columns ``class_id``, ``output_tokens`` and ``max_tokens``.
        slots: Slots of these columns, ``[n]``.

    Raises: the errors of :func:`chances`.
    """
    return _csrc.mean_left(
        longer,
        beyond=beyond,
        stride=stride,
        class_id=lengths.class_id,
        output_tokens=lengths.output_tokens,
        max_tokens=lengths.max_tokens,
        slots=np.ascontiguousarray(slots),
    )
