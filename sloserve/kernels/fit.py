"""Least squares of a handful of terms, compiled: with numpy each of its calls costs more than the arithmetic.

It adds up in one order, whatever the CPU's linear algebra library does.
"""

import numpy as np
from numpy.typing import NDArray

from sloserve.kernels import _csrc


def fit_nonnegative(
    information: NDArray[np.float64],
    aim: NDArray[np.float64],
    theta: NDArray[np.float64],
    positive: NDArray[np.bool_],
    share: NDArray[np.float64],
    target: float,
    *,
    keep: float,
    leak: float,
    most_solves: int,
) -> None:
    """Adds the observation ``share @ theta = target`` to normal equations, and solves them for theta >= 0; in place.

    Args:
        information: ``[n, n]``, symmetric and positive definite, n <= 16.
        aim: ``[n]``.
        theta: ``[n]``, the coefficients so far, then the new ones.
        positive: ``[n]``, which of them are above 0, so far as is known.
        share: ``[n]``.
        target: of this observation.
        keep: share of what was that stays.
        leak: weight of an observation of each term alone, that it is what theta says.
        most_solves: attempts to find which coefficients are 0; what is wrong then is corrected at the next call.

    Raises: ValueError for arrays of other sizes.
    """
    _csrc.fit_nonnegative(information, aim, theta, positive, share, target, keep, leak, most_solves)
