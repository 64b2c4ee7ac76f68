"""Drain or park? How long streams may take to end before their model leaves an instance.

A stream that is parked goes back to the queue, and on when its model is back: that makes it late where it has little
time left, and its KV is copied or computed again. While streams drain, those who wait for the coming model are late
instead, and the device is half empty. Each second counts alike: of one request's lateness, of a copy, of draining.

Source: QLM, Sec. 5, which parks all (request eviction).
"""

import numpy as np

from sloserve.core.arrays import FloatArray


def drain_s(
    remaining_s: FloatArray,
    slack_s: FloatArray,
    move_s: FloatArray,
    *,
    away_s: float,
    waiting: FloatArray,
    waiting_slack_s: FloatArray,
) -> float:
    """Seconds that cost least, 0 where all are parked at once.

    Args:
        remaining_s: that each stream would run on, ``[streams]``.
        slack_s: by which each would then be in time; inf for none that is late, negative for one that is.
        move_s: what it takes of the engine's time to copy its KV out and in, or to compute it again.
        away_s: that a stream which is parked stands still.
        waiting: requests of each group that waits for the coming model, ``[groups]``.
        waiting_slack_s: by which each group is in time if the model comes at once.
    """
    order = np.argsort(remaining_s, kind="stable")
    ends_s = np.append(0.0, remaining_s[order])
    parked_s = later_s(slack_s, away_s)[order] + move_s[order]
    # If streams drain until the k-th has ended, those behind it are parked.
    behind_s = np.append(np.cumsum(parked_s[::-1])[::-1], 0.0)
    left = np.arange(ends_s.size)[::-1]
    idle_s = ends_s - (np.cumsum(ends_s) + left * ends_s) / max(remaining_s.size, 1)
    cost = idle_s + waiting @ np.maximum(ends_s - np.maximum(waiting_slack_s, 0.0)[:, None], 0.0) + behind_s
    return float(ends_s[int(cost.argmin())])


def later_s(slack_s: FloatArray, away_s: float) -> FloatArray:
    """By how much parking makes each stream later than it would be."""
    later: FloatArray = np.minimum(np.maximum(away_s - slack_s, 0.0), away_s)
    return later
