"""A fleet whose hosts are the nodes of a Ray cluster: several raylets on this machine, and stand-ins for engines.

One short test; ``make ray`` runs those of test_ray_faults.py, too.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from sloserve.fleet.pool.agent_child import CONFIG_ERROR
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


@pytest.mark.skipif("SLOSERVE_RAY" not in os.environ, reason="make ray runs it")
def test_a_pool_without_the_clusters_token_says_so(tmp_path: Path) -> None:
    with ray_cluster(tmp_path, **TOKEN) as cluster:
        fleet = RayFleet(tmp_path, cluster, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="another")
        try:
            assert fleet.process.wait(SECONDS) == CONFIG_ERROR
            assert "cannot be reached" in fleet.said
        finally:
            fleet.end()
