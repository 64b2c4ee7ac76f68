"""How many requests fit into the KV cache until all have ended, compiled: see :mod:`sloserve.lso.forecast`."""

import numpy as np
from numpy.typing import NDArray

from sloserve.kernels import _csrc
from sloserve.kernels.kv_layout import KVLayout
from sloserve.kernels.survival import Chances


def how_many_fit(
    runs: Chances,
    tokens: NDArray[np.int64],
    grown: NDArray[np.float64],
    layout: KVLayout,
    held: NDArray[np.int64],
    asked: NDArray[np.int64],
    capacity_blocks: float,
    sigmas: float,
) -> int:
    """How many of ``asked``, in order, fit beside ``held``: none after the first that does not.

    Args:
        runs: of ``n`` requests, that each still runs at each of ``t`` steps.
        tokens: ``[n]``, that each has in its KV, or will when it is admitted.
        grown: ``[t]``, tokens that come until each step.
        layout: of the KV cache.
        held, asked: places among the ``n``.
        capacity_blocks: blocks that there are.
        sigmas: standard deviations of the sum to keep free.

    Raises: ValueError for places that there are not, or arrays that do not fit together.
    """
    return _csrc.how_many_fit(
        runs,
        tokens,
        grown,
        layout.compiled,
        np.ascontiguousarray(held, np.int64),
        np.ascontiguousarray(asked, np.int64),
        capacity_blocks,
        sigmas,
    )
