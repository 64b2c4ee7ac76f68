"""Placement groups of a fleet: what its agents hold on nodes, and what it asks further nodes for.

Each agent's actor has a group of one bundle with all devices of its host. Ray gives an actor no more than one bundle
has, and it names the GPUs to actors alone: bundles of single instances would each need a process to learn them.

A group that no node has room for is pending, which Ray's autoscalers take as demand. It belongs to the pool's process
and goes with it. The group of an agent is detached, as its actor is.
"""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ray.util import list_named_actors, placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup, get_placement_group

from sloserve.fleet.pool.on_ray.cluster import Node

_NODE_ID: Final = "ray.io/node-id"
_WANTED: Final = "wanted"
_STRATEGY: Final = "STRICT_PACK"
_ID_LENGTH: Final = 12
"""Characters of a node's id in names: a node that comes back under its old name is another one."""


def name_of(fleet: str, node: Node) -> str:
    """Return the name of the actor on a node, and of its placement group."""
    return f"{fleet}/{node.offer.host}/{node.id[:_ID_LENGTH]}"


def host_in(name: str) -> str:
    """Return the host in the name of an actor."""
    return name.split("/")[1]


def node_in(name: str) -> str:
    """Return the begin of the node's id in the name of an actor."""
    return name.split("/")[2]


def hold(name: str, node: Node) -> PlacementGroup:
    """Reserve on a node what its agent needs, for an actor of this name."""
    return placement_group(
        [dict(node.bundle)],
        strategy=_STRATEGY,
        name=name,
        lifetime="detached",
        bundle_label_selector=[{_NODE_ID: node.id}],
    )


def free(name: str) -> None:
    """Give back what the actor of this name held; do nothing if that is nothing."""
    try:
        group = get_placement_group(name)
    except ValueError:
        return
    remove_placement_group(group)


def names_of(fleet: str) -> set[str]:
    """Return the names of the actors of a fleet's agents, and of what they hold."""
    table: Mapping[str, Mapping[str, Any]] = placement_group_table()
    names = {str(one["name"]) for one in table.values() if one["state"] != "REMOVED"}
    names |= set(list_named_actors())
    return {name for name in names if _is_of(fleet, name)}


def _is_of(fleet: str, name: str) -> bool:
    """Return whether an actor or group of this name belongs to an agent of the fleet."""
    parts = name.split("/")
    return len(parts) == 3 and parts[0] == fleet


def is_placed(name: str) -> bool:
    """Return whether a node holds the group of this name."""
    try:
        group = get_placement_group(name)
    except ValueError:
        return False
    return bool(placement_group_table(group).get("state") == "CREATED")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A group that waits for a further host.

    Args:
        shut_out: Ids of nodes on which it may not be.
    """

    group: PlacementGroup
    bundle: Mapping[str, float]
    shut_out: frozenset[str]

    @property
    def node(self) -> str | None:
        """The id of the node that it is on."""
        table = placement_group_table(self.group)
        return str(table["bundles_to_node_id"][0]) if table.get("state") == "CREATED" else None


@dataclass(slots=True)
class Demand:
    """The further hosts that a fleet asks its cluster for, each as a group that a node may take.

    Args:
        fleet: Name of the fleet.
    """

    fleet: str
    _groups: dict[str, list[_Wanted]] = field(default_factory=dict)

    def ask(self, kind: str, count: int, bundle: Mapping[str, float], shut_out: Collection[str]) -> None:
        """Ask for ``count`` further hosts of a kind.

        Args:
            kind: Kind of device.
            count: Number of hosts.
            bundle: Resources of each.
            shut_out: Ids of nodes that are no further hosts of that kind.
        """
        out = frozenset(shut_out)
        kept: list[_Wanted] = []
        for one in self._groups.get(kind, []):
            # One that waits under an old rule could be placed where an agent already is.
            is_right = one.bundle == bundle and (one.shut_out == out if one.node is None else one.node not in out)
            if is_right and len(kept) < count:
                kept.append(one)
            else:
                remove_placement_group(one.group)
        kept += [self._made(kind, bundle, out) for _ in range(count - len(kept))]
        self._groups[kind] = kept

    def take(self, kind: str, node: str) -> bool:
        """Withdraw one group of a kind, since a host takes its place; return whether it was on that node."""
        groups = self._groups.get(kind, [])
        chosen = next((one for one in groups if one.node == node), None)
        taken = chosen or next((one for one in groups if one.node is None), None)
        if taken is not None:
            groups.remove(taken)
            remove_placement_group(taken.group)
        return chosen is not None

    def withdraw(self) -> None:
        """Ask for nothing any more."""
        for groups in self._groups.values():
            for one in groups:
                remove_placement_group(one.group)
        self._groups.clear()

    def _made(self, kind: str, bundle: Mapping[str, float], shut_out: frozenset[str]) -> _Wanted:
        selector = {_NODE_ID: f"!in({','.join(sorted(shut_out))})"} if shut_out else {}
        name = f"{self.fleet}/{_WANTED}/{kind}/{secrets.token_hex(4)}"
        group = placement_group([dict(bundle)], strategy=_STRATEGY, name=name, bundle_label_selector=[selector])
        return _Wanted(group, dict(bundle), shut_out)
