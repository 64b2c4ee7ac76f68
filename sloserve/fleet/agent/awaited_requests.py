"""The requests that one engine has, for an agent: it can end them, and wait for their end."""

import asyncio
from collections.abc import Collection

from sloserve.fleet.agent.engine_requests import EngineRequests, InFlightRequest
from sloserve.fleet.contract.door import Refusal


class AwaitedRequests(EngineRequests):
    """All requests of one engine."""

    def __init__(self, an_event: int = 1) -> None:
        super().__init__(an_event)
        self._fewer = asyncio.Event()

    def ended(self, request: InFlightRequest, now_s: float, *, broken: bool) -> None:
        super().ended(request, now_s, broken=broken)
        self._fewer.set()

    def abort(self, *, durable_only: bool = False) -> None:
        """End all requests in the engine, or only the durable ones."""
        for request in list(self._requests):
            if request.durable or not durable_only:
                request.abort()

    async def send_back(self, limit_s: float) -> None:
        """Refuse the requests of which no client has had a byte, so that they are served elsewhere, or later."""
        back = [request for request in self._requests if not request.durable and not request.parts]
        for request in back:
            request.abort(Refusal.SWITCHING)
        await self._ended(limit_s, back)

    async def empty(self, limit_s: float) -> bool:
        """Return whether all have ended within ``limit_s`` seconds."""
        return await self._ended(limit_s, None)

    async def _ended(self, limit_s: float, some: Collection[InFlightRequest] | None) -> bool:
        """Return whether requests have ended within ``limit_s`` seconds.

        Args:
            limit_s: Most seconds to wait.
            some: Requests to wait for; ``None`` for all that there are at any time.
        """
        try:
            async with asyncio.timeout(limit_s):
                while self._requests if some is None else any(request in self._requests for request in some):
                    self._fewer.clear()
                    await self._fewer.wait()
        except TimeoutError:
            return False
        return True
