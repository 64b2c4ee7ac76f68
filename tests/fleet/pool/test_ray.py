"""A fleet whose hosts are the nodes of a Ray cluster: several raylets on this machine, and stand-ins for engines.

One short test; ``make ray`` runs those of test_ray_faults.py, too.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fleet.pool.ray_fleet import RayFleet, ray_cluster


@pytest.mark.slow
def test_a_node_serves_without_a_further_command_and_nothing_is_left(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with ray_cluster(tmp_path) as cluster:
        cluster.call("add", "one")
        fleet = RayFleet(tmp_path, cluster.address)
        try:
            fleet.wait_for("ready: ")
            fleet.wait_for(fleet.completes)
            assert len(fleet.processes()) >= 2, "an agent and an engine"
            assert fleet.stop() == 0
            assert fleet.processes() == []
        finally:
            fleet.end()
