"""A Ray cluster that is only said to be there, for the pool on Ray: nodes, named actors, and what they are asked."""

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from sloserve.fleet.pool.kept_agent import digest_of, start_digest
from sloserve.fleet.pool.on_ray import pool as module
from sloserve.fleet.pool.on_ray.agents import FleetAgents
from sloserve.fleet.pool.on_ray.pool import RayPool
from sloserve.fleet.pool.pool import Offer

FILES = {"fleet.yaml": "a: 1"}


class Reference:
    """What a remote call returns. value: its result; None for one that stays under way."""

    def __init__(self, value: Any) -> None:
        self._future: Future[Any] = Future()
        if value is not None:
            self._future.set_result(value)

    def future(self) -> "Future[Any]":
        return self._future


class Actor:
    """asked: calls with their arguments."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.report, self.asked = report, list[tuple[Any, ...]]()
        self._is_looked_after = False

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Reference:
        self.asked.append((name, *arguments))
        if name != "look_after":
            return Reference("done")
        is_new, self._is_looked_after = not self._is_looked_after, True
        return Reference(dict(self.report) if is_new else None)


def command(offer: Offer) -> list[str]:
    return ["agent", offer.host]


class FakeCluster:
    """nodes, leaving: what Ray says of them. actors: by name. gone: names of actors that were killed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.table: list[dict[str, Any]] = []
        self.leaving: dict[str, float | None] = {}
        self.actors: dict[str, Actor] = {}
        self.gone: list[str] = []
        self.ended: list[str] = []
        self.asked: list[tuple[Any, ...]] = []
        context = SimpleNamespace(get_node_id=lambda: "own")
        ray = SimpleNamespace(nodes=lambda: self.table, get_runtime_context=lambda: context)
        demand = SimpleNamespace(
            ask=lambda *arguments: self.asked.append(arguments), take=lambda *_: False, withdraw=lambda: None
        )
        faked: dict[str, Callable[..., Any]] = {
            "connect": lambda *_: None,
            "draining": lambda: self.leaving,
            "found": self.actors.get,
            "kill": self._kill,
            "exit_at_once": self.ended.append,
        }
        for name, function in faked.items():
            patch.setattr(module, name, function)
        patch.setattr(module, "ray", ray)
        patch.setattr(module.placement, "HostDemand", lambda fleet: demand)
        patch.setattr(module.placement, "is_placed", lambda fleet, node: True)
        patch.setattr(module.placement, "names_of", lambda fleet: set(self.actors))

    def pool(self, **bundles: dict[str, float]) -> RayPool:
        agents = FleetAgents("red-1", FILES, command, {"k": "v"}, release="1", drain_s=80.0)
        return RayPool("x", {"cpu": 1, "h100": None, "a100": 4}, agents, bundles=bundles, clock=self.clock)

    def add(self, name: str, *, is_alive: bool = True, labels: dict[str, str] | None = None, **resources: float) -> str:
        """A node, by default with one CPU. Its id."""
        id = f"-{name}".rjust(16, "0")
        has = resources or {"CPU": 1.0}
        node = {"NodeID": id, "NodeName": name, "Alive": is_alive, "Resources": has, "Labels": labels or {}}
        self.table.append(node | {"NodeManagerAddress": "10.0.0.1"})
        return id

    def run(self, host: str, node: str, **other: Any) -> Actor:
        """An actor that another process of the pool has started there. other: what differs in its report."""
        report = {"ends": 0, "status": None, "what": "", "pid": 1, "is_ending": False, "incarnation": "i"}
        report["group"] = "group"
        report |= {"digest": digest_of(FILES, "1"), "start": start_digest(["agent", host], {"k": "v"})}
        actor = self.actors[f"red-1/{host}/{node[-12:]}"] = Actor(report | other)
        return actor

    def _kill(self, name: str, group: str) -> None:
        self.gone.append(name)
        self.actors.pop(name, None)
