"""Agents on the nodes of a Ray cluster: one for each node with a kind of device that the fleet's file knows.

Ray lists the nodes, and starts an actor on each that holds the devices of a host and keeps the agent's process; neither
requests nor tokens go through Ray. Actors outlive this process: the next one finds them by their names.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.exceptions import ActorUnavailableError

from sloserve.core.clock import Clock, SystemClock
from sloserve.core.errors import ConfigError
from sloserve.fleet.pool.agent_child import CONFIG_ERROR
from sloserve.fleet.pool.kept_agent import digest_of, start_digest
from sloserve.fleet.pool.on_ray import placement
from sloserve.fleet.pool.on_ray.agents import FleetAgents, start
from sloserve.fleet.pool.on_ray.calls import cancelled, exit_at_once, first_line, found, kill, result
from sloserve.fleet.pool.on_ray.cluster import RAY_ERRORS, NodeReader, RayNode, connect, draining, free_on
from sloserve.fleet.pool.pool import Gone, Offer

logger = logging.getLogger(__name__)

_ASK_AGAIN_S: Final = 1.0
_FREE_S: Final = 5.0
"""Seconds to wait for a node's resources, which Ray shows as free a moment after they are."""
_PLACE_S: Final = 60.0
"""Seconds for Ray to place and start an actor on a node that has room, before another try."""
_MARGIN_S: Final = 15.0
"""Seconds for an agent's engines to end, and for Ray's own answers, beyond the time that the agent has."""
_LEAST_DRAIN_S: Final = 2.0


@dataclass(slots=True)
class _Kept:
    """An actor with its agent.

    Args:
        name: Name of the actor.
        group: Name of its placement group, as far as it is known.
        is_new: Whether this process has made the actor; otherwise it found it.
        awaited: Task that looks after the agent.
        ending: Task that ends the agent, if it was ordered to end.
        is_reported: Whether the actor was reported as unreachable.
        incarnation: Process of the actor, as far as it is known; Ray may start another.
    """

    name: str
    group: str
    node: RayNode
    actor: Any
    is_new: bool
    awaited: "asyncio.Task[None] | None" = None
    ending: "asyncio.Task[None] | None" = None
    is_reported: bool = False
    ends: int = 0
    incarnation: str | None = None


