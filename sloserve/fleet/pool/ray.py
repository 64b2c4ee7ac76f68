"""Agents on the nodes of a Ray cluster: one for each node with a kind of device that the fleet's file knows.

Ray lists the nodes, starts an actor on each that holds all of its devices, and reports an actor that has died. The
actor keeps the agent's process, which dies with it: neither requests nor tokens go through Ray.
"""

import asyncio
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sloserve.core import numbers
from sloserve.core.errors import ConfigError
from sloserve.core.user_folders import user_folder
from sloserve.fleet.pool.agent_child import CONFIG_ERROR, AgentChild
from sloserve.fleet.pool.pool import Gone, Offer

logger = logging.getLogger(__name__)

DEVICE_LABEL: Final = "sloserve-device"
"""Label of a node with the kind of its devices, if Ray's own label does not state it."""
_ACCELERATOR: Final = "ray.io/accelerator-type"
_NODE_ID: Final = "ray.io/node-id"
_CPU: Final = "cpu"
_NAMESPACE: Final = "sloserve"
_AT_A_TIME: Final = 8
"""Number of concurrent calls of an actor: one waits for its agent, others end it or read its log."""
_ASK_AGAIN_S: Final = 1.0
_ANSWER_S: Final = 5.0
"""Seconds in which the head of a cluster must accept a connection."""
_STOP_S: Final = 40.0
"""Seconds for an agent to end, beyond the agent's own limit, before its actor is killed."""


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of the cluster.

    Args:
        id: Ray's id of the node.
        resources: Resources that its agent's actor holds, by Ray's names.
    """

    id: str
    offer: Offer
    resources: Mapping[str, float]


@dataclass(slots=True)
class _Kept:
    """An actor with its agent.

    Args:
        awaited: Task that waits until the agent ends.
        is_ending: Whether the agent was ordered to end.
    """

    actor: Any
    awaited: "asyncio.Task[None] | None" = None
    is_ending: bool = False


class RayPool:
    """Runs agents on the nodes of a Ray cluster; see :class:`~sloserve.fleet.pool.pool.Pool`.

    Args:
        address: Address of the cluster, as Ray takes it.
        devices: Number of devices of a host, by each kind of device that the file knows; ``None`` for the number that
            Ray reports.
        files: Text by file name, to be written into the folder in which an agent is started.
        command: Returns the module and arguments that start an agent, for an offer.
        environment: Environment variables of agents. They go through Ray as an argument, which Ray shows nowhere.
        bundles: Resources that Ray's autoscaler is asked for in place of a host, by kind of device, if they are not the
            GPUs or, without GPUs, the CPUs of a node.
        is_shared: Whether nodes on other machines reach the fleet's store. Otherwise only nodes of this machine are
            offered, and their agents listen on sockets.

    Raises: ConfigError where the cluster cannot be reached.
    """

    def __init__(
        self,
        address: str,
        devices: Mapping[str, int | None],
        files: Mapping[str, str],
        command: Callable[[Offer], Sequence[str]],
        environment: Mapping[str, str],
        *,
        bundles: Mapping[str, Mapping[str, float]] | None = None,
        is_shared: bool = True,
    ) -> None:
        self._bundles = bundles or {}
        self._devices, self._files, self._command = devices, dict(files), command
        self._environment = dict(environment)
        self._nodes: dict[str, _Node] = {}
        self._kept: dict[str, _Kept] = {}
        self._started: set[str] = set()
        self._strange: set[str] = set()
        self._gone: asyncio.Queue[Gone | ConfigError] = asyncio.Queue()
        self._closed = self._has_asked_for_nodes = False
        _connect(address)
        self._own_node = str(ray.get_runtime_context().get_node_id())
        self._only_at = None if is_shared else str(ray.util.get_node_ip_address())

    async def offers(self) -> Mapping[str, Offer]:
        try:
            nodes = await asyncio.to_thread(ray.nodes)
        except (RayError, RuntimeError, OSError) as error:
            raise OSError(f"Ray: {error}") from error
        if any(one["NodeID"] == self._own_node and not one["Alive"] for one in nodes):
            _end("the node that this pool runs on has left the cluster, and agents cannot be reached from it")
        found: dict[str, _Node] = {}
        for one in sorted(nodes, key=lambda node: str(node["NodeID"])):
            node = self._node(one) if one["Alive"] else None
            if node is None:
                continue
            taken = found.setdefault(node.offer.host, node)
            if taken is not node:
                self._say_once(
                    f"two nodes are named {node.offer.host}, and one of them gets no agent: give each a name of its "
                    "own with ray start --node-name"
                )
        self._nodes = found
        return {host: node.offer for host, node in found.items()}

    async def ensure(self, offer: Offer) -> None:
        node = self._nodes.get(offer.host)
        if self._closed or node is None or offer.host in self._kept:
            return
        options = {
            "num_gpus": node.resources.get("GPU", 0.0),
            "num_cpus": node.resources.get("CPU", 0.0),
            "max_restarts": 0,  # the keeper of agents starts another, once it is notified
            "max_concurrency": _AT_A_TIME,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
        }
        try:
            made = ray.remote(AgentActor).options(**options)
            actor = made.remote(offer.host, self._files, self._command(offer), self._environment)
        except RayError as error:
            raise OSError(f"Ray: {error}") from error
        kept = self._kept[offer.host] = _Kept(actor)
        is_first = offer.host not in self._started
        self._started.add(offer.host)
        kept.awaited = asyncio.create_task(self._watch(offer.host, kept, is_first))

    async def gone(self) -> Gone:
        heard = await self._gone.get()
        if isinstance(heard, ConfigError):
            raise heard
        return heard

    async def drain(self, host: str, *, at_once: bool = False) -> None:
        kept = self._kept.get(host)
        if kept is None or kept.awaited is None:
            return
        kept.is_ending = True
        try:
            async with asyncio.timeout(0.0 if at_once else _STOP_S):
                await _result(kept.actor.stop.remote())
                await asyncio.shield(kept.awaited)
        except (RayError, RuntimeError, OSError, TimeoutError):
            pass  # it is killed, or has gone
        _kill(kept.actor)  # what it holds is free only now
        await kept.awaited

    async def want(self, hosts: Mapping[str, int]) -> None:
        bundles: list[dict[str, float]] = []
        selectors: list[dict[str, str]] = []
        for kind, count in hosts.items():
            # By their ids, or an autoscaler could keep drained nodes in place of working ones.
            working = [
                self._nodes[host] for host, kept in self._kept.items() if host in self._nodes and not kept.is_ending
            ]
            working = [node for node in working if node.offer.device == kind][:count]
            bundles += [self._bundle(kind, node) for node in working]
            selectors += [{_NODE_ID: node.id} for node in working]
            bundles += [self._bundle(kind)] * (count - len(working))
            selectors += [{}] * (count - len(working))
        self._has_asked_for_nodes = True
        try:
            await asyncio.to_thread(request_resources, bundles=bundles, bundle_label_selectors=selectors)
        except (RayError, RuntimeError, OSError) as error:
            raise OSError(f"Ray: {error}") from error

    def _bundle(self, kind: str, node: _Node | None = None) -> dict[str, float]:
        """Return the resources to ask for in place of one host: all of a node, so that no two fit on one."""
        stated = self._bundles.get(kind)
        if stated is not None:
            return dict(stated)
        alike = [node] if node else [one for one in self._nodes.values() if one.offer.device == kind]
        if alike:
            largest = max(alike, key=lambda one: sum(one.resources.values()))
            return dict(largest.resources)
        return {"CPU": 1} if kind == _CPU else {"GPU": self._devices[kind] or 1}

    async def close(self, *, at_once: bool = False) -> None:
        self._closed = True
        if self._has_asked_for_nodes:  # else the cluster would keep them
            with suppress(OSError):
                await self.want({})
        await asyncio.gather(*(self.drain(host, at_once=at_once) for host in list(self._kept)))

    async def _watch(self, host: str, kept: _Kept, is_first: bool) -> None:
        heard: Gone | ConfigError
        try:
            status, log = await self._ended(host, kept)
            heard = Gone(host, f"has ended with status {status}; its log on that node is {log}", True)
            if status == CONFIG_ERROR and is_first:
                end = await _result(kept.actor.end_of_log.remote())
                heard = ConfigError(f"the agent of node {host} does not start; its log {log} ends with\n{end}")
        except (RayError, RuntimeError, OSError) as error:
            # Ray marks a node dead before its actors: on one that it counts as alive the process has ended.
            is_there = await self._has_asked() and host in self._nodes
            reason = str(error).strip().partition("\n")[0]
            heard = Gone(host, f"has died with its actor: {reason}", is_there)
        _kill(kept.actor)
        self._kept.pop(host, None)
        if not kept.is_ending:
            self._gone.put_nowait(heard)

    async def _ended(self, host: str, kept: _Kept) -> tuple[int, str]:
        """Wait until the agent ends; return its status and its log. Raises: RayError where its actor dies."""
        is_said = False
        while True:
            try:
                status, log = await _result(kept.actor.wait.remote())
                return int(status), str(log)
            except ActorUnavailableError as error:
                if not is_said and not kept.is_ending:
                    self._gone.put_nowait(Gone(host, f"cannot be reached: {error}", certain=False))
                is_said = True
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _has_asked(self) -> bool:
        try:
            await self.offers()
        except OSError:
            return False
        return True

    def _node(self, node: Mapping[str, Any]) -> _Node | None:
        """Return the node that Ray describes in ``node``, if the file knows its kind of device, else ``None``."""
        labels, resources = node.get("Labels", {}), node["Resources"]
        gpus, cpus = int(resources.get("GPU", 0)), float(resources.get("CPU", 0))
        device = labels.get(DEVICE_LABEL) or labels.get(_ACCELERATOR, "").lower() or (_CPU if not gpus else "")
        address = str(node["NodeManagerAddress"])
        host = re.sub(r"[^\w.:-]", "-", str(node.get("NodeName") or address), flags=re.ASCII)[:100]
        if not gpus and not cpus:  # such as a head that has no work
            return None
        if device not in self._devices:
            kind = f"its kind of device, {device or 'unknown'}"
            self._say_once(f"node {host} gets no agent: {kind}, is not in pool.devices ({', '.join(self._devices)})")
            return None
        if self._only_at not in (None, address):
            self._say_once(f"node {host} gets no agent: the store is a file of this machine; use a PostgreSQL server")
            return None
        count = self._devices[device] or gpus or 1
        held = {"GPU": float(gpus)} if gpus else {"CPU": cpus}
        door = address if self._only_at is None else None
        return _Node(str(node["NodeID"]), Offer(host, device, count, int(resources.get("memory", 0)), door), held)

    def _say_once(self, text: str) -> None:
        if text not in self._strange and len(self._strange) < 1000:
            self._strange.add(text)
            logger.warning("%s", text)


class AgentActor:
    """Keeps the process of one agent on a node. Its methods run in threads of their own."""

    def __init__(
        self, host: str, files: Mapping[str, str], command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """Start the agent of ``host``, the name of its state folder on this node, where ``files`` are written."""
        folder = user_folder("XDG_STATE_HOME", ".local/state") / "nodes" / host
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        arguments = [part.replace(FOLDER, str(folder)) for part in command]
        self._child = AgentChild(arguments, folder / "agent.log", environment)
        self._loop = asyncio.new_event_loop()
        self._status: Future[int] = Future()
        # The agent is the child of a thread that lives as long as it does: with the thread it would die.
        threading.Thread(target=self._run, daemon=True).start()

    def wait(self) -> tuple[int, str]:
        """Wait until the agent has ended; return its status and its log. Raises: OSError where it cannot be started."""
        return self._status.result(), str(self._child.log)

    def stop(self) -> None:
        """End the agent; what it runs goes back into the queue."""
        stopping = self._child.stop(at_once=False)
        asyncio.run_coroutine_threadsafe(stopping, self._loop).result()

    def end_of_log(self) -> str:
        """Return the last lines of the agent's log."""
        return self._child.end_of_log()

    def _run(self) -> None:
        async def whole() -> int:
            await self._child.start()
            return await self._child.wait()

        asyncio.set_event_loop(self._loop)
        try:
            self._status.set_result(self._loop.run_until_complete(whole()))
        except BaseException as error:
            self._status.set_exception(error)
        self._loop.run_forever()  # for calls of stop() that still come


