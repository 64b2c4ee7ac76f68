"""Places that are reserved for clients when they were refused, and are kept until these clients come for them.

Without that the time to retry is worth little: at 2.2 times an engine's load three of four clients that retried at that
time found their place taken by a request that had never waited, at ten times its load nine of ten. A client retries
with the same request, and is known by it (its key). A place is kept from all others from a little before it is
predicted to be free until a little after its client was asked to retry. The share of clients that retry is learnt from
the latest ones, and only that share of the places is kept.

Guarantees: a client that retries too early has no claim, and one request has at most ``MOST_OF_KEY`` places, however
often it is sent. Memory is bounded by ``MOST``. The module is deterministic: time is an argument, in seconds of a clock
that is never set.
"""

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

AHEAD_S: Final = 2.0
"""Seconds for which a place is kept before it is predicted to be free, since it may be free earlier."""
GRACE_S: Final = 2.0
"""Seconds for the way back to the server, which begins when the client's time to wait is over."""
MOST: Final = 4096
MOST_OF_KEY: Final = 16
"""Most places of one key: clients may send the same request at the same time.

A client that sends a request again and again gains nothing by it.
"""
_SHARE_OF: Final = 128.0
"""Number of the latest places from which the share of clients that retry is taken."""
_LEAST_SHARE: Final = 1.0 / 16.0


@dataclass(slots=True, eq=False)
class _KeptPlace:
    key: Hashable
    kept_from_s: float
    comes_s: float
    is_kept: bool = False
    over: bool = False


@dataclass(slots=True)
class KeptPlaces:
    """Places kept for clients of one class that were asked to retry at a certain time.

    Args:
        share: Share of the clients that retry then.
    """

    share: float = 1.0
    _later: deque[_KeptPlace] = field(default_factory=deque)
    _kept: deque[_KeptPlace] = field(default_factory=deque)
    _count: int = 0
    _seen_s: float = -math.inf
    _of_key: dict[Hashable, deque[_KeptPlace]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._later) + self._count

    def pass_time(self, now_s: float) -> None:
        """Keep the places that have become due, and free the places that no client has come for."""
        self._seen_s = now_s
        while self._later and self._later[0].kept_from_s <= now_s:
            self._keep(self._later.popleft())
        while self._kept and (self._kept[0].over or self._kept[0].comes_s + GRACE_S < now_s):
            place = self._kept.popleft()
            if not place.over:
                self._end(place)
                self._learn(came=False)

    @property
    def kept(self) -> int:
        """How many places are kept now."""
        return math.ceil(self._count * self.share)

    def claim(self, key: Hashable) -> bool:
        """Return whether a place is kept for a request of this key that comes now, at the time that it was given."""
        return self._first(key) is not None

    def fulfil(self, key: Hashable) -> None:
        """Release the place of a request that has a claim, once the request is dealt with."""
        place = self._first(key)
        if place is not None:
            self._end(place)
            self._learn(came=True)

    def may_make(self, key: Hashable) -> bool:
        """Return whether there is room for one more place for a request of this key."""
        return len(self) < MOST and len(self._of_key.get(key, ())) < MOST_OF_KEY

    def make(self, key: Hashable, free_s: float, comes_s: float) -> None:
        """Reserve the place that is predicted to be free at ``free_s``, for which a client comes at ``comes_s``.

        ``free_s`` never falls from one place to the next.
        """
        self._later.append(self._made(key, free_s - AHEAD_S, comes_s))

    def renew(self, key: Hashable, comes_s: float) -> None:
        """Keep the next place for a client that came in time and found none; it comes again at ``comes_s``."""
        self.fulfil(key)
        self._keep(self._made(key, -math.inf, comes_s))

    def _made(self, key: Hashable, kept_from_s: float, comes_s: float) -> _KeptPlace:
        place = _KeptPlace(key, kept_from_s, comes_s)
        self._of_key.setdefault(key, deque()).append(place)
        return place

    def _keep(self, place: _KeptPlace) -> None:
        place.is_kept = True
        self._kept.append(place)
        self._count += 1

    def _first(self, key: Hashable) -> _KeptPlace | None:
        return next((one for one in self._of_key.get(key, ()) if one.is_kept and one.comes_s <= self._seen_s), None)

    def _end(self, place: _KeptPlace) -> None:
        place.over = True
        self._count -= 1
        of_key = self._of_key[place.key]
        of_key.remove(place)
        if not of_key:
            del self._of_key[place.key]

    def _learn(self, *, came: bool) -> None:
        self.share = max(self.share + (came - self.share) / _SHARE_OF, _LEAST_SHARE)
