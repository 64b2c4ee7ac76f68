"""The latest events of a kind, each a time and a few bits in one number, so that other processes can read along.

Each addition stores one aligned number of eight bytes, which no reader ever sees torn. Several rings, of as many
processes, are read as one: the latest of all of them are the latest.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

BITS = 16
"""Bits for what is said of an event; the bits above hold its time in milliseconds.

The time is by a clock that all writers share and that is never set.
"""

Stamps = NDArray[np.uint64]
"""Events in no order; 0 for an empty place."""


class Ring:
    """Remembers the latest events, as many as ``stamps`` has places; it has one writer."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._next = 0

    def add(self, bits: int, now_s: float) -> None:
        """Record an event that happened now.

        Args:
            bits: What happened; at least one bit is set, and the value is below ``2**BITS``.
            now_s: The present time, in epoch seconds.
        """
        self._stamps[self._next] = max(int(now_s * 1e3), 0) << BITS | bits
        self._next = (self._next + 1) % self._stamps.size


def latest(rings: Iterable[Stamps], limit: int, since_s: float = 0.0) -> Stamps:
    """Return the bits of the latest events of all rings, oldest first.

    Args:
        rings: The events of each process.
        limit: Most events to return.
        since_s: Start of the span that counts, in epoch seconds; earlier events are left out.
    """
    together = np.concatenate([np.zeros(0, np.uint64), *rings])
    first = max(max(int(since_s * 1e3), 0) << BITS, 1)
    return np.sort(together[together >= first])[-limit:] & np.uint64(2**BITS - 1)
