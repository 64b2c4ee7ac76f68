"""What follows from the columns of the request table, for some of its slots, compiled: many gathers in one call.

``progress`` is the columns ``(prompt_tokens, output_tokens, computed_tokens, swapped_tokens, hit_tokens)`` of
:mod:`sloserve.core.rows`. All raise ValueError for a slot that the columns do not have.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sloserve.kernels import _csrc

Progress = tuple[NDArray[np.int64], ...]


def counts_of(objects: Sequence[object], names: tuple[str, ...]) -> list[NDArray[np.int64]]:
    """Attributes of many objects, ``[len(objects)]`` for each name: the number, or how many it holds if it is none.

    A third of the time of a comprehension for each.

    Raises: AttributeError for a name that one does not have, TypeError for what is no number and holds nothing.
    """
    return _csrc.counts_of(objects if isinstance(objects, list) else list(objects), names)


def tokens_without_kv(progress: Progress, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """See :func:`sloserve.lso.decode_first.tokens_without_kv`."""
    return _csrc.tokens_without_kv(progress, np.ascontiguousarray(slots))


def uncomputed_tokens(progress: Progress, slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """See :func:`sloserve.lso.decode_first.uncomputed_tokens`."""
    return _csrc.uncomputed_tokens(progress, np.ascontiguousarray(slots))


def split_running(progress: Progress, slots: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Those of ``slots`` that decode, which have no uncomputed tokens; the others; and the tokens of prompt and output
    of the former. Each in this order.
    """
    return _csrc.split_running(progress, np.ascontiguousarray(slots))


def token_pace(tpot_s: NDArray[np.float64], tds: NDArray[np.float64], slots: NDArray[np.int64]) -> NDArray[np.float64]:
    """See :func:`sloserve.lso.pace.pace_s`."""
    return _csrc.token_pace(tpot_s, tds, np.ascontiguousarray(slots))


def without_targets(targets: tuple[NDArray[np.float64], ...], slots: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether all four of the columns ``targets`` are nan, ``[len(slots)]``."""
    return _csrc.without_targets(targets, np.ascontiguousarray(slots))
