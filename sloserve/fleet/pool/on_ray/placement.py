"""Placement groups of a fleet: what its agents hold on nodes, and what it asks further nodes for.

Each agent's actor has a group of one bundle with all devices of its host. Ray gives an actor no more than one bundle
has, and it names the GPUs to actors alone: bundles of single instances would each need a process to learn them.

A group that no node has room for is pending, which Ray's autoscalers take as demand. Once a node has taken it, the
agent of that node keeps it: between two groups an autoscaler would see demand for one more node. All groups are
detached, as the actors are, and have names by which the next process finds them.
"""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ray.util import list_named_actors, placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import get_placement_group

from sloserve.fleet.pool.on_ray.cluster import RayNode

_NODE_ID: Final = "ray.io/node-id"
_WANTED: Final = "wanted"
_ID_LENGTH: Final = 12
"""Last characters of a node's id in names: a node that comes back under its old name is another one."""


def name_of(fleet: str, node: RayNode) -> str:
    """Return the name of the actor on a node."""
    return f"{fleet}/{node.offer.host}/{node.id[-_ID_LENGTH:]}"


def host_in(name: str) -> str:
    """Return the host in the name of an actor."""
    return name.split("/")[1]


def node_in(name: str) -> str:
    """Return the end of the node's id that is in the name of an actor."""
    return name.split("/")[2]


def hold(name: str, node: RayNode) -> str:
    """Reserve on a node what its agent needs, for an actor of this name; return the name of the group."""
    free(name)  # of an actor that has gone
    _make(name, node.bundle, {_NODE_ID: node.id})
    return name


def free(group: str) -> None:
    """Give back what the group of this name holds; do nothing if there is none."""
    try:
        found = get_placement_group(group)
    except ValueError:
        return
    remove_placement_group(found)


def is_placed(fleet: str, node: RayNode) -> bool:
    """Return whether a node holds a group of the fleet."""
    return any(one.node == node.id for one in _groups(f"{fleet}/"))


def names_of(fleet: str) -> set[str]:
    """Return the names of the actors of a fleet's agents, and of groups that are named like them."""
    names = {one.name for one in _groups(fleet)} | set(list_named_actors())
    return {name for name in names if len(parts := name.split("/")) == 3 and parts[0] == fleet}


def withdraw_waiting(fleet: str) -> None:
    """Ask for no further hosts, for a fleet that no pool looks after."""
    for one in _groups(f"{fleet}/{_WANTED}/"):
        if one.node is None:
            free(one.name)


@dataclass(frozen=True, slots=True)
class _Group:
    """A placement group.

    Args:
        node: Id of the node that it is on; ``None`` while it waits for one.
    """

    name: str
    node: str | None


def _groups(prefix: str) -> list[_Group]:
    table: Mapping[str, Mapping[str, Any]] = placement_group_table()
    return [
        _Group(str(one["name"]), str(one["bundles_to_node_id"][0]) if one["state"] == "CREATED" else None)
        for one in table.values()
        if one["state"] != "REMOVED" and str(one["name"]).startswith(prefix)
    ]


def _make(name: str, bundle: Mapping[str, float], selector: Mapping[str, str]) -> None:
    placement_group(
        [dict(bundle)],
        strategy="STRICT_PACK",
        name=name,
        lifetime="detached",
        bundle_label_selector=[dict(selector)],
    )


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a group that waits was made with.

    Args:
        shut_out: Ids of nodes on which it may not be.
    """

    bundle: Mapping[str, float]
    shut_out: frozenset[str]


class HostDemand:
    """The further hosts that a fleet asks its cluster for, each as a group that a node may take.

    Args:
        fleet: Name of the fleet.
    """

    def __init__(self, fleet: str) -> None:
        self._fleet = fleet
        self._rules: dict[str, _Rule] = {}

    def ask(self, kind: str, count: int, bundle: Mapping[str, float], shut_out: Collection[str]) -> None:
        """Ask for ``count`` further hosts of a kind.

        Args:
            kind: Kind of device.
            count: Number of hosts.
            bundle: Resources of each.
            shut_out: Ids of nodes that are no further hosts of that kind.
        """
        rule = _Rule(dict(bundle), frozenset(shut_out))
        kept = 0
        for one in self._of(kind):
            # One that waits under another rule could be placed where an agent already is.
            is_right = self._rules.get(one.name) == rule if one.node is None else one.node not in rule.shut_out
            if is_right and kept < count:
                kept += 1
            else:
                self._withdraw(one)
        for _ in range(count - kept):
            name = f"{self._fleet}/{_WANTED}/{kind}/{secrets.token_hex(4)}"
            selector = {_NODE_ID: f"!in({','.join(sorted(rule.shut_out))})"} if rule.shut_out else {}
            _make(name, rule.bundle, selector)
            self._rules[name] = rule

    def take(self, kind: str, node: str) -> str | None:
        """Return the name of a group that this node has taken, which its host keeps, or ``None``."""
        taken = next((one.name for one in self._of(kind) if one.node == node), None)
        if taken is not None:
            self._rules.pop(taken, None)
        return taken

    def waits(self, kind: str) -> bool:
        """Return whether a group of this kind waits for a node."""
        return any(one.node is None for one in self._of(kind))

    def less(self, kind: str) -> None:
        """Withdraw one group of a kind that waits, if there is one: a host has come that takes none."""
        for one in self._of(kind):
            if one.node is None:
                self._withdraw(one)
                return

    def withdraw(self) -> None:
        """Ask for nothing any more."""
        for one in self._of():
            self._withdraw(one)

    def _of(self, kind: str | None = None) -> list[_Group]:
        """Return the groups that no agent has, of a kind or of all, also of processes before this one."""
        agents = {name.split("/")[-1] for name in list_named_actors() if name.startswith(f"{self._fleet}/")}
        prefix = f"{self._fleet}/{_WANTED}/" + ("" if kind is None else f"{kind}/")
        return [one for one in _groups(prefix) if one.node is None or one.node[-_ID_LENGTH:] not in agents]

    def _withdraw(self, group: _Group) -> None:
        self._rules.pop(group.name, None)
        free(group.name)
