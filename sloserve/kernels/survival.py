"""How likely requests are to go on and for how long, looked up in a table of each class: ten thousands of look-ups in
each plan.
"""

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


def mean_left(
    longer: NDArray[np.float64],
    beyond: NDArray[np.float64],
    stride: int,
    class_id: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    max_tokens: NDArray[np.int64],
) -> NDArray[np.float64]:
    """Expected tokens still to come, ``[n]``: at least 1, at most what ``max_tokens`` leaves.

    Args:
        longer: as of :func:`survival`.
        beyond: ``[classes, lengths]``, the sum of ``longer`` over all tokens from a length on.
        stride, class_id, output_tokens, max_tokens: as of :func:`survival`.

    Raises: ValueError for a class without a row, or arrays that do not fit together.
    """
    columns = (np.ascontiguousarray(column, np.int64) for column in (class_id, output_tokens, max_tokens))
    return _csrc.mean_left(np.ascontiguousarray(longer), np.ascontiguousarray(beyond), stride, *columns)
