"""Agents and engines on a Ray cluster outlive the processes that look after them. ``make ray`` runs it.

Each test keeps a row in the folder that SLOSERVE_RAY names.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import httpx
import psutil
import pytest

from tests.fleet.pool.ray_fleet import SECONDS, STEP_S, RayCluster, RayFleet, ray_cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SLOSERVE_RAY" not in os.environ or find_spec("ray") is None, reason="make ray runs it"),
    pytest.mark.timeout(1500),
]
STREAMS, TOKENS = 4, 300
ADOPTED = "runs already; this pool looks after it"


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """One of two nodes for each test: what a test that fails leaves on nodes would hold them."""
    with ray_cluster(tmp_path_factory.mktemp("ray"), STAND_IN_STEP_S=str(STEP_S)) as started:
        for name in ("one", "two"):
            started.call("add", name)
        yield started


@pytest.fixture
def fleet(cluster: RayCluster, tmp_path: Path) -> Iterator[RayFleet]:
    """On two nodes. In the end nothing is left of it."""
    made = RayFleet(tmp_path, cluster)
    try:
        serves(made)
        yield made
        assert made.stop() == 0
        assert made.processes() == []
    finally:
        made.end()


def serves(fleet: RayFleet) -> set[int]:
    """Waits until an engine serves, and an agent runs on each node; the processes that there are then."""
    fleet.wait_for("ready: ")
    fleet.wait_for(fleet.completes)
    fleet.wait_for(lambda: fleet.starts("one") == fleet.starts("two") == 1)
    return set(fleet.processes())


def of(fleet: RayFleet, host: str) -> set[int]:
    """Processes of an agent and its engines."""
    return {pid for pid in fleet.processes() if f"/{host}/".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()}


def pool_of(fleet: RayFleet) -> psutil.Process:
    started = psutil.Process(fleet.process.pid).children(recursive=True)
    (found,) = [one for one in started if "pool" in one.cmdline() and "fleet" in one.cmdline()]
    return found


class Load:
    """Streams that are under way until the block ends: each must come whole."""

    def __init__(self, fleet: RayFleet) -> None:
        self._fleet = fleet
        self._threads = ThreadPoolExecutor(STREAMS)
        self.begun = 0
        self.streams: list[Future[bool]] = []

    def __enter__(self) -> "Load":
        self.streams = [self._threads.submit(self._stream) for _ in range(STREAMS)]
        self._fleet.wait_for(lambda: self.begun == STREAMS)
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def broken(self) -> int:
        return sum(not stream.result(SECONDS) for stream in self.streams)

    def _stream(self) -> bool:
        body = {"model": "chat", "prompt": "Hello", "max_tokens": TOKENS, "stream": True}
        lines = []
        with httpx.stream("POST", f"{self._fleet.url}/v1/completions", json=body, timeout=SECONDS) as answer:
            for line in answer.iter_lines():
                self.begun += not lines
                lines.append(line)
        return answer.status_code == 200 and "data: [DONE]" in lines and not any('"error"' in line for line in lines)


def note(fault: str, **found: float) -> None:
    folder = Path(os.environ["SLOSERVE_RAY"])
    folder.mkdir(parents=True, exist_ok=True)
    row = json.dumps({"fault": fault, **found})
    with (folder / "faults.jsonl").open("a") as rows:
        rows.write(row + "\n")
    print(f"\n{row}")


def test_a_pool_that_is_killed_leaves_agents_and_engines_and_the_next_one_finds_them(fleet: RayFleet) -> None:
    with Load(fleet) as load:
        before = set(fleet.processes())
        begun_s = time.perf_counter()
        pool_of(fleet).kill()
        fleet.wait_for(lambda: fleet.said.count(ADOPTED) == 2)
        found_s = round(time.perf_counter() - begun_s, 1)
        left = len(before & set(fleet.processes()))
        broken = load.broken()
    note("pool killed", streams=STREAMS, broken=broken, found_s=found_s, processes=len(before), left=left)
    assert not broken and before <= set(fleet.processes())
    assert (fleet.starts("one"), fleet.starts("two")) == (1, 1)


def test_a_pool_that_is_told_to_starts_itself_again_if_its_file_can_be_read(fleet: RayFleet) -> None:
    before, pool, file = set(fleet.processes()), pool_of(fleet), fleet.folder / "fleet.yaml"
    text = file.read_text()
    file.write_text(text + "nonsense: 1\n")
    pool.send_signal(signal.SIGHUP)
    fleet.wait_for("SIGHUP: this process and its agents stay as they are: ")
    file.write_text(text)
    with Load(fleet) as load:
        begun_s = time.perf_counter()
        pool.send_signal(signal.SIGHUP)
        fleet.wait_for(lambda: fleet.said.count(ADOPTED) == 2)
        found_s = round(time.perf_counter() - begun_s, 1)
        broken = load.broken()
    note("pool replaced (SIGHUP)", streams=STREAMS, broken=broken, found_s=found_s, processes=len(before))
    assert not broken and before <= set(fleet.processes()) and pool_of(fleet).pid == pool.pid


def test_a_changed_file_reaches_agents_while_engines_and_streams_go_on(fleet: RayFleet, cluster: RayCluster) -> None:
    """The command applies it; its pool starts itself again, and ships the file to the agents, which restart."""
    before, file = set(fleet.processes()), fleet.folder / "fleet.yaml"
    with Load(fleet) as load:
        begun_s = time.perf_counter()
        file.write_text(file.read_text().replace("ttft_ms: 5000", "ttft_ms: 4000"))
        fleet.process.send_signal(signal.SIGHUP)
        fleet.wait_for(lambda: "the engine of model chat is taken over" in agents_say(cluster))
        taken_over_s = round(time.perf_counter() - begun_s, 1)
        broken = load.broken()
    note("file changed", streams=STREAMS, broken=broken, taken_over_s=taken_over_s, processes=len(before))
    assert not broken and before <= set(fleet.processes()) and fleet.completes()


def agents_say(cluster: RayCluster) -> str:
    return "".join(log.read_text() for log in cluster.nodes.rglob("agent.log"))


def test_a_fleet_that_is_killed_and_started_again_serves_with_the_same_engines(
    cluster: RayCluster, tmp_path: Path
) -> None:
    fleet = RayFleet(tmp_path, cluster)
    try:
        before = serves(fleet)
        begun_s = time.perf_counter()
        fleet.end()
        fleet = RayFleet(tmp_path, cluster)
        fleet.wait_for(fleet.completes)
        note("fleet killed", serves_s=round(time.perf_counter() - begun_s, 1))
        fleet.wait_for(lambda: fleet.said.count(ADOPTED) == 2)
        assert before <= set(fleet.processes())
        assert fleet.stop() == 0
        assert fleet.processes() == []
    finally:
        fleet.end()


def test_agents_that_nobody_looks_after_end_and_free_their_nodes(cluster: RayCluster, tmp_path: Path) -> None:
    """The next fleet on the nodes, a different one, needs all that the first held."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first = RayFleet(tmp_path / "first", cluster, unattended_s=5.0)
    try:
        assert serves(first)
    finally:
        first.end()
    begun_s = time.perf_counter()
    while first.processes():
        assert time.perf_counter() < begun_s + SECONDS
        time.sleep(0.1)
    note("nobody looks after agents for 5 s", ended_s=round(time.perf_counter() - begun_s, 1))
    second = RayFleet(tmp_path / "second", cluster)
    try:
        second.wait_for("ready: ")
        second.wait_for(second.completes)
        assert second.stop() == 0
        assert second.processes() == []
    finally:
        second.end()


