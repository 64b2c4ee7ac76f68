"""Names of the array types of arguments and results, one dtype each; and how a column by slot grows."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
ObjectArray = NDArray[np.object_]

Item = TypeVar("Item", bound=np.generic)


def grown(column: NDArray[Item], size: int, fill: object = 0) -> NDArray[Item]:
    """Return a longer copy of ``column``.

    It serves columns of the request table, and what a policy remembers by slot beside them.

    Args:
        column: Values by slot, ``[slots]`` or ``[slots, n]``.
        size: Number of slots of the copy, at least as many as now.
        fill: Value of the new slots.
    """
    longer: NDArray[Item] = np.full((size, *column.shape[1:]), fill, column.dtype)
    longer[: len(column)] = column
    return longer