FOLDER: Final = "{folder}"
"""Placeholder in an agent's command for the folder of its state on its node."""


def _connect(address: str) -> None:
    """Connect to the cluster. Raises: ConfigError."""
    failed: list[Exception] = []
    host, _, port = address.rpartition(":")

    def connect() -> None:
        try:
            if host and numbers.is_whole(port):  # where nothing listens, Ray itself tries for minutes
                socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
            ray.init(address, namespace=_NAMESPACE, log_to_driver=False, configure_logging=False)
        except (RayError, RuntimeError, OSError, OverflowError, ValueError) as error:
            failed.append(error)

    # In the main thread Ray would take the signals that stop this process.
    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if failed:
        raise ConfigError(
            f"pool.ray: the cluster {address!r} cannot be reached: {failed[0]}; start one with ray start --head"
        )


def _end(reason: str) -> None:
    """End this process, which ends its actors too; it is started again.

    It ends at once, since Ray's own shutdown waits for its node.
    """
    logger.error("%s: the pool stops, and must be started again", reason)
    logging.shutdown()
    os._exit(1)


def _kill(actor: Any) -> None:
    """Kill an actor's process, if it still runs and Ray can be reached."""
    with suppress(RayError, RuntimeError, ValueError, OSError):
        ray.kill(actor)


async def _result(reference: Any) -> Any:
    """Return the result of a remote call. Raises: RayError, also in place of what the actor raised."""
    return await asyncio.wrap_future(reference.future())
