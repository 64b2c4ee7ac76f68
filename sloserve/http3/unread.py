"""Responses that clients do not read: how much of them a connection and a listener hold, and for how long.

A response that is written waits in memory until its client has acknowledged it. A stream's part is bounded by
back-pressure (:mod:`sloserve.http3.http3_exchange`). A connection that holds its limit begins no further request.
Beyond the limit of all connections the one that holds the most is ended, which is never one that holds less than the
mean. A client that shows a certificate, as an edge does, carries the responses of many: it may hold the full buffer of
each stream, and is ended after all others.
"""

from collections.abc import Mapping
from typing import Protocol


class Holder(Protocol):
    """A connection."""

    @property
    def trusted(self) -> bool:
        """Whether its client has shown a certificate."""

    def give_up(self) -> None:
        """End the connection, and free what it holds."""


class Unread:
    """The unacknowledged bytes that a listener's connections hold.

    Args:
        max_bytes: Most bytes of all connections together.
    """

    def __init__(self, max_bytes: int) -> None:
        self.total_bytes = 0
        self._max_bytes = max_bytes
        self._held: dict[Holder, int] = {}

    def of(self, holder: Holder) -> int:
        return self._held.get(holder, 0)

    def holds(self, holder: Holder, held_bytes: int) -> None:
        """Record that ``held_bytes`` are written to the connection and not acknowledged."""
        self.total_bytes += held_bytes - self._held.get(holder, 0)
        if held_bytes:
            self._held[holder] = held_bytes
        else:
            self._held.pop(holder, None)
        while self.total_bytes > self._max_bytes:
            worst = max(self._held, key=lambda one: (not one.trusted, self._held[one]))
            self.holds(worst, 0)
            worst.give_up()


class ResponseReader(Protocol):
    """One response.

    ``moved_s`` is the last time when its client acknowledged some of it, or when all that was written had been
    acknowledged.
    """

    @property
    def moved_s(self) -> float: ...

    def starved(self) -> bool:
        """Return whether the client has room for more, which waits for its turn among the connection's streams."""


def stalled(readers: Mapping[int, ResponseReader], before_s: float) -> list[int]:
    """Return the numbers of the responses that the client by its own choice has not read since ``before_s``.

    A response that waits behind others that are read has not had its turn.
    """
    others_move = any(reader.moved_s > before_s for reader in readers.values())
    return [
        number
        for number, reader in readers.items()
        if reader.moved_s <= before_s and not (others_move and reader.starved())
    ]
