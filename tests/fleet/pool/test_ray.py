"""A fleet whose hosts are the nodes of a Ray cluster: several raylets on this machine, and stand-ins for engines.

One short test; ``make ray`` runs those of test_ray_faults.py, too.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from sloserve.fleet.pool.agent_child import CONFIG_ERROR
from sloserve.fleet.pool.pool import Offer
from tests import bounded
from tests.fleet.pool.ray_fleet import SECONDS, RayFleet, TookTooLong, ray_cluster

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "1f6d0b2c9a8e4f73a5b1c0d2e3f4a5b6c7d8e9f0"}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")]


def serves_and_leaves_nothing(folder: Path) -> None:
    folder.mkdir()
    with ray_cluster(folder, **TOKEN) as cluster:
        cluster.call("add", "one")
        fleet = RayFleet(folder, cluster, **TOKEN)
        try:
            fleet.wait_for("ready: ")
            fleet.wait_for(fleet.completes)
            assert len(fleet.processes()) >= 2, "an agent and an engine"
            assert fleet.stop() == 0
            assert fleet.processes() == []
        finally:
            fleet.end()


@pytest.mark.timeout(900)  # that of all waits together
def test_a_node_serves_without_a_further_command_and_nothing_is_left(tmp_path: Path) -> None:
    """On a cluster that asks for a token, as docs/fleet-hosts.md advises.

    Ray's own processes may fail where all cores are busy, or hang: on another cluster all must go well.
    """
    try:
        serves_and_leaves_nothing(tmp_path / "first")
    except TookTooLong as error:
        print(f"tried again, since: {error}")
        serves_and_leaves_nothing(tmp_path / "again")


def test_a_pool_ends_where_its_own_node_has_left_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the head was lost and Redis knew what it knew, Ray told it of unavailable actors for ever."""
    from sloserve.fleet.pool import ray as module

    pool = object.__new__(module.RayPool)
    pool._own_node, pool._nodes, reasons = "own", {}, list[str]()
    monkeypatch.setattr(module, "_end", reasons.append)
    for own_is_alive in (True, False):
        nodes = [{"NodeID": "own", "Alive": own_is_alive, "Resources": {}, "NodeManagerAddress": "10.0.0.1"}]
        monkeypatch.setattr(module.ray, "nodes", lambda nodes=nodes: nodes)
        bounded.run(pool.offers())
        assert bool(reasons) is not own_is_alive


def test_what_is_asked_for_is_whole_nodes_and_first_those_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their ids: Ray's autoscaler, version 2, kept a drained node in the place of the one that worked."""
    from sloserve.fleet.pool import ray as module

    asked: list[tuple[object, object]] = []
    monkeypatch.setattr(
        module,
        "request_resources",
        lambda bundles, bundle_label_selectors: asked.append((bundles, bundle_label_selectors)),
    )
    pool = object.__new__(module.RayPool)
    pool._bundles, pool._devices = {"a100": {"GPU": 4.0, "x": 1.0}}, {"h100": None, "a100": 4, "cpu": 1}
    pool._nodes, pool._kept = {}, {}
    bounded.run(pool.want({"h100": 1, "a100": 1, "cpu": 1}))
    assert asked.pop() == ([{"GPU": 1}, {"GPU": 4.0, "x": 1.0}, {"CPU": 1}], [{}, {}, {}])
    for name, gpus in (("drained", 8.0), ("works", 8.0), ("new", 4.0)):
        pool._nodes[name] = module._Node(f"id-{name}", Offer(name, "h100", 8), {"GPU": gpus})
    pool._kept = {
        "drained": module._Kept(None, is_ending=True),
        "works": module._Kept(None),
        "gone": module._Kept(None),
    }
    bounded.run(pool.want({"h100": 2}))
    assert asked.pop() == ([{"GPU": 8.0}, {"GPU": 8.0}], [{"ray.io/node-id": "id-works"}, {}])


@pytest.mark.skipif("SLOSERVE_RAY" not in os.environ, reason="make ray runs it")
def test_a_pool_without_the_clusters_token_says_so(tmp_path: Path) -> None:
    with ray_cluster(tmp_path, **TOKEN) as cluster:
        fleet = RayFleet(tmp_path, cluster, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="another")
        try:
            assert fleet.process.wait(SECONDS) == CONFIG_ERROR
            assert "cannot be reached" in fleet.said
        finally:
            fleet.end()
