"""Waits until a request may go to an instance. Both the time that each waits and the number that wait are limited."""

import asyncio
from collections.abc import Iterable

from sloserve.core.clock import Clock
from sloserve.fleet.gateway.held import HeldRequest, HeldRequests
from sloserve.fleet.gateway.instances import Instances, SentRequest


class HeldTooLong(Exception):
    """No instance took the request within the time that it may wait."""


class Hold:
    """The requests that one gateway holds.

    Args:
        instances: Instances of the fleet.
        clock: Clock of this process.
        most: Most requests that may wait at a time.
    """

    def __init__(self, instances: Instances, clock: Clock, most: int) -> None:
        self._clock = clock
        self.held = HeldRequests(instances, most)
        self._booked: dict[HeldRequest, asyncio.Future[SentRequest]] = {}
        self.waits = asyncio.Event()
        """Event that is set while any request waits."""

    def __len__(self) -> int:
        return len(self.held)

    async def flight(self, request: HeldRequest) -> SentRequest:
        """Book the request with an instance, at once or as soon as one has room.

        Raises: HoldFull, HeldTooLong.
        """
        began_s = self._clock.monotonic_s()
        flight = self.held.arrived(request, began_s)
        if flight is not None:
            return flight
        booked: asyncio.Future[SentRequest] = asyncio.get_running_loop().create_future()
        self._booked[request] = booked
        self.waits.set()
        self.let_go((request.model,))
        try:
            async with asyncio.timeout(max(request.refused_s - began_s, 0.0)):
                return await asyncio.shield(booked)
        except TimeoutError:
            if booked.done():
                return booked.result()
            raise HeldTooLong from None
        except asyncio.CancelledError:
            if booked.done():
                booked.result().end()
            raise
        finally:
            request.held_s += self._clock.monotonic_s() - began_s
            self.held.left(request)
            self._waits_no_more(request)
            booked.cancel()

    def let_go(self, models: Iterable[str] | None = None) -> None:
        """Book waiting requests, since room may have come."""
        for request, flight in self.held.let_go(self._clock.monotonic_s(), models):
            booked = self._booked[request]
            self._waits_no_more(request)
            booked.set_result(flight)

    def _waits_no_more(self, request: HeldRequest) -> None:
        self._booked.pop(request, None)
        if not self.held:
            self.waits.clear()
