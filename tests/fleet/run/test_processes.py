"""``sloserve fleet`` as its operator meets it: real processes, with stand-ins for engines."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from sloserve.core.errors import StoreAway
from sloserve.fleet.certificates import Certificates
from sloserve.fleet.store.store import Store, open_store
from tests import bounded
from tests.ended import has_ended
from tests.orphans import kill_with_children
from tests.ports import free_port
from tests.whole import sampled

ROOT = Path(__file__).parents[3]
STAND_IN = ("--engine-module", "tests.fleet.stand_in.server")


@pytest.mark.slow
@pytest.mark.whole
def test_the_demonstration_keeps_its_promises_and_leaves_nothing_behind() -> None:
    """Streams of three models on one device, a batch, one engine killed: each line has one result."""
    command = [sys.executable, str(ROOT / "examples" / "demo_fleet.py"), *STAND_IN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kept    every accepted line has one result: 90 of 90, 0 twice" in done.stdout
    assert "processes left: 0" in done.stdout and "kill -9 of the engine" in done.stdout
    assert re.search(r"^[1-9]\d* times a model came to the device", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1] == "  kept    nothing is left behind: nothing", "no error that was expected"


@pytest.mark.slow
def test_a_fault_in_the_file_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(
        "models: {a: {profile: h100-llama3-8b}}\nhosts: {n: {device: h100, devices: 1}}"
    )
    command = [sys.executable, "-m", "sloserve.cli", "fleet", str(tmp_path / "fleet.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 2 and "fleet.yaml:1:10: models.a.model: is missing" in done.stderr
    assert not (tmp_path / "fleet.state").exists()


FLEET = """
store: {store}
models: {{chat: {{model: m/chat, profile: h100-llama3-8b}}}}
hosts: {{n: {{device: h100, devices: 1}}}}
"""


class _Started:
    """A process of the command line, and what it has said."""

    def __init__(self, log: Path, *arguments: str | Path) -> None:
        engines = () if arguments[0] in ("gateway", "planner") else STAND_IN
        command = [sys.executable, "-m", "sloserve.cli", "fleet", *map(str, arguments), *engines]
        self._log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        with bounded.within(f"{text!r} in {self._log}"):
            while text not in self.said:
                assert self.process.poll() is None, self.said
                time.sleep(0.1)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., _Started]]:
    started: list[_Started] = []

    def begin(*arguments: str | Path) -> _Started:
        started.append(_Started(tmp_path / f"{len(started)}.log", *arguments))
        return started[-1]

    yield begin
    for one in started:
        one.process.send_signal(signal.SIGCONT)
        kill_with_children(one.process)


@pytest.mark.slow
def test_a_second_fleet_of_a_file_says_what_runs_and_ends(tmp_path: Path, start: Callable[..., _Started]) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(store="sqlite:fleet.db"))
    first = start(file, "--port", str(free_port()))
    first.wait_for("ready: ")
    second = start(file, "--port", str(free_port()))
    assert second.process.wait(60) == 2
    assert f"is already running (process {first.process.pid})" in second.said and "ready: " not in second.said
    second_agent = start("agent", file)
    assert second_agent.process.wait(60) == 2 and "an agent of host n is already running (process " in second_agent.said


JOINING = """
models: {chat: {model: m/chat, profile: h100-llama3-8b}}
pool: {devices: {h100: {devices: 1}}}
"""


def _listening(*processes: int) -> set[int]:
    """TCP ports of processes and their children."""
    found = {part for pid in processes for part in _family(psutil.Process(pid))}
    opened = [one for part in found for one in part.net_connections("tcp")]
    return {one.laddr.port for one in opened if one.status == psutil.CONN_LISTEN}


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", sampled(["http", "https"], ["https"]))
def test_a_host_joins_serves_is_told_to_end_and_leaves(
    tmp_path: Path, start: Callable[..., _Started], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """No file names it, nor its door's port; it has a state folder of its own, as on another machine."""
    monkeypatch.setenv("SLOSERVE_FLEET_DOOR_KEY", "a-key-of-the-fleet")
    monkeypatch.setenv("SLOSERVE_FLEET_STORE", f"sqlite:{tmp_path}/fleet.db")
    (tmp_path / "fleet.yaml").write_text(JOINING + ("certificates: {folder: tls}" if scheme == "https" else ""))
    if scheme == "https":
        Certificates(tmp_path / "tls").issue([])
    fleet = start(tmp_path / "fleet.yaml", "--port", str(port := free_port()))
    fleet.wait_for("1 models on 0 instances and the instances of hosts that join")
    joins = ("--host", "rack-7", "--address", "127.0.0.1", "--state", tmp_path / "other")
    agent = start("agent", tmp_path / "fleet.yaml", *joins)
    fleet.wait_for("ready: ")
    asked = {"model": "chat", "prompt": "Hello", "max_tokens": 4}
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=asked, timeout=60)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4
    opened = open_store(f"sqlite:{tmp_path}/fleet.db")
    try:
        (door,) = [row.state["door"] for row in opened.members.agents() if row.id == "agent:rack-7"]
        assert door.startswith(f"{scheme}://127.0.0.1:") and not door.endswith(":0")
        assert door.endswith("#rack-7") is (scheme == "https")
        parent = json.loads((tmp_path / "other" / "processes-rack-7.json").read_text())["pid"]
        listening = {fleet: _listening(fleet.process.pid), agent: _listening(agent.process.pid, parent)}
        assert listening == {fleet: {port}, agent: {int(door.partition("#")[0].rpartition(":")[2])}}, "docs/ports.md"
        opened.members.order_end("agent:rack-7")
        assert agent.process.wait(60) == 0 and "stopping the agent of host" in agent.said
        assert "agent:rack-7" not in [row.id for row in opened.members.agents()]
    finally:
        opened.close()
    assert fleet.process.poll() is None


