"""What a fleet on a Ray cluster loses when a part of the cluster dies: no line, and no process is left behind.

``make ray`` runs it. Each test keeps a row in the folder that SLOSERVE_RAY names: seconds after the fault until the
fleet said so, processes of the lost agent had ended, there was another, the lost host's lines were claimed anew, and
all lines were done.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from sloserve.fleet.contract.reports import AgentReport, agent_report
from tests import bounded
from tests.fleet.pool.ray_fleet import SECONDS, STEP_S, RayCluster, RayFleet, ray_cluster
from tests.ports import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SLOSERVE_RAY" not in os.environ or find_spec("ray") is None, reason="make ray runs it"),
    pytest.mark.timeout(1500),
]
LINES, STREAMS = 240, 4
TOKENS, LONG_TOKENS = 40, 120
"""Of a line: a batch takes half a minute on two nodes; or a minute and a half: nodes go on without a head for one."""
AWAY_S = 30.0
_NUMBER = itertools.count()


@dataclass(frozen=True)
class Running:
    """A fleet on a cluster. store: the address of its database."""

    cluster: RayCluster
    fleet: RayFleet
    client: httpx.Client
    store: str

    def agents(self) -> dict[str, AgentReport]:
        """What those agents say that live, by host."""
        asked = "SELECT state FROM agent WHERE id LIKE 'agent:%' AND store_now() - beat_s < 3"
        with psycopg.connect(self.store) as connection:
            states = [json.loads(state) for (state,) in connection.execute(asked).fetchall()]
        return {found.host: found for state in states if (found := agent_report(state)) is not None}

    def streams(self) -> Counter[str]:
        """How many streams each host says that it has."""
        return Counter({host: sum(one.streams for one in said.instances) for host, said in self.agents().items()})

    def claimed(self, host: str = "") -> set[tuple[str, int]]:
        """Lines that a host's agent has, or any has, each with its claim."""
        asked = "SELECT r.id, r.claim FROM request r JOIN claim c ON c.id = r.claim"
        asked += " WHERE r.state = 'claimed' AND c.agent LIKE %s"
        with psycopg.connect(self.store) as connection:
            return set(connection.execute(asked, [f"%{host}%"]).fetchall())

    def of(self, host: str) -> list[int]:
        """Processes of a node's agent and engines."""
        return [pid for pid in self.fleet.processes() if f"/{host}/" in Path(f"/proc/{pid}/cmdline").read_text()]

    def actor(self, host: str) -> int:
        """The process that keeps a node's agent."""
        parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in self.of(host)}
        (found,) = [pid for pid in parents if "SloserveAgent" in Path(f"/proc/{pid}/cmdline").read_text()]
        return found


class Staged:
    """Two nodes, ``one`` and ``two``, that serve a batch and streams when the fault comes.

    lost: hosts whose engines the fault ends.
    """

    def __init__(self, on: Running, batch: str, streams: list[Future[bool]], lost: Collection[str]) -> None:
        self.on, self.fleet, self.cluster = on, on.fleet, on.cluster
        self._batch, self._streams = batch, streams
        self.could_break = sum(on.streams()[host] for host in lost)
        self.processes = [pid for host in lost for pid in on.of(host)]
        self._starts = {host: on.fleet.starts(host) for host in ("one", "two", "three")}
        self._said = on.fleet.said
        self._claims = {claim for host in lost for claim in on.claimed(host)}
        assert self._claims or not lost
        self._fault_s = time.perf_counter()

    def is_done(self) -> bool:
        return str(self._state()["status"]) == "completed"

    def since_s(self, what: Callable[[], bool]) -> float:
        """Seconds from the fault until it holds."""
        self.fleet.wait_for(what)
        return round(time.perf_counter() - self._fault_s, 1)

    def said_s(self, text: str) -> float:
        """Seconds from the fault until the fleet has said it."""
        return self.since_s(lambda: self.fleet.said.count(text) > self._said.count(text))

    def agent_s(self, *hosts: str) -> float:
        """Seconds from the fault until these hosts have an agent again."""
        return self.since_s(lambda: all(self.fleet.starts(host) > self._starts[host] for host in hosts))

    def lines_s(self) -> float:
        """Seconds from the fault until all lines that the lost hosts had are claimed anew, or done."""
        return self.since_s(lambda: not self._claims & self.on.claimed())

    def ended_s(self) -> float:
        """Seconds from the fault until no process of the lost hosts' agents is left."""
        return self.since_s(lambda: not set(self.processes) & set(self.fleet.processes()))

    def passes(self, seconds: float) -> None:
        """Waits until the fault is so many seconds old."""
        self.since_s(lambda: time.perf_counter() > self._fault_s + seconds)

    def restarts(self) -> int:
        """How many agents have started since the fault."""
        return sum(self.fleet.starts(host) - starts for host, starts in self._starts.items())

    def check(self, fault: str, **seconds: float) -> None:
        """All lines have one result, streams have broken only with the engines of hosts that were lost, whose processes
        are gone.
        """
        done_s = self.since_s(self.is_done)
        text = self.on.client.get(f"/v1/files/{self._state()['output_file_id']}/content").text
        results = [json.loads(line)["custom_id"] for line in text.splitlines()]
        broken = sum(not stream.result(SECONDS) for stream in self._streams)
        left = len(set(self.processes) & set(self.fleet.processes()))
        row = {"fault": fault, **seconds, "done_s": done_s, "lines": LINES, "lost": LINES - len(set(results))}
        row |= {"twice": len(results) - len(set(results)), "streams": STREAMS, "on_lost_hosts": self.could_break}
        row |= {"broken": broken, "left": left}
        with (_results() / "faults.jsonl").open("a") as rows:
            rows.write(json.dumps(row) + "\n")
        print(f"\n{json.dumps(row)}")
        assert sorted(results) == sorted(map(str, range(LINES)))
        assert broken <= self.could_break and not left

    def _state(self) -> dict[str, Any]:
        return dict(self.on.client.get(f"/v1/batches/{self._batch}").json())


