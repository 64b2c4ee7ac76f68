"""Ray's own autoscaler adds the nodes that the plan needs, and takes those away that it does not. ``make ray`` runs it.

Its nodes are raylets on this machine, from the provider that Ray has for tests.
"""

import json
import os
import time
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.fleet.pool.ray_fleet import SECONDS, STEP_S, RayFleet, ray_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SLOSERVE_RAY" not in os.environ or find_spec("ray") is None, reason="make ray runs it"),
    pytest.mark.timeout(1500),
]
LINES, TOKENS = 500, 40
"""Of a batch that one node takes two minutes for, where it has two: it is fuller than a fleet is sized for."""


def _batch(client: httpx.Client) -> str:
    line = {"method": "POST", "url": "/v1/completions"}
    body = {"model": "chat", "prompt": "Hello", "max_tokens": TOKENS}
    lines = "\n".join(json.dumps({"custom_id": str(number), **line, "body": body}) for number in range(LINES))
    uploaded = client.post("/v1/files", files={"file": ("lines.jsonl", lines)}, data={"purpose": "batch"}).json()
    wanted = {"input_file_id": uploaded["id"], "endpoint": "/v1/completions", "completion_window": "2m"}
    return str(client.post("/v1/batches", json=wanted).json()["id"])


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_node_is_added_where_the_plan_needs_one_and_goes_once_it_does_not(tmp_path: Path, version: str) -> None:
    """What stays is what works: version 2 kept a drained node in its place, where that had come first."""
    environment = {"RAY_enable_autoscaler_v2": str(int(version == "2")), "STAND_IN_STEP_S": str(STEP_S)}
    with ray_cluster(tmp_path, most=2, **environment) as cluster:
        fleet = RayFleet(tmp_path, cluster)
        try:
            assert cluster.call("alive") == []
            fleet.wait_for("ready: ")
            assert cluster.call("alive") == ["node-1"]
            with httpx.Client(base_url=fleet.url, timeout=60) as client:
                batch = _batch(client)
                fleet.wait_for(lambda: fleet.starts("node-2") == 1)
                client.post(f"/v1/batches/{batch}/cancel").raise_for_status()
            fleet.wait_for(" is not needed: ")
            stays = "node-2" if "host node-1 is not needed: " in fleet.said else "node-1"
            fleet.wait_for(lambda: cluster.call("alive") == [stays])
            fleet.wait_for(fleet.completes)
            assert (fleet.starts("node-1"), fleet.starts("node-2")) == (1, 1)
            assert fleet.stop() == 0
            assert fleet.processes() == []
            until_s = time.perf_counter() + SECONDS
            while cluster.call("alive"):  # what is asked for is no longer needed
                assert time.perf_counter() < until_s
                time.sleep(0.1)
        finally:
            fleet.end()