def _suspend(agent: _Started, opened: Store) -> None:
    """Suspend an agent while it does not write into the store, which would be locked until it goes on."""
    while True:
        agent.process.send_signal(signal.SIGSTOP)
        try:
            opened.members.order_end("nobody")
            return
        except StoreAway:
            agent.process.send_signal(signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.whole
def test_an_agent_that_was_suspended_finds_its_host_taken_and_ends(
    tmp_path: Path, start: Callable[..., _Started]
) -> None:
    """As on two machines: the two have state folders, and so locks, of their own."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(store=f"sqlite:{tmp_path}/fleet.db"))
    alive = start("agent", file, "--state", tmp_path / "one", "--lease-s", "4")
    opened = open_store(f"sqlite:{tmp_path}/fleet.db")
    try:
        with bounded.within("the agent's first report"):
            while not (seen := opened.members.agents()) or not seen[0].state:
                assert alive.process.poll() is None, alive.said
                time.sleep(0.1)
        second = start("agent", file, "--state", tmp_path / "two", "--lease-s", "4")
        assert second.process.wait(60) == 2 and "has an agent on another machine" in second.said
        _suspend(alive, opened)
        third = start("agent", file, "--state", tmp_path / "two", "--lease-s", "4")
        third.wait_for("before this one has ended; claims given back: 0")
        alive.process.send_signal(signal.SIGCONT)
        assert alive.process.wait(60) == 0 and "another agent has taken host n" in alive.said
        assert third.process.poll() is None
    finally:
        opened.close()


def _engines(state: Path, host: str) -> set[psutil.Process]:
    parent = psutil.Process(json.loads((state / f"processes-{host}.json").read_text())["pid"])
    return {one for one in parent.children() if STAND_IN[1] in one.cmdline()}


def _ask(port: int) -> None:
    asked = {"model": "chat", "prompt": "Hello", "max_tokens": 4}
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=asked, timeout=60)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4


@pytest.mark.slow
def test_engines_outlive_the_whole_fleet_and_end_with_it_in_order(
    tmp_path: Path, start: Callable[..., _Started]
) -> None:
    """The gateway, the planner and the agent die at once, as if the kernel had killed the command."""
    file, state = tmp_path / "fleet.yaml", tmp_path / "fleet.state"
    file.write_text(FLEET.format(store="sqlite:fleet.db"))
    first = start(file, "--port", str(port := free_port()))
    first.wait_for("ready: ")
    _ask(port)
    engines = _engines(state, "n")
    first.process.kill()
    first.process.wait(60)
    second = start(file, "--port", str(port))
    second.wait_for("ready: ")
    _ask(port)
    assert len(engines) == 1 and _engines(state, "n") == engines
    assert "the engine of model chat is taken over" in (state / "logs" / "agent-n.log").read_text()
    second.process.terminate()
    assert second.process.wait(60) == 0
    assert all(map(has_ended, engines)) and not (state / "processes-n.json").exists()


@pytest.mark.slow
@pytest.mark.whole
def test_an_agent_restarts_itself_when_the_parent_of_its_engines_has_died(
    tmp_path: Path, start: Callable[..., _Started]
) -> None:
    """A service manager takes an agent that ends with status 0 for one that was to end."""
    file, state = tmp_path / "fleet.yaml", tmp_path / "fleet.state"
    file.write_text(FLEET.format(store=f"sqlite:{tmp_path}/fleet.db"))
    agent = start("agent", file)
    note = state / "processes-n.json"
    with bounded.within("the note of the first parent"):
        while not note.exists():
            time.sleep(0.05)
    first = json.loads(note.read_text())["pid"]
    psutil.Process(first).kill()
    with bounded.within("the note of the next parent"):
        while not note.exists() or json.loads(note.read_text())["pid"] == first:
            assert agent.process.poll() is None, agent.said
            time.sleep(0.05)
    assert "the parent process of engines has ended, and its engines with it" in agent.said
    agent.process.terminate()
    assert agent.process.wait(60) == 0
    with bounded.within("the end of the next parent"):
        while note.exists():
            time.sleep(0.05)