def test_an_agent_ends_before_its_node_goes(fleet: RayFleet, cluster: RayCluster) -> None:
    other, pool = of(fleet, "two"), pool_of(fleet)
    with Load(fleet) as load:
        begun_s = time.perf_counter()
        assert cluster.call("drain", "one", 60.0)
        fleet.wait_for("the agent of host one ends within ")
        fleet.wait_for(lambda: not of(fleet, "one"))
        ended_s = time.perf_counter() - begun_s
        broken = load.broken()
    note("node is to be drained in 60 s", streams=STREAMS, broken=broken, ended_s=round(ended_s, 1))
    cluster.call("remove", "one")
    assert not broken and ended_s < 60.0
    assert fleet.completes() and other <= of(fleet, "two") and pool_of(fleet).pid == pool.pid
    assert "host one has died" not in fleet.said


def test_two_fleets_on_one_cluster_do_not_disturb_each_other(cluster: RayCluster, tmp_path: Path) -> None:
    """Each has half of each node, and one ends."""
    fleets = []
    try:
        for name in ("red", "blue"):
            (tmp_path / name).mkdir()
            fleets.append(RayFleet(tmp_path / name, cluster, cpus=0.5))
            fleets[-1].wait_for("ready: ")  # before the other chooses a free port
        red, blue = fleets
        for fleet in fleets:
            fleet.wait_for(fleet.completes)
        red.wait_for(lambda: red.starts("one") == red.starts("two") == 2)  # of both fleets
        both = set(red.processes())
        assert red.stop() == 0
        left = set(blue.processes())
        note("one of two fleets ends", processes=len(both), left=len(left))
        assert left < both and blue.completes()
        assert blue.stop() == 0
        assert blue.processes() == []
    finally:
        for fleet in fleets:
            fleet.end()
