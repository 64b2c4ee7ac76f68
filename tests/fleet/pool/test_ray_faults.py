"""What a fleet on a Ray cluster loses when a part of the cluster dies: no line, and no process is left behind.

``make ray`` runs it; each test prints what it took, in seconds after the fault.
"""

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.fleet.pool.ray_fleet import RayCluster, RayFleet, ray_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SLOSERVE_RAY" not in os.environ or find_spec("ray") is None, reason="make ray runs it"),
    pytest.mark.timeout(400),
]
LINES = 240
TOKENS = 40
_NUMBER = itertools.count()


@dataclass
class Staged:
    """Two nodes, ``one`` and ``two``, that serve a batch."""

    cluster: RayCluster
    fleet: RayFleet
    client: httpx.Client
    batch: str
    fault_s: float = 0.0

    def completed(self) -> int:
        return int(self.client.get(f"/v1/batches/{self.batch}").json()["request_counts"]["completed"])

    def is_done(self) -> bool:
        return str(self.client.get(f"/v1/batches/{self.batch}").json()["status"]) == "completed"

    def results(self) -> list[str]:
        output = self.client.get(f"/v1/batches/{self.batch}").json()["output_file_id"]
        text = self.client.get(f"/v1/files/{output}/content").text
        return [json.loads(line)["custom_id"] for line in text.splitlines()]

    def since_s(self, what: str | Callable[[], bool]) -> float:
        """Seconds from the fault until it has been said, or holds."""
        self.fleet.wait_for(what)
        return round(time.perf_counter() - self.fault_s, 1)

    def of(self, host: str) -> list[int]:
        """Processes of a node's agent and engines."""
        return [pid for pid in self.fleet.processes() if f"/{host}/" in Path(f"/proc/{pid}/cmdline").read_text()]

    def starts(self, host: str) -> int:
        """How often a node's agent has opened its door."""
        return self.fleet.starts(host)

    def actor(self, host: str) -> int:
        """The process that keeps a node's agent."""
        parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in self.of(host)}
        (found,) = [pid for pid in parents if "AgentActor" in Path(f"/proc/{pid}/cmdline").read_text()]
        return found

    def check(self, fault: str, **seconds: float | int) -> None:
        """All lines have one result, and nothing outlives the fleet."""
        done_s = self.since_s(self.is_done)
        results = self.results()
        assert sorted(results) == sorted(map(str, range(LINES)))
        assert self.fleet.stop() == 0
        left = self.fleet.processes()
        print(
            f"\n{json.dumps({'fault': fault, 'lines': len(results), **seconds, 'done_s': done_s, 'left': len(left)})}"
        )
        assert left == []


@pytest.fixture
def staged(tmp_path: Path, postgres_address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Staged]:
    monkeypatch.setenv("STAND_IN_STEP_S", "0.05")
    store = f"ray_{next(_NUMBER)}"
    with psycopg.connect(postgres_address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {store}")  # type: ignore[call-overload]
    address = f"{postgres_address.removesuffix('/postgres')}/{store}"
    with ray_cluster(tmp_path) as cluster:
        for name in ("one", "two"):
            cluster.call("add", name)
        fleet = RayFleet(tmp_path, cluster.address, SLOSERVE_FLEET_STORE=address)
        try:
            fleet.wait_for("ready: ")
            fleet.wait_for(lambda: fleet.starts("one") == fleet.starts("two") == 1)
            fleet.wait_for(fleet.completes)
            with httpx.Client(base_url=fleet.url, timeout=60) as client:
                made = Staged(cluster, fleet, client, _batch(client))
                fleet.wait_for(lambda: made.completed() > 0 and len(made.of("one")) > 1 and len(made.of("two")) > 1)
                made.fault_s = time.perf_counter()
                yield made
        finally:
            fleet.end()


def _batch(client: httpx.Client) -> str:
    body = {"model": "chat", "prompt": "Hello", "max_tokens": TOKENS}
    line = {"method": "POST", "url": "/v1/completions", "body": body}
    lines = "\n".join(json.dumps({"custom_id": str(number), **line}) for number in range(LINES))
    uploaded = client.post("/v1/files", files={"file": ("lines.jsonl", lines)}, data={"purpose": "batch"}).json()
    wanted = {"input_file_id": uploaded["id"], "endpoint": "/v1/completions", "completion_window": "1h"}
    return str(client.post("/v1/batches", json=wanted).json()["id"])


def test_an_actor_is_killed(staged: Staged) -> None:
    before = staged.of("one")
    os.kill(staged.actor("one"), signal.SIGKILL)
    said_s = staged.since_s("the agent of host one has died with its actor")
    assert set(before).isdisjoint(staged.fleet.processes())
    again_s = staged.since_s(lambda: staged.starts("one") == 2)
    staged.check("actor killed", said_s=said_s, agent_again_s=again_s)


def test_an_agent_is_killed(staged: Staged) -> None:
    (agent,) = [pid for pid in staged.of("one") if "fleet\0agent" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(agent, signal.SIGKILL)
    said_s = staged.since_s("the agent of host one has ended with status -9")
    again_s = staged.since_s(lambda: staged.starts("one") == 2)
    staged.check("agent killed", said_s=said_s, agent_again_s=again_s)


def test_a_raylet_is_killed(staged: Staged) -> None:
    staged.cluster.call("signal", "raylet", "one", signal.SIGKILL)
    gone_s = staged.since_s(lambda: not staged.of("one"))
    staged.check("raylet killed", processes_gone_s=gone_s)


def test_a_node_hangs_and_comes_back(staged: Staged) -> None:
    stopped = [*staged.of("one"), staged.actor("one"), staged.cluster.call("signal", "raylet", "one", signal.SIGSTOP)]
    for pid in stopped[:-1]:
        os.kill(pid, signal.SIGSTOP)
    staged.fleet.wait_for(staged.is_done)
    done_s = round(time.perf_counter() - staged.fault_s, 1)
    for pid in reversed(stopped):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
    staged.check("node hangs", lines_done_s=done_s)


def test_a_node_is_added(staged: Staged) -> None:
    staged.cluster.call("add", "three")
    node_s = round(time.perf_counter() - staged.fault_s, 1)
    agent_s = staged.since_s(lambda: staged.starts("three") == 1)
    staged.check("node added", raylet_s=node_s, agent_s=agent_s)


def test_a_node_is_removed(staged: Staged) -> None:
    staged.cluster.call("remove", "one")
    gone_s = staged.since_s(lambda: not staged.of("one"))
    staged.check("node removed", processes_gone_s=gone_s)
