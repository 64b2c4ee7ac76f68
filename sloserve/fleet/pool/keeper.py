"""Keeps an agent on every host that a pool offers: on new hosts, and on hosts where the agent has ended."""

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
"""Seconds between looks at what the pool offers."""
_AGAIN_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds between starts of an agent that ends by itself; the last value is repeated."""
_LIVED_S: Final = 60.0
"""Seconds of running after which an agent that ends is restarted without a longer pause, as at its first end."""


@dataclass(slots=True)
class _Kept:
    """The agent of a host.

    Args:
        starts: Number of consecutive starts of agents that ended soon.
        due_s: Time when the next may start, if none runs.
    """

    runs: bool = False
    starts: int = 0
    begun_s: float = 0.0
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
