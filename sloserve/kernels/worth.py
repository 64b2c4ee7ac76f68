"""Gain and cost of requests, compiled: see :mod:`sloserve.scheduler.auto.worth` for what they mean."""

import numpy as np
from numpy.typing import NDArray

from sloserve.kernels import _csrc


def worth(
    requests: NDArray[np.float64],
    queued: int,
    runs: NDArray[np.float64],
    ahead: NDArray[np.float64],
    engine: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Gain and cost ``[n]`` each, and the mean delay in seconds.

    Args:
        requests: ``[12, n]``; seconds since arrival, TTFT target, seconds a token may take, e2e target, tokens so far,
            seconds since the first token, tokens left, most tokens left, tokens to compute, tokens of context, seconds
            until its KV is back, weight. nan where there is none.
        queued: how many of the first of them wait.
        runs: ``[n, t]``; the chance that more than ``ahead`` tokens are still to come.
        ahead: ``[t]``, ascending from 0.
        engine: ``[13]``; seconds of a step, of a full one, of a prompt token, of one more decode; tokens of the KV
            cache; seats; the delay as a share of the waiting cost; TTFT and TDS of a reader that states only the other;
            what experience and stretch count, in good requests; the target of a request without any, in seconds; the
            power of a share that is a price.

    Raises: ValueError where these do not fit together.
    """
    return _csrc.worth(requests, queued, np.ascontiguousarray(runs), ahead, engine)
