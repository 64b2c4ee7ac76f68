"""Sums over the queued requests that one member reads for all: without a planner every agent of a fleet needs them."""

from collections.abc import Sequence
from typing import Final

import msgspec

from sloserve.fleet.store.database import Database
from sloserve.fleet.store.lease import LONGEST_S
from sloserve.fleet.store.records import QueuedSums
from sloserve.fleet.store.requests import Requests

_LEAST_S: Final = 1.0
_SHARE: Final = 0.05
"""Share of time for reading the sums: 400,000 requests take 0.4 s on SQLite, and are read each 8 s."""
_READING_S: Final = 15.0
"""Seconds after which another member reads the sums if the one that reads them has not written them."""
_LONGEST_S: Final = 60.0
"""Longest time in seconds from one reading to the next, whatever its share of time."""
OLDEST_S: Final = 2.0 * _LONGEST_S
"""Age in seconds from which sums count as none: no member needed them for a while, and one reads them now."""


def pause_s(took_s: float) -> float:
    """Return the seconds from the begin of a reading that took ``took_s`` to the next one."""
    return min(max(_LEAST_S, took_s / _SHARE), _LONGEST_S)


class SharedSums:
    """Sums over the queued requests of one store, as one process reads them; for one thread at a time.

    The first member that needs them when they are due reads them, and writes them into the store. All other members
    return the last ones meanwhile, and read their text only when it has changed.
    """

    def __init__(self, database: Database, requests: Requests) -> None:
        self._database, self._requests = database, requests
        self._read_s, self._sums = 0.0, tuple[QueuedSums, ...]()
        """Time of the store's clock at which the sums known here were read, and these sums."""

    def sums(self) -> Sequence[QueuedSums]:
        """Return recent sums, none in the first moments after a long time without a reader; raises StoreError."""
        with self._database.reading() as session:
            found = session.rows(_SUMS, known_s=self._read_s, longest_s=LONGEST_S)
        age_s = self._note(found)
        if not found or found[0][2]:
            with self._database.transaction() as session:
                begun = session.rows(_BEGIN, reading_s=_READING_S, longest_s=LONGEST_S)
            if begun:
                return self._read(float(begun[0][0]))
        return self._sums if age_s < OLDEST_S else ()

    def _note(self, found: Sequence[tuple[float, float, object, str | None]]) -> float:
        """Keep the sums of the store's row, if they are others; return their age in seconds."""
        if not found:
            return OLDEST_S
        read_s, age_s, _, text = found[0]
        if text is not None:
            self._read_s, self._sums = read_s, msgspec.json.decode(text, type=tuple[QueuedSums, ...])
        return age_s

    def _read(self, began_s: float) -> Sequence[QueuedSums]:
        """Read the sums for all members, beginning at ``began_s`` by the store's clock."""
        self._read_s, self._sums = began_s, tuple(self._requests.sums())
        with self._database.transaction() as session:
            took_s = float(session.rows("SELECT store_now()")[0][0]) - began_s
            text = msgspec.json.encode(self._sums).decode()
            session.change(_WRITE, began_s=began_s, due_s=began_s + pause_s(took_s), sums=text)
        return self._sums


_SUMS: Final = """
    SELECT read_s, store_now() - read_s, CASE WHEN due_s <= store_now() OR due_s > store_now() + :longest_s THEN 1 END,
        CASE WHEN read_s = :known_s THEN NULL ELSE sums END
    FROM queued_sums"""
_BEGIN: Final = """
    INSERT INTO queued_sums (one, read_s, due_s, sums) VALUES (1, 0.0, store_now() + :reading_s, '[]')
    ON CONFLICT (one) DO UPDATE SET due_s = excluded.due_s
    WHERE queued_sums.due_s <= store_now() OR queued_sums.due_s > store_now() + :longest_s
    RETURNING store_now()"""
_WRITE: Final = "UPDATE queued_sums SET read_s = :began_s, due_s = :due_s, sums = :sums"
