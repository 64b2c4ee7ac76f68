"""What came of the latest promises of one class, so that watchers see it: counters only ever grow.

Each promise is one number of 16 bits beside its time (:mod:`sloserve.core.stamps`): its outcome, and the chance of
being broken that its level leaves, in steps of 0.012 %.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from sloserve.core.judged_window import NOISE_SIGMAS
from sloserve.core.promises import PROMISES_KEPT
from sloserve.core.stamps import Ring, Stamps, latest

MAX_PROMISES: Final = 1_000
"""Most promises that are remembered, the latest ones: of a level of 0.99 about ten of them are broken."""
_ENDED, _OUTCOME, _CHANCE = 1, 1, 3  # the bit of every promise; first bits of the other parts
_STEPS: Final = 2**13 - 1


class PromiseWindow:
    """The latest promises of one class, on ``stamps``, which has room for :data:`MAX_PROMISES`."""

    def __init__(self, stamps: Stamps) -> None:
        self._ring = Ring(stamps)

    def record(self, outcome: str, level: float, now_s: float) -> None:
        """Record a promise that ended now.

        Args:
            outcome: Outcome of the promise, one of :data:`~sloserve.core.promises.PROMISES_KEPT`.
            level: Probability that was promised, 0..1.
            now_s: The present time by the monotonic clock, in seconds.
        """
        chance = round(min(max(1.0 - level, 0.0), 1.0) * _STEPS)
        self._ring.add(_ENDED | PROMISES_KEPT.index(outcome) << _OUTCOME | chance << _CHANCE, now_s)


@dataclass(frozen=True, slots=True)
class EndedPromises:
    """What came of some promises.

    Args:
        kept: Number of promises that were kept.
        broken: Number of promises that were broken.
        withdrawn: Number of promises to clients that left before the end, which are neither kept nor broken.
        allowed: Number of broken promises that the levels allow: the sum of ``1 - level`` over kept and broken ones.
    """

    kept: int = 0
    broken: int = 0
    withdrawn: int = 0
    allowed: float = 0.0

    @property
    def too_many_broken(self) -> bool:
        """Whether more were broken than the levels allow: by three standard deviations of that number and by two."""
        return self.broken - self.allowed > max(NOISE_SIGMAS * math.sqrt(self.allowed), 2.0)

    @property
    def broken_share(self) -> float | None:
        """Share of broken promises among the kept and broken ones, 0..1; ``None`` without any."""
        judged = self.kept + self.broken
        return self.broken / judged if judged else None

    @property
    def allowed_share(self) -> float | None:
        """The share of broken promises that the levels allow, 0..1; ``None`` without any promise to judge."""
        judged = self.kept + self.broken
        return self.allowed / judged if judged else None


def ended_promises(windows: Iterable[Stamps]) -> EndedPromises:
    """Return what came of the latest promises.

    Args:
        windows: The windows of one class, one of each process that serves it; they count as one window.
    """
    found = latest(windows, MAX_PROMISES)
    outcomes = found >> np.uint64(_OUTCOME) & np.uint64(0b11)
    counts = {name: int(np.count_nonzero(outcomes == i)) for i, name in enumerate(PROMISES_KEPT)}
    chances = found[outcomes != PROMISES_KEPT.index("withdrawn")] >> np.uint64(_CHANCE)
    return EndedPromises(**counts, allowed=float(chances.sum()) / _STEPS)
