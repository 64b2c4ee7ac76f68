"""What the host pool and the prefix cache hold of the requests of a table that do not run."""

from typing import Any, Final

from sloserve.core.arrays import IntArray
from sloserve.core.rows import Rows, State
from sloserve.engine.port import EngineRequest, RequestReader

MOST_HEADS: Final = 64
"""Requests at the head of the queue with hits in the prefix cache that are kept up to date, more than a step admits."""
LOOKUPS: Final = 4
"""Most heads looked up for one plan: a lookup costs some microseconds, a hit lasts for many steps."""

_RUNNING: Final = int(State.RUNNING)


class KeptElsewhere:
    """Keeps the columns ``swapped_tokens`` and ``hit_tokens`` of a table up to date, as far as they are kept.

    Args:
        rows: The rows.
        reader: Reads the engine's requests.
        request_at: Request in each slot, ``None`` in a free one; the table's own list.
    """

    def __init__(self, rows: Rows, reader: RequestReader, request_at: list[Any]) -> None:
        self._rows, self._reader, self._request_at = rows, reader, request_at
        self._swapped: dict[int, EngineRequest] = {}
        self._next_head = 0

    def note(self, slot: int, request: EngineRequest) -> None:
        """Note what is kept of a request that does not run, and that nothing is kept of one that does."""
        self._note_swapped(slot, request)
        self._note_hit(slot, request)

    def _note_swapped(self, slot: int, request: EngineRequest) -> None:
        """Note what the host pool keeps of a request; it is read again until the request runs."""
        if "swapped_tokens" not in self._rows.kept:
            return
        tokens = self._reader.swapped_tokens(request)
        self._rows.swapped_tokens[slot] = tokens
        if tokens:
            self._swapped[slot] = request
        else:
            self._swapped.pop(slot, None)

    def _note_hit(self, slot: int, request: EngineRequest) -> None:
        """Note what the prefix cache holds of a request that waits; of one that runs, nothing."""
        rows = self._rows
        if "hit_tokens" in rows.kept:
            waits = rows.state[slot] != _RUNNING
            rows.hit_tokens[slot] = self._reader.hit_tokens(request, int(rows.hit_tokens[slot])) if waits else 0

    def look_up(self, order: IntArray) -> None:
        """Ask the prefix cache again about some of the first slots of ``order``, each in its turn."""
        heads = min(order.size, MOST_HEADS)
        if not heads or "hit_tokens" not in self._rows.kept:
            return
        for _ in range(min(LOOKUPS, heads)):
            slot = int(order[self._next_head % heads])
            self._next_head = (self._next_head + 1) % heads
            request = self._request_at[slot]
            if request is not None:
                self._note_hit(slot, request)

    def read_swapped(self) -> None:
        """Read again what the host pool keeps: it may give up or lose what it has."""
        if self._swapped:
            for slot, request in list(self._swapped.items()):
                self._note_swapped(slot, request)

    def admitted(self, slots: IntArray) -> None:
        """Note that the requests in these slots run."""
        if self._swapped:
            for slot in slots:
                if self._swapped.pop(int(slot), None) is not None:
                    self._rows.swapped_tokens[slot] = 0
        if "hit_tokens" in self._rows.kept:
            self._rows.hit_tokens[slots] = 0

    def dropped(self, slot: int) -> None:
        """Forget the request in this slot."""
        self._swapped.pop(slot, None)

    def forget(self) -> None:
        """Forget what was noted, for columns that may no longer be kept."""
        self._swapped.clear()
