"""Agents that others start: systemd, Slurm, a Deployment. They announce themselves through the store.

The service that started an agent starts it again; this process only learns about it, and can ask it to end.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

from sloserve.core.errors import StoreError
from sloserve.fleet.contract.reports import AgentReport, agent_report
from sloserve.fleet.planning.snapshot import ALIVE_S
from sloserve.fleet.pool.pool import Gone, Offer
from sloserve.fleet.store.store import Store

LOOK_S: Final = 0.5
"""Seconds between looks into the store while :meth:`RegisteredPool.gone` waits."""


class RegisteredPool:
    """Agents that others start, found in the store; see :class:`~sloserve.fleet.pool.pool.Pool`.

    Args:
        store: Store of the fleet.
        others: Hosts with agents that belong to another pool.
        width: Number of devices of an instance, by kind of device.
    """

    def __init__(self, store: Store, others: Collection[str], width: Callable[[str], int]) -> None:
        self._members, self._others, self._width = store.members, others, width
        self._living: dict[str, Offer] = {}
        self._drained: set[str] = set()
        self._gone: asyncio.Queue[Gone] = asyncio.Queue()

    def follow(self, others: Collection[str]) -> None:
        """Go on with other hosts that belong to another pool; the services of its agents have them read the file."""
        self._others = others

    async def offers(self) -> Mapping[str, Offer]:
        """Return the hosts with live agents. Raises: OSError while the store is away."""
        try:
            rows = await asyncio.to_thread(self._members.agents)
        except StoreError as error:
            raise OSError(str(error)) from error
        said = [(row.age_s, report) for row in rows if (report := agent_report(row.state)) is not None]
        said = [(age_s, report) for age_s, report in said if report.host not in self._others]
        living = {report.host: self._offer(report) for age_s, report in said if age_s <= ALIVE_S}
        for age_s, report in said:  # an agent that ends in order leaves no row
            host = report.host
            if host in self._living and host not in living and host not in self._drained:
                self._gone.put_nowait(Gone(host, f"has given no sign of life for {age_s:.0f} s", certain=False))
        self._drained &= {report.host for _, report in said}
        self._living = living
        return living

    async def ensure(self, offer: Offer) -> None:
        """Do nothing: others have started the host's agent."""

    async def gone(self) -> Gone:
        while self._gone.empty():
            try:
                await self.offers()
            except OSError:  # the store is away: no agent can say that it lives
                pass
            if self._gone.empty():
                await asyncio.sleep(LOOK_S)
        return self._gone.get_nowait()

    async def drain(self, host: str, *, at_once: bool = False) -> None:
        """Ask the agent to end; it notices at its next sign of life. Raises: StoreError."""
        self._drained.add(host)
        await asyncio.to_thread(self._members.order_end, f"agent:{host}")

    async def want(self, hosts: Mapping[str, int]) -> None:
        """Do nothing: hosts come as others start them."""

    async def close(self, *, at_once: bool = False) -> None:
        """Do nothing: agents that others started continue without this process."""

    def _offer(self, report: AgentReport) -> Offer:
        device = report.instances[0].device if report.instances else ""
        address = None if report.door.startswith("unix:") else report.door
        return Offer(report.host, device, len(report.instances) * self._width(device), 0, address)