def _results() -> Path:
    """The folder where rows are kept."""
    folder = Path(os.environ["SLOSERVE_RAY"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """A server of its own. Its address."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    command = ["redis-server", "--port", str(port := free_port()), "--bind", "127.0.0.1", "--save", ""]
    with (tmp_path / "redis.log").open("w") as log:
        server = subprocess.Popen([*command, "--dir", str(tmp_path)], stdout=log)
    yield f"127.0.0.1:{port}"
    server.kill()
    server.wait(60)


@contextmanager
def running(folder: Path, postgres: str, **environment: str) -> Iterator[Running]:
    """environment: of Ray's processes. In the end no process is left."""
    store = f"ray_{next(_NUMBER)}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {store}")  # type: ignore[call-overload]
    address = f"{postgres.removesuffix('/postgres')}/{store}"
    with ray_cluster(folder, STAND_IN_STEP_S=str(STEP_S), **environment) as cluster:
        cluster.call("only", "one", "two")
        fleet = RayFleet(folder, cluster, SLOSERVE_FLEET_STORE=address)
        try:
            fleet.wait_for("ready: ")
            with httpx.Client(base_url=fleet.url, timeout=60) as client:
                yield Running(cluster, fleet, client, address)
            assert fleet.stop() == 0
            assert fleet.processes() == []
        finally:
            fleet.end()


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory, postgres_address: str) -> Iterator[Running]:
    """What most faults happen to, one after the other: a start takes longer than they do."""
    with running(tmp_path_factory.mktemp("ray"), postgres_address) as made:
        yield made


