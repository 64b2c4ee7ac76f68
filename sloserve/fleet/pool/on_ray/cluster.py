"""A Ray cluster as a fleet sees it: nodes that can have an agent, and nodes that are to be drained."""

import logging
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray._private.state import (
    state as global_state,
)  # Ray Train reads draining nodes here, too: no public call has them
from ray.exceptions import RayError

from sloserve.core import numbers
from sloserve.core.errors import ConfigError
from sloserve.fleet.pool.pool import Offer

DEVICE_LABEL: Final = "sloserve-device"
"""Label of a node with the kind of its devices, if Ray's own label does not state it."""
CPU: Final = "cpu"
RAY_ERRORS: Final = (RayError, RuntimeError, OSError, ValueError)
"""What a call of Ray raises where the cluster cannot be reached, or lacks what was asked for."""
_ACCELERATOR: Final = "ray.io/accelerator-type"
_ANSWER_S: Final = 5.0
"""Seconds in which the head of a cluster must accept a connection."""


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node of the cluster.

    Args:
        id: Ray's id of the node.
        bundle: Resources that its agent holds, by Ray's names.
    """

    id: str
    offer: Offer
    bundle: Mapping[str, float]


def connect(address: str, namespace: str) -> None:
    """Connect to the cluster. Raises: ConfigError."""
    failed: list[Exception] = []
    host, _, port = address.rpartition(":")

    def connect() -> None:
        try:
            if host and numbers.is_whole(port):  # where nothing listens, Ray itself tries for minutes
                socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
            ray.init(address, namespace=namespace, log_to_driver=False, configure_logging=False)
        except (*RAY_ERRORS, OverflowError) as error:
            failed.append(error)

    # In the main thread Ray would take the signals that stop this process.
    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if failed:
        raise ConfigError(
            f"pool.ray: the cluster {address!r} cannot be reached: {failed[0]}; start one with ray start --head"
        )
    # It warns of restartable actors that end with their placement group, which is how a pool ends them.
    logging.getLogger("ray.actor").setLevel(logging.ERROR)


def draining() -> dict[str, float | None]:
    """Return the nodes that are to be drained, by id: the time at which each may go, or ``None`` if it is unknown.

    An autoscaler or ``ray drain-node`` says so, for example when a cloud takes a spot instance back.
    """
    read = getattr(global_state, "get_draining_nodes", dict)  # it may go, since it is no public call
    found: Mapping[str, int] = read()
    return {node: at_ms / 1000.0 if at_ms else None for node, at_ms in found.items()}


def free_on(node: str) -> Mapping[str, float]:
    """Return the free resources of a node."""
    found: Mapping[str, Mapping[str, float]] = global_state.available_resources_per_node()
    return found.get(node, {})


class NodeReader:
    """Reads which nodes can have an agent.

    Args:
        devices: Number of devices of a host, by each kind of device that the file knows; ``None`` for the number that
            Ray reports.
        bundles: Resources that an agent holds on a node, by kind of device, if they are not its devices.
        only_at: Address of the only machine with hosts, if the fleet's store is a file there.
        say_once: Logs a text, but not twice.
    """

    def __init__(
        self,
        devices: Mapping[str, int | None],
        bundles: Mapping[str, Mapping[str, float]],
        only_at: str | None,
        say_once: Callable[[str], None],
    ) -> None:
        self._devices, self._bundles, self._only_at, self._say_once = devices, bundles, only_at, say_once

    def nodes(self, table: list[dict[str, Any]]) -> dict[str, RayNode]:
        """Return the nodes of ``ray.nodes()`` that can have an agent, by the name of their host."""
        found: dict[str, RayNode] = {}
        for one in sorted(table, key=lambda node: str(node["NodeID"])):
            node = self._node(one) if one["Alive"] else None
            if node is None:
                continue
            if found.setdefault(node.offer.host, node) is not node:
                self._say_once(
                    f"two nodes are named {node.offer.host}, and one of them gets no agent: give each a name of its "
                    "own with ray start --node-name"
                )
        return dict(sorted(found.items()))

    def bundle(self, kind: str, nodes: Mapping[str, RayNode]) -> dict[str, float]:
        """Return the resources that a further host of a kind needs: as much as the largest known one holds."""
        if kind in self._bundles:
            return dict(self._bundles[kind])
        alike = [node for node in nodes.values() if node.offer.device == kind]
        if alike:
            return dict(max(alike, key=lambda node: sum(node.bundle.values())).bundle)
        return {"CPU": 1} if kind == CPU else {"GPU": self._devices[kind] or 1}

    def _node(self, node: Mapping[str, Any]) -> RayNode | None:
        """Return the node that Ray describes in ``node``, if the file knows its kind of device, else ``None``."""
        labels, resources = node.get("Labels", {}), node["Resources"]
        gpus, cpus = int(resources.get("GPU", 0)), float(resources.get("CPU", 0))
        device = labels.get(DEVICE_LABEL) or labels.get(_ACCELERATOR, "").lower() or (CPU if not gpus else "")
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
        gpus = 0 if device == CPU else gpus
        count = self._devices[device] or gpus or 1
        if gpus and count > gpus:
            self._say_once(f"node {host} gets no agent: it has {gpus} GPUs, and pool.devices.{device} says {count}")
            return None
        held = self._bundles.get(device) or ({"GPU": float(count)} if gpus else {"CPU": cpus})
        door = address if self._only_at is None else None
        return RayNode(str(node["NodeID"]), Offer(host, device, count, int(resources.get("memory", 0)), door), held)
