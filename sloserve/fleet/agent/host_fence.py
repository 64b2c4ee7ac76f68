"""One agent for each host: two would start engines on the same devices.

An agent holds a lock on a file of its state folder, and a lease of its host in the store, which each sign of life
renews. The lock says at once whether an agent before it has died. The lease is for an agent that another machine, or
another state folder, takes for the same host, and for one that was suspended: it finds that another has the host.
"""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sloserve.core.errors import ConfigError
from sloserve.core.file_lock import OwnLock
from sloserve.fleet.contract.reports import AgentReport, agent_report
from sloserve.fleet.store.records import HostRenewed
from sloserve.fleet.store.store import Store

logger = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 2.0
"""Seconds between looks at another agent's lease: longer than the time between two signs of life."""


class HostFence:
    """The claim of this process to be the agent of ``host``, held once :meth:`take` has returned.

    Args:
        host: Name of the host.
        store: Store of the fleet.
        state_folder: Folder of the lock file.
        lease_s: Seconds after the last sign of life in which no other state folder's agent may take the host.
    """

    def __init__(self, host: str, store: Store, state_folder: Path, lease_s: float) -> None:
        self._host, self._store, self._lease_s = host, store, lease_s
        self._lock_file = state_folder / f"agent-{host}.lock"
        self._lock: OwnLock | None = None
        # The value is new in each process: the claims of an agent before this one are not this one's.
        self.holder: Final = f"{host}:{secrets.token_hex(8)}"
        self.lost = asyncio.Event()
        """Event that is set once another agent has the host: this one's engines must end."""
        self.must_end = asyncio.Event()
        """Event that is set once the fleet wants this agent to drain and end."""

    @property
    def id(self) -> str:
        """Name under which it gives signs of life."""
        return f"agent:{self._host}"

    async def take(self) -> None:
        """Become the agent of the host; claims of one that has died go back into the queue.

        Raises: ConfigError if another agent has the host, and lives.
        """
        lock = OwnLock(self._lock_file, f"an agent of host {self._host}")
        try:
            await self._take_lease(lock.name)
        except BaseException:
            lock.close()
            raise
        self._lock = lock

    async def beat(self, state: Mapping[str, Any]) -> None:
        """Give a sign of life with this state. Set :attr:`lost` if another agent has the host by now."""
        renewed = await asyncio.to_thread(self._renewed, state)
        if renewed.must_end and not self.must_end.is_set():
            logger.warning("stopping the agent of host %s: running requests finish or are requeued", self._host)
            self.must_end.set()
        if renewed.kept:
            return
        if not self.lost.is_set():
            logger.error(
                "another agent has taken host %s, since this one gave no sign of life for %g s (suspended, or cut off "
                "from the store): it ends its engines",
                self._host,
                self._lease_s,
            )
        self.lost.set()

    async def others(self) -> list[tuple[AgentReport, float]]:
        """Return the reports of all other agents, each with its age in seconds."""
        rows = await asyncio.to_thread(self._store.members.agents)
        found = [(agent_report(row.state), row.age_s) for row in rows if row.id != self.id]
        return [(report, age_s) for report, age_s in found if report is not None]

    async def leave(self, *, to_next: bool = False) -> None:
        """Free the host for another agent.

        Args:
            to_next: Whether an agent of the same state folder follows at once: then the fleet does not learn of it.
        """
        try:
            if not to_next:
                await asyncio.to_thread(self._store.members.leave, self.id, self.holder)
        finally:
            if self._lock is not None:
                self._lock.close()

    def _renewed(self, state: Mapping[str, Any]) -> HostRenewed:
        members = self._store.members
        renewed = members.renew_host(self.id, self.holder, state, self._lease_s)
        # The store forgets the row of an agent that was away for long, and then the host is free.
        if renewed.kept or not members.take_host(self.id, self.holder, "", self._lease_s).taken:
            return renewed
        return members.renew_host(self.id, self.holder, state, self._lease_s)

    async def _take_lease(self, place: str) -> None:
        found_s: float | None = None
        while True:
            found = await asyncio.to_thread(self._store.members.take_host, self.id, self.holder, place, self._lease_s)
            if found.taken:
                break
            if found_s is None:
                logger.warning(
                    "host %s has another agent, of another state folder or machine: waiting to see whether it lives, "
                    "for at most %g s",
                    self._host,
                    self._lease_s,
                )
            elif found.until_s != found_s:
                raise ConfigError(
                    f"host {self._host} has an agent on another machine, or with another state folder: a second one "
                    "would start engines on the same devices, so this one starts none; stop the other, or give this "
                    "host a name of its own in the fleet's file"
                )
            found_s = found.until_s
            await asyncio.sleep(LOOK_AGAIN_S)
        if found.before is not None:
            claims = await asyncio.to_thread(self._store.requests.take_from, found.before)
            logger.warning("the agent of host %s before this one has ended; claims given back: %d", self._host, claims)