Stage = Callable[..., Staged]


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Has a batch and streams served, until the fault comes."""
    pool = ThreadPoolExecutor(STREAMS)

    def make(*lost: str, tokens: int = TOKENS, on: Running | None = None) -> Staged:
        on = on or request.getfixturevalue("common")
        on.cluster.call("only", "one", "two")
        on.fleet.wait_for(lambda: on.agents().keys() == {"one", "two"})
        on.fleet.wait_for(on.fleet.completes)
        batch = _batch(on.client, tokens)
        on.fleet.wait_for(lambda: bool(on.claimed("one") and on.claimed("two")))
        streams = [pool.submit(_stream, on.client, 10 * tokens) for _ in range(STREAMS)]
        on.fleet.wait_for(lambda: on.streams().total() == STREAMS)
        return Staged(on, batch, streams, lost)

    yield make
    with bounded.within("the end of all streams", SECONDS), pool:
        pass


def _stream(client: httpx.Client, tokens: int) -> bool:
    """Whether a streamed reply came whole."""
    body = {"model": "chat", "prompt": "Hello", "max_tokens": tokens, "stream": True}
    try:
        with client.stream("POST", "/v1/completions", json=body, timeout=SECONDS) as answer:
            lines = list(answer.iter_lines())
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and "data: [DONE]" in lines and not any('"error"' in line for line in lines)


def _batch(client: httpx.Client, tokens: int) -> str:
    body = {"model": "chat", "prompt": "Hello", "max_tokens": tokens}
    line = {"method": "POST", "url": "/v1/completions", "body": body}
    lines = "\n".join(json.dumps({"custom_id": str(number), **line}) for number in range(LINES))
    uploaded = client.post("/v1/files", files={"file": ("lines.jsonl", lines)}, data={"purpose": "batch"}).json()
    wanted = {"input_file_id": uploaded["id"], "endpoint": "/v1/completions", "completion_window": "1h"}
    return str(client.post("/v1/batches", json=wanted).json()["id"])


def test_an_actor_is_killed(stage: Stage) -> None:
    staged = stage("one")
    os.kill(staged.on.actor("one"), signal.SIGKILL)
    said_s = staged.said_s("the agent of host one cannot be reached")
    ended_s = staged.ended_s()
    staged.said_s("the agent of host one has died with its actor, and Ray has started both again")
    staged.check(
        "actor killed", noticed_s=said_s, ended_s=ended_s, agent_s=staged.agent_s("one"), lines_s=staged.lines_s()
    )


def test_an_agent_is_killed(stage: Stage) -> None:
    staged = stage("one")
    (agent,) = [pid for pid in staged.processes if "fleet\0agent" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(agent, signal.SIGKILL)
    said_s = staged.said_s("the agent of host one has ended with status -9")
    ended_s = staged.ended_s()
    staged.check(
        "agent killed", noticed_s=said_s, ended_s=ended_s, agent_s=staged.agent_s("one"), lines_s=staged.lines_s()
    )


def test_a_raylet_is_killed(stage: Stage) -> None:
    staged = stage("one")
    staged.cluster.call("signal", "raylet", "one", signal.SIGKILL)
    ended_s = staged.ended_s()
    noticed_s = staged.said_s("the agent of host one has died with its actor")
    staged.check("raylet killed", noticed_s=noticed_s, ended_s=ended_s, lines_s=staged.lines_s())


def test_a_node_hangs_and_comes_back(stage: Stage) -> None:
    staged = stage("one")
    stopped = [*staged.processes, staged.on.actor("one")]
    stopped.append(staged.cluster.call("signal", "raylet", "one", signal.SIGSTOP))
    for pid in stopped[:-1]:
        os.kill(pid, signal.SIGSTOP)
    lines_s = staged.lines_s()
    staged.since_s(staged.is_done)
    for pid in reversed(stopped):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    staged.cluster.call("remove", "one")
    ended_s = staged.ended_s()
    staged.check("node hangs", ended_s=ended_s, lines_s=lines_s)


def test_a_node_is_removed(stage: Stage) -> None:
    """As an autoscaler ends one."""
    staged = stage("one")
    staged.cluster.call("remove", "one")
    staged.check("node removed", ended_s=staged.ended_s(), lines_s=staged.lines_s())


def test_a_node_is_added(stage: Stage) -> None:
    staged = stage()
    staged.cluster.call("add", "three")
    staged.check("node added", agent_s=staged.agent_s("three"))


def test_the_gcs_hangs_for_half_a_minute(stage: Stage) -> None:
    staged = stage(tokens=LONG_TOKENS)
    staged.cluster.call("signal", "gcs_server", "head", signal.SIGSTOP)
    staged.passes(AWAY_S)
    staged.cluster.call("signal", "gcs_server", "head", signal.SIGCONT)
    staged.check("GCS hangs for 30 s")
    assert not staged.restarts()


def test_the_head_is_lost_with_all_that_it_knew(stage: Stage) -> None:
    """Another head knows no node: Ray ends those that there are, and they are started anew, as KubeRay does it."""
    staged = stage("one", "two", tokens=LONG_TOKENS)
    staged.cluster.call("lose_head")
    staged.passes(AWAY_S)
    staged.cluster.call("head")
    ended_s = staged.ended_s()
    staged.cluster.call("only", "one", "two")
    agent_s = staged.agent_s("one", "two")
    staged.check("head lost", ended_s=ended_s, agent_s=agent_s, lines_s=staged.lines_s())


def test_the_head_is_lost_and_redis_knows_what_it_knew(
    stage: Stage, tmp_path: Path, postgres_address: str, redis: str
) -> None:
    """Nodes and agents stay. The pool was a driver on the head: it ends with it, and the next one finds them."""
    with running(tmp_path, postgres_address, RAY_REDIS_ADDRESS=redis) as on:
        staged = stage(tokens=LONG_TOKENS, on=on)
        staged.cluster.call("lose_head")
        staged.passes(AWAY_S)
        staged.cluster.call("head")
        staged.check("head lost, Redis", found_s=staged.said_s("host two runs already"))
        assert not staged.restarts()
