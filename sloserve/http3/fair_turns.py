"""Places for a limited number of requests at once: by class, and within a class to tenants in turn."""

import asyncio
from collections import OrderedDict, deque


class WaitingListFull(Exception):
    """The waiting list is full."""


class FairTurns:
    """A limit on requests at once, with a waiting list.

    Args:
        places: The number of requests at once.
        max_waiting: The most requests that wait for a place, over all classes and tenants.
    """

    def __init__(self, places: int, max_waiting: int) -> None:
        self._free = places
        self._max_waiting = max_waiting
        self._waiting: dict[int, OrderedDict[str, deque[asyncio.Future[None]]]] = {}
        self.waiting = 0

    async def take(self, rank: int, tenant: str) -> None:
        """Wait for a place.

        Args:
            rank: Rank of the request's class; the lowest comes first.
            tenant: Name of the request's tenant.

        Raises: WaitingListFull.
        """
        if self._free and not self.waiting:
            self._free -= 1
            return
        if self.waiting >= self._max_waiting:
            raise WaitingListFull
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(rank, OrderedDict()).setdefault(tenant, deque()).append(place)
        self.waiting += 1
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.give_back()  # it came at the same moment
            else:
                self._forget(rank, tenant, place)
            raise

    def give_back(self) -> None:
        """Free one place, and give it to the next request that waits."""
        if not self._waiting:
            self._free += 1
            return
        rank = min(self._waiting)
        tenants = self._waiting[rank]
        tenant, places = next(iter(tenants.items()))
        place = places[0]
        tenants.move_to_end(tenant)
        self._forget(rank, tenant, place)
        place.set_result(None)

    def _forget(self, rank: int, tenant: str, place: "asyncio.Future[None]") -> None:
        tenants = self._waiting[rank]
        tenants[tenant].remove(place)
        self.waiting -= 1
        if not tenants[tenant]:
            del tenants[tenant]
        if not tenants:
            del self._waiting[rank]
