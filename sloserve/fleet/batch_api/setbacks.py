"""Batches with a step that failed for lack of room, or of a store: each is tried again, and holds up no other batch."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from sloserve.fleet.batch_api.turns import Key
from sloserve.fleet.store.records import Batch, BatchState

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0
"""Pause in seconds after the first attempt without room, doubled after each further one up to the longest."""


@dataclass(slots=True)
class _NoRoom:
    pause_s: float = FIRST_PAUSE_S / 2.0
    until_s: float = 0.0


@dataclass
class Setbacks:
    """What failed for which batch, for one runner.

    While any batch lacks room, results are written for one batch at a time, the smallest first: half files of several
    would take the room that one of them needs.

    Args:
        bytes_of: Returns the bytes of a batch's results.
    """

    bytes_of: Callable[[str], int]
    _no_room: dict[Key, _NoRoom] = field(default_factory=dict)
    _away: set[Key] = field(default_factory=set)
    """Batches with a step that ended a round, as the store of files was away."""
    _sizes: dict[Key, int] = field(default_factory=dict)

    @property
    def lacks_room(self) -> bool:
        """Whether any batch lacks room."""
        return bool(self._no_room)

    def no_room(self, batch: Batch, now_s: float) -> bool:
        """Note that there was no room for a batch; return whether this is its first time."""
        is_first = _key(batch) not in self._no_room
        noted = self._no_room.setdefault(_key(batch), _NoRoom())
        noted.pause_s = min(2.0 * noted.pause_s, LONGEST_PAUSE_S)
        noted.until_s = now_s + noted.pause_s
        return is_first

    def away(self, batch: Batch) -> None:
        """Note that a batch's step found a store away: others come first in the next round, as it may be its own."""
        self._away.add(_key(batch))

    def not_away(self, batch: Batch) -> None:
        """Note that a batch's step found no store away."""
        self._away.discard(_key(batch))

    def in_order(self, unfinished: Collection[Batch]) -> Collection[Batch]:
        """Return the batches in the order in which to advance them, and forget batches that have moved on."""
        known = {_key(batch) for batch in unfinished}
        self._away &= known
        for gone in self._no_room.keys() - known:
            del self._no_room[gone]
        for gone in self._sizes.keys() - known:
            del self._sizes[gone]
        if not self._no_room and not self._away:
            return unfinished
        return sorted(unfinished, key=lambda batch: (_key(batch) in self._away, self.size(batch)))

    def size(self, batch: Batch) -> int:
        """Return the bytes of results that are to be written, if any batch lacks room; they are read once."""
        if not self._no_room or batch.state is not BatchState.FINALIZING:
            return 0
        if _key(batch) not in self._sizes:
            self._sizes[_key(batch)] = self.bytes_of(batch.id)
        return self._sizes[_key(batch)]

    def pauses(self, batch: Batch, now_s: float) -> bool:
        """Return whether a batch without room is not to be tried yet; a clock that was set back ends its pause."""
        noted = self._no_room.get(_key(batch))
        return noted is not None and noted.until_s - noted.pause_s <= now_s < noted.until_s


def _key(batch: Batch) -> Key:
    return batch.id, batch.state
