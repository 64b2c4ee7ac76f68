"""Gain and cost of requests, compiled: see :mod:`sloserve.scheduler.auto.worth` for what they mean."""

import numpy as np
from numpy.typing import NDArray

from sloserve.kernels import _csrc
from sloserve.kernels.kv_layout import KVLayout
from sloserve.kernels.survival import Chances


def worth(
    runs: Chances,
    layout: KVLayout,
    stated: tuple[NDArray[np.float64], ...],
    counts: tuple[NDArray[np.int64], ...],
    queued: int,
    left: NDArray[np.float64],
    prefill: NDArray[np.int64],
    again_s: NDArray[np.float64],
    weights: NDArray[np.float64],
    now_s: float,
    engine: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Gain and cost ``[n]`` each, and the mean delay in seconds.

    Args:
        runs: of ``n`` slots, the chance that more tokens than it looks ahead are still to come.
        layout: of the KV cache.
        stated: the columns ``arrival_s``, ``ttft_s``, ``tpot_s``, ``tds``, ``e2e_s`` and ``first_token_s``, by slot.
        counts: the columns ``class_rank``, ``prompt_tokens``, ``output_tokens`` and ``max_tokens``.
        queued: how many of the first of the ``n`` wait.
        left: ``[n]``, tokens to come, expected.
        prefill: ``[n]``, tokens to compute before the next one.
        again_s: ``[n - queued]``, of those that run: seconds until the KV is back.
        weights: of each class rank, the last that of all beyond.
        now_s: seconds, as ``arrival_s``.
        engine: ``[13]``; seconds of a step, of a full one, of a prompt token, of one more decode; blocks of the KV
            cache; seats; the delay as a share of the waiting cost; TTFT and TDS of a reader that states only the other;
            what experience and stretch count, in good requests; the target of a request without any, in seconds; the
            power of a share that is a price.

    Raises: ValueError where these do not fit together.
    """
    return _csrc.worth(runs, layout.compiled, stated, counts, queued, left, prefill, again_s, weights, now_s, engine)
