"""The requests that ended latest, by a hash of their id, with what they met: a part of the page, which readers scan.

Each word holds 40 bits of the hash beside one figure, so that no reader sees one request's hash with another's figure,
whatever is being written meanwhile. A figure is the upper 24 bits of a float of 32: a whole number up to 65,536 is
exact, any other figure to a 65,536th of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sloserve.core.served import InEngine

ENTRIES = 2048
FIGURES: Final = 5
"""Number of the fields of :class:`~sloserve.core.served.InEngine`, of which each has a word."""
WORDS = FIGURES * ENTRIES

_FIGURE_BITS = 24
_DROPPED_BITS = 32 - _FIGURE_BITS


@dataclass(frozen=True, slots=True)
class EndedRing:
    """A ring of the requests that ended latest, which one process writes.

    Args:
        words: Memory of the ring, uint64 ``[WORDS]``, all 0 at first.
    """

    words: NDArray[np.uint64]

    def note(self, at: int, request_id: str, met: InEngine, *, is_part: bool = False) -> int:
        """Write an entry at ``at``, over the oldest; return where the next goes.

        Args:
            at: Place of the entry.
            request_id: Id of the request.
            met: What it met.
            is_part: Whether it is one of several outputs of the request. The steps of all and what they used add up; of
                the times the longest holds.
        """
        key = _key(request_id)
        if is_part:
            met = self._taken_out(key, met)
        figures = np.array([met.paused_steps, met.paused_s, met.preempted_s, met.engine_s, met.kv_s], np.float32)
        bits = (figures.view(np.uint32) + np.uint32(1 << _DROPPED_BITS - 1)) >> _DROPPED_BITS
        self._columns[:, at] = bits | np.uint64(key << _FIGURE_BITS)
        return (at + 1) % ENTRIES

    def _taken_out(self, key: int, met: InEngine) -> InEngine:
        """Remove the entry of a key; return it together with ``met``."""
        for place in self._places(key):
            before = self._at(key, place)
            if before is not None:
                both = met + before
                paused_s, preempted_s = (
                    max(before.paused_s, met.paused_s),
                    max(before.preempted_s, met.preempted_s),
                )
                met = InEngine(both.paused_steps, paused_s, preempted_s, both.engine_s, both.kv_s)
            self._columns[:, place] = 0
        return met

    def find(self, request_id: str) -> InEngine | None:
        """Return what is known of a request; ``None`` if nothing is known, or no longer."""
        key = _key(request_id)
        found = (self._at(key, place) for place in self._places(key))
        return next((met for met in found if met is not None), None)

    def _places(self, key: int) -> Iterator[int]:
        """Return the places of the entries of a key; one entry at most has all its words."""
        yield from np.flatnonzero(self._columns[-1] >> _FIGURE_BITS == key).tolist()

    def _at(self, key: int, place: int) -> InEngine | None:
        """Return the entry at ``place``; ``None`` if it is not the key's, or not wholly."""
        words = self._columns[:, place].copy()
        if (words >> _FIGURE_BITS != key).any():
            return None
        steps, *figures = (words.astype(np.uint32) << _DROPPED_BITS).view(np.float32).tolist()
        return InEngine(round(steps), *figures)

    @property
    def _columns(self) -> NDArray[np.uint64]:
        return self.words.reshape(FIGURES, ENTRIES)


def _key(request_id: str) -> int:
    """Return a key of 40 bits, never 0."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=5).digest()) or 1
