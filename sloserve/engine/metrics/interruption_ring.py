"""The latest requests that were interrupted, by a hash of their id: a part of the page, which readers scan.

Each word holds 40 bits of the hash beside one figure, so that no reader sees one request's hash with another's figure,
whatever is being written meanwhile.
"""

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from sloserve.core.served import Interruptions

ENTRIES = 2048
WORDS = 3 * ENTRIES

_FIGURE_BITS = 24
_MOST = 2**_FIGURE_BITS - 1
"""A figure beyond it counts as this: 16 million steps, or 4.6 hours in milliseconds."""


@dataclass(frozen=True, slots=True)
class InterruptionRing:
    """A ring of the latest interruptions, which one process writes.

    Args:
        words: Memory of the ring, uint64 ``[WORDS]``, all 0 at first.
    """

    words: NDArray[np.uint64]

    def note(self, at: int, request_id: str, met: Interruptions) -> int:
        """Write an entry at ``at``, over the oldest; return where the next goes.

        A second entry of the same id, for several outputs of one request, adds its steps; of the times the longest
        holds.
        """
        before = self.find(request_id)
        if before is not None:
            met = Interruptions(
                before.paused_steps + met.paused_steps,
                max(before.paused_s, met.paused_s),
                max(before.preempted_s, met.preempted_s),
            )
        key = _key(request_id)
        figures = (met.paused_steps, round(met.paused_s * 1e3), round(met.preempted_s * 1e3))
        for column, figure in zip(self._columns, figures, strict=True):
            column[column >> _FIGURE_BITS == key] = 0
            column[at] = key << _FIGURE_BITS | min(figure, _MOST)
        return (at + 1) % ENTRIES

    def find(self, request_id: str) -> Interruptions | None:
        """Return what is known of a request; ``None`` if nothing is known, or no longer."""
        key, found = _key(request_id), []
        for column in self._columns:
            entries = column[column >> _FIGURE_BITS == key]
            if not entries.size:
                return None
            found.append(int(entries[-1]) & _MOST)
        return Interruptions(found[0], found[1] / 1e3, found[2] / 1e3)

    @property
    def _columns(self) -> NDArray[np.uint64]:
        return self.words.reshape(3, ENTRIES)


def _key(request_id: str) -> int:
    """Return a key of 40 bits, never 0."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=5).digest()) or 1
