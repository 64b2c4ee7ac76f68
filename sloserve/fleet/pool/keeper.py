"""Keeps an agent on every host that a pool offers: on new hosts, and on hosts where the agent has ended."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sloserve.core.clock import Clock, SystemClock
from sloserve.fleet.pool.backoff import Backoff
from sloserve.fleet.pool.pool import Gone, Offer, Pool

logger = logging.getLogger(__name__)

THE_AGENT: Final = "the agent of host"
LOOK_S: Final = 0.5
"""Seconds between looks at what the pool offers."""


@dataclass(slots=True)
class _Kept:
    """The agent of a host.

    Args:
        backoff: Says when another may start after one that ended.
        due_s: Time when the next may start, if none runs.
    """

    backoff: Backoff
    runs: bool = False
    due_s: float = float("-inf")


class AgentKeeper:
    """Keeps the agents of one pool.

    Args:
        say: Prints a line for each agent that goes.
        what: Name of the kept process, printed before a host's name in that line.
    """

    def __init__(
        self, pool: Pool, say: Callable[[str], None], what: str = THE_AGENT, clock: Clock | None = None
    ) -> None:
        self._what = what
        self._pool, self._say, self._clock = pool, say, clock or SystemClock()
        self._kept: dict[str, _Kept] = {}
        self._drained: set[str] = set()
        self._away = False

    async def run(self) -> None:
        """Run until cancelled. Raises: ConfigError where an agent reports a wrong setting."""
        tasks = [asyncio.create_task(self._looking()), asyncio.create_task(self._hearing())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self, host: str) -> None:
        """End a host's agent, and start none there until the host has gone and come back, or :meth:`resume`."""
        self._drained.add(host)
        await self._pool.drain(host)
        self._kept.pop(host, None)

    def resume(self, host: str) -> None:
        """Allow a drained host to have an agent again."""
        self._drained.discard(host)

    @property
    def drained(self) -> frozenset[str]:
        """The available hosts that have no agent, since they are not needed."""
        return frozenset(self._drained)

    async def look(self) -> None:
        """Start agents where possible. A start or a query that fails now is tried again."""
        try:
            offers = await self._pool.offers()
        except OSError as error:
            if not self._away:
                logger.warning("the list of hosts is unknown; running agents continue: %s", error)
            self._away = True
            return
        self._away = False
        self._drained &= offers.keys()
        for host in self._kept.keys() - offers.keys():
            del self._kept[host]
        for offer in offers.values():
            if offer.host not in self._drained:
                await self._keep(offer)

    def heard(self, gone: Gone) -> None:
        """Report that an agent has gone; start another if it is certain and its host is still there."""
        kept = self._kept.get(gone.host)
        again = gone.certain and kept is not None
        self._say(f"{self._what} {gone.host} {gone.what}{'; it is started again' if again else ''}")
        if again and kept is not None:
            self._later(kept)

    async def _keep(self, offer: Offer) -> None:
        kept = self._kept.setdefault(offer.host, _Kept(Backoff(self._clock)))
        if kept.runs or self._clock.monotonic_s() < kept.due_s:
            return
        kept.runs = True
        kept.backoff.begun()
        try:
            await self._pool.ensure(offer)
        except OSError as error:
            self._say(f"{self._what} {offer.host} cannot be started: {error}; it is tried again")
            self._later(kept)

    def _later(self, kept: _Kept) -> None:
        kept.runs, kept.due_s = False, self._clock.monotonic_s() + kept.backoff.pause_s()

    async def _looking(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def _hearing(self) -> None:
        while True:
            self.heard(await self._pool.gone())