class RayPool:
    """Runs agents on the nodes of a Ray cluster; see :class:`~sloserve.fleet.pool.pool.Pool`.

    Args:
        address: Address of the cluster, as Ray takes it.
        devices: Number of devices of a host, by each kind of device that the file knows; ``None`` for the number that
            Ray reports.
        agents: What agents are started with.
        bundles: Resources that an agent holds, and further hosts are asked for with, by kind of device, if they are not
            its GPUs or, without GPUs, the CPUs of a node.
        is_shared: Whether nodes on other machines reach the fleet's store. Otherwise only nodes of this machine are
            offered, and their agents listen on sockets.

    Raises: ConfigError where the cluster cannot be reached.
    """

    def __init__(
        self,
        address: str,
        devices: Mapping[str, int | None],
        agents: FleetAgents,
        *,
        bundles: Mapping[str, Mapping[str, float]] | None = None,
        is_shared: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._agents, self._clock = agents, clock or SystemClock()
        self._digest = digest_of(agents.files, agents.release)
        self._nodes: dict[str, RayNode] = {}
        self._ids: frozenset[str] = frozenset()
        self._kept: dict[str, _Kept] = {}
        self._strange: set[str] = set()
        self._gone: asyncio.Queue[Gone | ConfigError] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._replacing = asyncio.Lock()
        self._closed = False
        self._demand = placement.HostDemand(agents.fleet)
        connect(address, f"sloserve/{agents.fleet}")
        self._own_node = str(ray.get_runtime_context().get_node_id())
        only_at = None if is_shared else str(ray.util.get_node_ip_address())
        self._reader = NodeReader(devices, bundles or {}, only_at, self._say_once)

    async def offers(self) -> Mapping[str, Offer]:
        try:
            nodes, leaving = await asyncio.to_thread(lambda: (ray.nodes(), draining()))
        except RAY_ERRORS as error:
            raise OSError(f"Ray: {error}") from error
        if any(one["NodeID"] == self._own_node and not one["Alive"] for one in nodes):
            exit_at_once("the node that this pool runs on has left the cluster, and agents cannot be reached from it")
        nodes_here = self._reader.nodes(nodes)
        self._nodes = {host: node for host, node in nodes_here.items() if node.id not in leaving}
        alive = frozenset(str(one["NodeID"]) for one in nodes if one["Alive"])
        for host, kept in list(self._kept.items()):
            if kept.node.id not in alive:
                self._lost(host, kept, "has died with its actor: its node has left the cluster")
            elif kept.node.id in leaving and kept.ending is None:
                kept.ending = self._spawn(self._leave_node(host, kept, leaving[kept.node.id]))
        if alive != self._ids and not self._closed:
            self._ids = alive
            self._spawn(self._end_strays())
        return {host: node.offer for host, node in self._nodes.items()}

    async def ensure(self, offer: Offer) -> None:
        node = self._nodes.get(offer.host)
        if self._closed or node is None or offer.host in self._kept:
            return
        name = placement.name_of(self._agents.fleet, node)
        try:
            actor = await asyncio.to_thread(found, name)
            is_new, group = actor is None, name
            if is_new:
                group = await self._room(name, node)
                actor = await asyncio.to_thread(start, self._agents, name, group, offer, node.bundle)
        except RAY_ERRORS as error:
            raise OSError(f"Ray: {error}") from error
        if not is_new:
            logger.info("the agent of host %s runs already; this pool looks after it", offer.host)
        kept = self._kept[offer.host] = _Kept(name, group, node, actor, is_new)
        kept.awaited = asyncio.create_task(self._watch(offer.host, kept))

    async def gone(self) -> Gone:
        heard = await self._gone.get()
        if isinstance(heard, ConfigError):
            raise heard
        return heard

    async def drain(self, host: str, *, at_once: bool = False) -> None:
        kept = self._kept.get(host)
        if kept is None:
            return
        if at_once:
            kept.ending = self._spawn(self._kill(host, kept))
        elif kept.ending is None:
            kept.ending = self._spawn(self._end(host, kept, self._agents.drain_s))
        await asyncio.gather(asyncio.shield(kept.ending), return_exceptions=True)

    async def want(self, hosts: Mapping[str, int]) -> None:
        try:
            await asyncio.to_thread(self._ask, hosts)
        except RAY_ERRORS as error:
            raise OSError(f"Ray: {error}") from error

    async def close(self, *, at_once: bool = False) -> None:
        self._closed = True
        try:
            await asyncio.to_thread(self._demand.withdraw)
        except RAY_ERRORS as error:
            logger.warning("Ray: %s", first_line(error))
        ending = [self.drain(host, at_once=at_once) for host in list(self._kept)]
        self._nodes = {}
        # Agents of a process before this one may not have been found yet, or a start may be under way.
        await asyncio.gather(*ending, self._end_strays(at_once=at_once))
        await cancelled(list(self._tasks))

    async def leave(self) -> None:
        """Leave all agents running, for the next process of this pool."""
        self._closed = True
        await cancelled([*self._tasks, *(kept.awaited for kept in self._kept.values())])
        await asyncio.to_thread(ray.shutdown)

    async def _room(self, name: str, node: RayNode) -> str:
        """Return the name of a group on a node for its agent. Raises: OSError where others hold what it needs.

        Without this a second fleet would wait for the devices of the first, and autoscalers would count that as demand.
        """
        kind, until_s = node.offer.device, self._clock.monotonic_s() + _FREE_S
        while True:
            taken = await asyncio.to_thread(self._demand.take, kind, node.id)
            if taken is not None:
                return taken
            is_late = self._clock.monotonic_s() > until_s
            free, waits = await asyncio.to_thread(lambda: (free_on(node.id), self._demand.waits(kind)))
            lacking = [what for what, amount in node.bundle.items() if free.get(what, 0.0) < amount]
            if not lacking and (is_late or not waits):  # a new node may be about to take a group that waits
                await asyncio.to_thread(self._demand.less, kind)
                return await asyncio.to_thread(placement.hold, name, node)
            if is_late:
                parts = [f"{free.get(one, 0.0):g} of {node.bundle[one]:g} {one} are free" for one in lacking]
                raise OSError(f"{', '.join(parts)} on its node; another user of the cluster holds them")
            await asyncio.sleep(_ASK_AGAIN_S / 4.0)

    def _ask(self, hosts: Mapping[str, int]) -> None:
        for kind, count in hosts.items():
            working = [one for one in self._kept.values() if one.ending is None and one.node.offer.device == kind]
            # Known nodes without an agent of ours may be further hosts; all others are none.
            idle = {
                node.id for host, node in self._nodes.items() if host not in self._kept and node.offer.device == kind
            }
            bundle = self._reader.bundle(kind, self._nodes)
            self._demand.ask(kind, max(count - len(working), 0), bundle, self._ids - idle)

    async def _watch(self, host: str, kept: _Kept) -> None:
        """Look after an agent until it is lost."""
        if not await self._is_placed(kept):
            self._lost(host, kept, "was not placed: Ray has found no room for its actor")
            return
        while True:
            try:
                report = await result(kept.actor.look_after.remote(kept.ends, self._agents.unattended_s))
                await self._heard(host, kept, report)
            except ActorUnavailableError as error:
                if not (kept.is_reported or kept.ending):
                    self._gone.put_nowait(Gone(host, f"cannot be reached: {first_line(error)}", certain=False))
                kept.is_reported = True
                await asyncio.sleep(_ASK_AGAIN_S)
            except RAY_ERRORS as error:
                if kept.ending is None:
                    self._lost(host, kept, f"has died with its actor: {first_line(error)}")
                return

    async def _is_placed(self, kept: _Kept) -> bool:
        until_s = self._clock.monotonic_s() + _PLACE_S
        while self._clock.monotonic_s() < until_s:
            try:
                if await asyncio.to_thread(placement.is_placed, self._agents.fleet, kept.node):
                    return True
            except RAY_ERRORS as error:
                logger.warning("Ray: %s", first_line(error))
            await asyncio.sleep(_ASK_AGAIN_S / 4.0)
        return False

    async def _heard(self, host: str, kept: _Kept, report: Mapping[str, Any]) -> None:
        """Follow an actor's report. Raises: RayError."""
        kept.is_reported, kept.group = False, report.get("group", kept.group)
        if kept.incarnation not in (None, report["incarnation"]):
            kept.ends = 0
            self._gone.put_nowait(Gone(host, "has died with its actor, and Ray has started both again", certain=False))
        is_first = kept.is_new and kept.ends == 0 and kept.incarnation in (None, report["incarnation"])
        kept.incarnation = report["incarnation"]
        if kept.ending is not None:
            return
        if report["ends"] > kept.ends:
            kept.ends = report["ends"]
            await self._ended(host, kept, report, is_first=is_first)
        elif report["is_ending"]:  # another process of this pool has ended it
            self._lost(host, kept, "has ended because it was ordered to")
        elif report["start"] != start_digest(self._agents.command(kept.node.offer), self._agents.environment):
            kept.ending = self._spawn(self._replace(host, kept))
        elif report["digest"] != self._digest:
            logger.info("the agent of host %s reads its file again: the file or the release has changed", host)
            await result(kept.actor.change.remote(dict(self._agents.files), self._agents.release))

    async def _ended(self, host: str, kept: _Kept, report: Mapping[str, Any], *, is_first: bool) -> None:
        # A later agent may meet a fault that passes, such as a store that is away.
        if report["status"] == CONFIG_ERROR and is_first:
            end = await result(kept.actor.end_of_log.remote())
            self._gone.put_nowait(ConfigError(f"the agent of node {host} {report['what']}, which ends with\n{end}"))
        else:
            self._gone.put_nowait(Gone(host, report["what"], certain=True))

    async def _replace(self, host: str, kept: _Kept) -> None:
        """End an agent in order, one host at a time, so that another starts with other options."""
        async with self._replacing:
            logger.warning("the agent of host %s is replaced: its options or its environment have changed", host)
            await self._end(host, kept, self._agents.drain_s)
        self._gone.put_nowait(Gone(host, "has ended because its options have changed", certain=True))

    async def _leave_node(self, host: str, kept: _Kept, at_s: float | None) -> None:
        """End an agent before its node goes."""
        left_s = self._agents.drain_s if at_s is None else at_s - self._clock.now_s() - _LEAST_DRAIN_S
        within_s = max(min(left_s, self._agents.drain_s), _LEAST_DRAIN_S)
        self._gone.put_nowait(Gone(host, f"ends within {within_s:.0f} s, since its node is to be drained", False))
        await self._end(host, kept, within_s)

    async def _end(self, host: str, kept: _Kept, within_s: float) -> None:
        """End an agent, its actor, and what it holds."""
        await self._stop(kept.actor, within_s)
        await self._free(kept.name, kept.group)
        self._forget(host, kept)

    async def _kill(self, host: str, kept: _Kept) -> None:
        await self._free(kept.name, kept.group)
        self._forget(host, kept)

    async def _stop(self, actor: Any, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s + _MARGIN_S):
                await result(actor.stop.remote(within_s))
        except (*RAY_ERRORS, TimeoutError):
            pass  # it is killed, or has gone

    async def _free(self, name: str, group: str) -> None:
        """Kill an actor, if it still runs and Ray can be reached, and free what it holds."""
        try:
            async with asyncio.timeout(_MARGIN_S):
                await asyncio.to_thread(kill, name, group)
        except (*RAY_ERRORS, TimeoutError) as error:
            logger.warning("Ray: %s is not freed: %s", name, first_line(error))

    def _lost(self, host: str, kept: _Kept, what: str) -> None:
        """Report an agent that has gone, and free what it held."""
        self._forget(host, kept)
        self._spawn(self._free(kept.name, kept.group))
        if kept.ending is None:
            self._gone.put_nowait(Gone(host, what, certain=host in self._nodes))

    def _forget(self, host: str, kept: _Kept) -> None:
        if self._kept.get(host) is kept:
            del self._kept[host]
        if kept.awaited is not None and kept.awaited is not asyncio.current_task():
            kept.awaited.cancel()

    async def _end_strays(self, *, at_once: bool = False) -> None:
        """End agents of this fleet where it wants none: on nodes that went, or of a kind that the file lost."""
        fleet, nodes = self._agents.fleet, self._nodes
        try:
            names = await asyncio.to_thread(placement.names_of, fleet)
        except RAY_ERRORS as error:
            logger.warning("Ray: %s", first_line(error))
            return
        names -= {placement.name_of(fleet, node) for node in nodes.values()}
        names -= {kept.name for kept in self._kept.values()}
        await asyncio.gather(*(self._end_stray(name, at_once=at_once) for name in names))

    async def _end_stray(self, name: str, *, at_once: bool) -> None:
        actor = None if at_once else await asyncio.to_thread(found, name)
        if actor is not None and any(one.endswith(placement.node_in(name)) for one in self._ids):
            logger.warning("the agent of host %s ends: the fleet has no such host any more", placement.host_in(name))
            await self._stop(actor, self._agents.drain_s)
        await self._free(name, name)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _say_once(self, text: str) -> None:
        if text not in self._strange and len(self._strange) < 1000:
            self._strange.add(text)
            logger.warning("%s", text)
