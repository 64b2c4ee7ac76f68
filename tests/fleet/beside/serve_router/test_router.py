"""The router in Ray Serve itself: two replicas of different load, in a cluster of one node that the test starts.

Ray's own processes may fail where all cores are busy: only ``make ray`` runs it.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SLOSERVE_RAY" not in os.environ or find_spec("ray") is None, reason="make ray runs it"),
]


@pytest.mark.timeout(600)
def test_idle_replicas_prefixes_and_deadlines_decide(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-W", "ignore", "-m", "tests.fleet.beside.serve_router.serve_app", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)
    said = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    assert said, ended.stderr
    assert json.loads(said[-1]) == {"went": ["idle"] * 6 + ["busy"] * 2, "order": ["soon", "late"]}
