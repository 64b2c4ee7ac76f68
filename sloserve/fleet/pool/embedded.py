"""Agents of this machine: children of this process, one for each host of the fleet's file."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from sloserve.core.errors import ConfigError
from sloserve.fleet.pool.agent_child import CONFIG_ERROR, KILL_S, AgentChild
from sloserve.fleet.pool.pool import Gone, Offer


class EmbeddedPool:
    """Runs agents as child processes of this one; see :class:`~sloserve.fleet.pool.pool.Pool`.

    Args:
        offers: The hosts.
        command: Returns the module and arguments that start a host's agent.
        logs: Folder of the agents' logs.
        environment: Environment variables of agents.
        what: Name of the started process, with which the names of logs begin.
        stop_s: Seconds for the process to end before it is killed.
    """

    def __init__(
        self,
        offers: Iterable[Offer],
        command: Callable[[str], Sequence[str]],
        logs: Path,
        environment: Mapping[str, str],
        what: str = "agent",
        *,
        stop_s: float = KILL_S,
    ) -> None:
        self._stop_s = stop_s
        self._what = what
        self._offers = {offer.host: offer for offer in offers}
        self._command, self._logs, self._environment = command, logs, environment
        self._running: dict[str, tuple[AgentChild, asyncio.Task[None]]] = {}
        self._gone: asyncio.Queue[Gone | ConfigError] = asyncio.Queue()
        self._started: set[str] = set()
        self._has_followed = False
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Tasks that drain the agents of hosts that left the fleet's file."""
        self._closed = False

    async def offers(self) -> Mapping[str, Offer]:
        return self._offers

    async def ensure(self, offer: Offer) -> None:
        host = offer.host
        if self._closed or host in self._running:
            return
        log = self._logs / f"{self._what}-{host}.log"
        child = AgentChild(self._command(host), log, self._environment)
        # After a change of the file a fault may pass: the file may just be edited.
        is_first = host not in self._started and not self._has_followed
        self._started.add(host)
        await child.start()
        self._running[host] = child, asyncio.create_task(self._watch(host, child, is_first))

    async def gone(self) -> Gone:
        heard = await self._gone.get()
        if isinstance(heard, ConfigError):
            raise heard
        return heard

    async def drain(self, host: str, *, at_once: bool = False) -> None:
        if host in self._running:
            child, watching = self._running[host]
            await child.stop(at_once=at_once, within_s=self._stop_s)
            await watching

    def follow(self, offers: Iterable[Offer]) -> None:
        """Go on with the hosts of another version of the fleet's file.

        Agents of hosts that stay read the file again. Agents of hosts that left end once what they serve has ended; the
        keeper starts agents of hosts that are new.
        """
        self._offers, self._has_followed = {offer.host: offer for offer in offers}, True
        for host, (child, _) in list(self._running.items()):
            if host in self._leaving or child.is_ending:
                continue  # if its host came back, another agent follows the one that ends
            if host in self._offers:
                child.reload()
            else:
                self._leaving[host] = asyncio.create_task(self.drain(host))

    async def want(self, hosts: Mapping[str, int]) -> None:
        """Do nothing: the hosts of this machine are fixed."""

    async def close(self, *, at_once: bool = False) -> None:
        self._closed = True
        await asyncio.gather(*(self.drain(host, at_once=at_once) for host in list(self._running)))
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)

    async def _watch(self, host: str, child: AgentChild, is_first: bool) -> None:
        status = await child.wait()
        del self._running[host]
        has_left = self._leaving.pop(host, None) is not None
        if has_left and host in self._offers and not self._closed:  # it came back while its agent still ended
            self._gone.put_nowait(Gone(host, "has ended, as its host had left the fleet's file", True))
        if child.is_ending:
            return
        # A later agent may meet a fault that passes, such as a store that is away.
        if status == CONFIG_ERROR and is_first:
            text = f"{self._what} {host} does not start; its log {child.log} ends with\n{child.end_of_log()}"
            self._gone.put_nowait(ConfigError(text))
        else:
            self._gone.put_nowait(Gone(host, f"has ended with status {status}; its log is {child.log}", True))
