"""A pool of hosts and agents that are only said to be there."""

import asyncio
from collections.abc import Mapping

from sloserve.fleet.pool.pool import Gone, Offer


class FakePool:
    """hosts: that are there, to be changed. failing: hosts on which no agent can be started."""

    def __init__(self, *hosts: Offer) -> None:
        self.hosts = {offer.host: offer for offer in hosts}
        self.agents: dict[str, int] = {}
        """Which agent of its host runs, from 1."""
        self.failing: set[str] = set()
        self.wanted: dict[str, int] = {}
        self.starts = 0
        self._gone: asyncio.Queue[Gone] = asyncio.Queue()
        self._closed = False

    async def offers(self) -> Mapping[str, Offer]:
        return dict(self.hosts)

    async def ensure(self, offer: Offer) -> None:
        if offer.host in self.failing:
            raise OSError("no memory")
        if not self._closed and offer.host not in self.agents:
            self.starts += 1
            self.agents[offer.host] = self.starts

    async def gone(self) -> Gone:
        return await self._gone.get()

    async def drain(self, host: str, *, at_once: bool = False) -> None:
        self.agents.pop(host, None)

    async def want(self, hosts: Mapping[str, int]) -> None:
        self.wanted = dict(hosts)

    async def close(self, *, at_once: bool = False) -> None:
        self._closed = True
        self.agents.clear()

    def lose(self, host: str, *, certain: bool = True) -> Gone:
        """The host's agent dies, or is only not reached any more."""
        if certain:
            self.agents.pop(host, None)
        self._gone.put_nowait(gone := Gone(host, "has ended" if certain else "is not reached", certain))
        return gone
