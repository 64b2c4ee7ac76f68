"""How likely requests are to go on, looked up in a table of each class: ten thousands of look-ups in each plan."""

import numpy as np
from numpy.typing import NDArray

from sloserve.kernels import _csrc


def survival(
    longer: NDArray[np.float64],
    stride: int,
    class_id: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    max_tokens: NDArray[np.int64],
    ahead: NDArray[np.int64],
) -> NDArray[np.float64]:
    """P(more than ``ahead`` tokens are still to come), ``[n, len(ahead)]``.

    Args:
        longer: ``[classes, lengths]``, above 0: P(length > place * stride) of each class.
        stride: tokens between two lengths.
        class_id, output_tokens, max_tokens: ``[n]``; a class is a row of ``longer``.
        ahead: tokens, from 0.

    Raises: ValueError for a class without a row, or columns of several lengths.
    """
    columns = (np.ascontiguousarray(column, np.int64) for column in (class_id, output_tokens, max_tokens, ahead))
    return _csrc.survival(np.ascontiguousarray(longer), stride, *columns).reshape(-1, ahead.size)
