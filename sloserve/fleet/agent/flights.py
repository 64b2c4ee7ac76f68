"""The requests that one engine has, for an agent: they can be ended, and their end waited for."""

import asyncio
from collections.abc import Collection

from sloserve.fleet.agent.in_flight import Flight, InFlight
from sloserve.fleet.contract.door import Refusal


class Flights(InFlight):
    """All of one engine."""

    def __init__(self, an_event: int = 1) -> None:
        super().__init__(an_event)
        self._fewer = asyncio.Event()

    def ended(self, flight: Flight, now_s: float, *, broken: bool) -> None:
        super().ended(flight, now_s, broken=broken)
        self._fewer.set()

    def abort(self, *, durable_only: bool = False) -> None:
        """Ends all in the engine."""
        for flight in list(self._flights):
            if flight.durable or not durable_only:
                flight.abort()

    async def send_back(self, limit_s: float) -> None:
        """Those of which no client has had a byte are to be served elsewhere, or later."""
        back = [flight for flight in self._flights if not flight.durable and not flight.parts]
        for flight in back:
            flight.abort(Refusal.SWITCHING)
        await self._ended(limit_s, back)

    async def empty(self, limit_s: float) -> bool:
        """Whether all have ended within ``limit_s`` seconds."""
        return await self._ended(limit_s, None)

    async def _ended(self, limit_s: float, some: Collection[Flight] | None) -> bool:
        """some: all that there are at any time if ``None``."""
        try:
            async with asyncio.timeout(limit_s):
                while self._flights if some is None else any(flight in self._flights for flight in some):
                    self._fewer.clear()
                    await self._fewer.wait()
        except TimeoutError:
            return False
        return True
