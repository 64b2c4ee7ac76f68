"""Keeps an agent on every host that a pool offers: on those that are new, and on those whose agent has ended."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sloserve.core.clock import Clock, SystemClock
from sloserve.fleet.pool.pool import Gone, Offer, Pool

logger = logging.getLogger(__name__)

THE_AGENT: Final = "the agent of host"
LOOK_S: Final = 0.5
"""Between looks at what the pool offers."""
_AGAIN_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Between starts of an agent that ends by itself; the last again and again."""
_LIVED_S: Final = 60.0
"""An agent that ran for so long is started again as soon as one that ends for the first time."""


@dataclass(slots=True)
class _Kept:
    """A host's agent. starts: in a row, of agents that lived shortly. due_s: when the next may start, if none runs."""

    runs: bool = False
    starts: int = 0
    begun_s: float = 0.0
    due_s: float = float("-inf")


class AgentKeeper:
    """Of one pool. say: prints a line for each agent that goes. what: is kept, in that line before a host's name."""

    def __init__(
        self, pool: Pool, say: Callable[[str], None], what: str = THE_AGENT, clock: Clock | None = None
    ) -> None:
        self._what = what
        self._pool, self._say, self._clock = pool, say, clock or SystemClock()
        self._kept: dict[str, _Kept] = {}
        self._drained: set[str] = set()
        self._away = False

    async def run(self) -> None:
        """Until it is cancelled. Raises: ConfigError where an agent says that something is set wrongly."""
        tasks = [asyncio.create_task(self._looking()), asyncio.create_task(self._hearing())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self, host: str) -> None:
        """Ends a host's agent, and starts none there until the host has gone and come back, or :meth:`resume`."""
        self._drained.add(host)
        await self._pool.drain(host)
        self._kept.pop(host, None)

    def resume(self, host: str) -> None:
        """A drained host may have an agent again."""
        self._drained.discard(host)

    @property
    def drained(self) -> frozenset[str]:
        """Hosts that are there and have no agent, since they are not needed."""
        return frozenset(self._drained)

    async def look(self) -> None:
        """Has agents started where one may. What cannot be known or started now is tried again."""
        try:
            offers = await self._pool.offers()
        except OSError as error:
            if not self._away:
                logger.warning("which hosts there are is not known; their agents go on: %s", error)
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
        """An agent has gone: another is started if it is certain, and its host is still there."""
        kept = self._kept.get(gone.host)
        again = gone.certain and kept is not None
        self._say(f"{self._what} {gone.host} {gone.what}{'; it is started again' if again else ''}")
        if again and kept is not None:
            self._later(kept)

    async def _keep(self, offer: Offer) -> None:
        kept = self._kept.setdefault(offer.host, _Kept())
        if kept.runs or self._clock.monotonic_s() < kept.due_s:
            return
        kept.runs, kept.begun_s = True, self._clock.monotonic_s()
        try:
            await self._pool.ensure(offer)
        except OSError as error:
            self._say(f"{self._what} {offer.host} cannot be started: {error}; it is tried again")
            self._later(kept)

    def _later(self, kept: _Kept) -> None:
        now_s = self._clock.monotonic_s()
        kept.starts = 0 if now_s - kept.begun_s > _LIVED_S else kept.starts
        kept.runs, kept.due_s = False, now_s + _AGAIN_S[min(kept.starts, len(_AGAIN_S) - 1)]
        kept.starts += 1

    async def _looking(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def _hearing(self) -> None:
        while True:
            self.heard(await self._pool.gone())
