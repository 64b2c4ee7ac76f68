"""A Ray cluster on this machine and ``sloserve fleet`` on it, for tests."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests import bounded
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
FILE = """
models: {{chat: {{model: m/chat, flags: {{max_num_seqs: 8}}, profile: {profile}}}}}
pool:
  ray: "{address}"
  scaling: {{up_s: 0, down_s: 5}}
  unattended_s: {unattended_s}
  devices: {{cpu: {{devices: 1, host_memory_gib: 1{bounds}}}}}
settings: {{classes: {{interactive: {{rank: 1, ttft_ms: 5000}}, batch: {{rank: 2}}}}}}
"""
STEP_S = 0.05
AUTOSCALED = {
    **dict.fromkeys(("RAY_CLOUD_INSTANCE_ID", "RAY_OVERRIDE_NODE_ID_FOR_TESTING"), f"{'f' * 51}00000"),
    "RAY_FAKE_CLUSTER": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "PYTHONPATH": str(ROOT),
}
"""A head whose autoscaler adds nodes of this machine, under the id that Ray's fake provider gives it."""
SECONDS = 400.0 if "SLOSERVE_RAY" in os.environ else 60.0
"""For what is waited for, Ray's own answers included. ``make test`` tries again instead, and soon."""


class TookTooLong(AssertionError):
    """Ray, or what waits for it, took longer than :data:`SECONDS`, or Ray's processes have ended."""


class RayCluster:
    """Nodes of one cluster. folder: for its log, and what agents keep on nodes. environment: of Ray's processes.

    most: so many nodes Ray's autoscaler may add.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], most: int = 0) -> None:
        self.most = most
        self.nodes = folder / "nodes"
        """What agents keep on nodes."""
        environment = {
            **os.environ,
            **environment,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_metrics_collection": "0",
            "RAY_worker_niceness": "0",
            "RAY_agent_register_timeout_ms": "200000",
            "XDG_STATE_HOME": str(self.nodes),
        }
        if most:
            environment |= AUTOSCALED
        self._log = (folder / "ray.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.fleet.pool.ray_cluster"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.address = ""

    def start(self) -> None:
        """Its head, without a node that works."""
        self.address = self.call("head", self.most)

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """A method of ``ray_cluster.Nodes``."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, arguments, named]) + "\n")
        self._process.stdin.flush()
        there, _, _ = select.select([self._process.stdout], [], [], SECONDS)
        with bounded.within("the rest of a line, all of which comes at once"):
            answer = self._process.stdout.readline() if there else ""
        if not answer:
            raise TookTooLong(f"{name}\n{Path(self._log.name).read_text()}")
        return json.loads(answer)

    def end(self) -> None:
        started = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate(timeout=60)
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._log.close()


@contextmanager
def ray_cluster(folder: Path, most: int = 0, **environment: str) -> Iterator[RayCluster]:
    cluster = RayCluster(folder, environment, most)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()


class RayFleet:
    """``sloserve fleet FILE`` with a key of its own for doors. environment: such as the address of a store.

    The model's profile says what a token takes its engines: :data:`STEP_S`. cpus: what an agent holds of its node, if
    not all. unattended_s: of the file.
    """

    def __init__(
        self,
        folder: Path,
        cluster: RayCluster,
        *options: str,
        cpus: float | None = None,
        unattended_s: float = 600.0,
        **environment: str,
    ) -> None:
        profile = yaml.safe_load((ROOT / "configs" / "cpu-tiny.yaml").read_text())
        step = {"base_ms": 1000.0 * STEP_S, "seq_ms": 0.0, "context_token_ms": 0.0}
        profile["latency"] |= {**step, "token_ms": 0.0, "decode": step}
        (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
        bounds = f", least: 1, most: {cluster.most}" if cluster.most else ""
        bounds += f", bundle: {{CPU: {cpus}}}" if cpus else ""
        text = FILE.format(profile="profile.yaml", address=cluster.address, bounds=bounds, unattended_s=unattended_s)
        (folder / "fleet.yaml").write_text(text)
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.folder, self._nodes, self._log = folder, cluster.nodes, folder / "fleet.log"
        command = [sys.executable, "-m", "sloserve.cli", "fleet", str(folder / "fleet.yaml"), "--port", str(port)]
        command += ["--engine-module", "tests.fleet.stand_in.server", *options]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **environment}, stdout=log, stderr=log
            )

    @property
    def said(self) -> str:
        """What it has said, and its pool."""
        logs = [self._log, *(self.folder / "fleet.state" / "logs").glob("pool-*.log")]
        return "\n".join(log.read_text() for log in logs)

    def wait_for(self, what: str | Callable[[], bool]) -> float:
        """Until it has said a text, or something holds; the seconds that it took."""
        begun_s = time.perf_counter()
        while not (what in self.said if isinstance(what, str) else what()):
            assert self.process.poll() is None, self.said
            if time.perf_counter() > begun_s + SECONDS:
                raise TookTooLong(f"{what}\n{self.said}")
            time.sleep(0.1)
        return time.perf_counter() - begun_s

    def completes(self) -> bool:
        """Whether a request is served."""
        asked = {"model": "chat", "prompt": "Hello", "max_tokens": 4}
        try:
            answer = httpx.post(f"{self.url}/v1/completions", json=asked, timeout=10)
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4

    def starts(self, host: str) -> int:
        """How often a node's agent has opened its door."""
        logs = (self._nodes / "sloserve" / "nodes").glob(f"*/{host}/agent.log")
        return sum(log.read_text().count("Started server process") for log in logs)

    def processes(self) -> list[int]:
        """Those of agents and engines on nodes."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = entry.read_bytes().split(b"\0")
            except OSError:
                continue
            if any(str(self._nodes).encode() in word for word in words):
                found.append(int(entry.parent.name))
        return sorted(found)

    def stop(self) -> int:
        """Its status, after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(60)
