"""A fleet of real processes: gateways on one port, planners, agents with stand-in engines, and a store."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from sloserve.core.clock import SystemClock
from sloserve.fleet.store.store import open_store
from sloserve.wire.keys import hash_of, new_key
from tests import bounded
from tests.fleet.store.databases import Server, installed
from tests.ports import free_port

CLOCK = SystemClock()
MODELS: Final = ("chat", "code")
HOSTS: Final = ("left", "right")
GATEWAYS, PLANNERS = 2, 2
ENGINE: Final = "tests.fleet.stand_in.server"
FILE = """
store: {store}
models:
  chat: {{model: m/chat, profile: h100-llama3-8b, active_on: [left/0]}}
  code: {{model: m/code, profile: h100-llama3-8b, active_on: [right/0]}}
hosts:
  left: {{device: h100, devices: 1, host_memory_gib: 64}}
  right: {{device: h100, devices: 1, host_memory_gib: 64}}
switching: {{min_active_s: 5, max_wait_s: 20, drain_max_s: 30}}
gateway: {{port: {port}, reuse_port: true, leave_s: 0.5, keys: keys.yaml}}
"""


@dataclass
class Part:
    """One command of the fleet that others start again: systemd, or this program."""

    name: str
    command: list[str]
    log: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env={**os.environ, **self.environment}, start_new_session=True
            )

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None


@dataclass
class LiveFleet:
    """The processes of the fleet, and the keys of its tenants."""

    folder: Path
    tenants: int
    postgres: Server | None
    step_s: float = 0.02
    parts: dict[str, Part] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port = free_port()
        self.store = f"sqlite:{self.folder}/fleet.db" if self.postgres is None else self.postgres.address
        self.file = self.folder / "fleet.yaml"
        self.file.write_text(FILE.format(store=self.store, port=self.port))
        made = [new_key() for _ in range(self.tenants)]
        self.keys = [key for key, _ in made]
        tenants = "".join(f"  t{number}: {{keys: ['{hash_of(key)}']}}\n" for number, key in enumerate(self.keys))
        (self.folder / "keys.yaml").write_text(f"tenants:\n{tenants}")
        for number in range(GATEWAYS):
            self._add(f"gateway-{number}", "gateway")
        for number in range(PLANNERS):
            self._add(f"planner-{number}", "planner")
        for host in HOSTS:
            self._add(f"agent-{host}", "agent", "--host", host, "--lease-s", "5", "--engine-module", ENGINE)

    def _add(self, name: str, part: str, *options: str) -> None:
        command = [sys.executable, "-m", "sloserve.cli", "fleet", part, str(self.file), *options]
        environment = {"STAND_IN_STEP_S": str(self.step_s), "XDG_RUNTIME_DIR": str(self.folder / "run")}
        self.parts[name] = Part(name, command, self.folder / f"{name}.log", environment)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        (self.folder / "run").mkdir(mode=0o700, exist_ok=True)
        for part in self.parts.values():
            part.start()

    def keep(self) -> list[str]:
        """Start again what has ended, as a service manager would; return the names."""
        ended = [part for part in self.parts.values() if part.has_ended()]
        for part in ended:
            part.start()
        return [part.name for part in ended]

    def parent(self, host: str) -> psutil.Process | None:
        """Return the parent of a host's engines."""
        try:
            note = json.loads((self.folder / "fleet.state" / f"processes-{host}.json").read_text())
            return psutil.Process(note["pid"])
        except (OSError, ValueError, psutil.NoSuchProcess):
            return None

    def engines(self, host: str) -> set[int]:
        """Return the process ids of a host's engines."""
        parent, found = self.parent(host), set[int]()
        for one in [] if parent is None else parent.children():
            try:
                if one.status() != psutil.STATUS_ZOMBIE and ENGINE in one.cmdline():
                    found.add(one.pid)
            except psutil.NoSuchProcess:
                continue
        return found

    def all_engines(self) -> set[int]:
        return set[int]().union(*(self.engines(host) for host in HOSTS))

    def stop(self) -> list[str]:
        """End all parts in order; return the commands of processes that are left."""
        for part in self.parts.values():
            if not part.has_ended():
                part.send(signal.SIGCONT)
                part.send(signal.SIGTERM)
        last_s = CLOCK.monotonic_s() + 60.0
        for part in self.parts.values():
            if part.process is not None:
                try:
                    part.process.wait(max(last_s - CLOCK.monotonic_s(), 0.1))
                except subprocess.TimeoutExpired:
                    part.send(signal.SIGKILL)
                    part.process.wait(10)
        return self.left()

    def left(self) -> list[str]:
        """Return the commands of all processes that work in the fleet's folder; kill them."""
        found = []
        for one in psutil.process_iter():
            try:
                environment = one.environ()
            except psutil.Error:
                continue
            if environment.get("XDG_RUNTIME_DIR") == str(self.folder / "run"):
                found.append(" ".join(one.cmdline()))
                one.kill()
        return found

    def open_lines(self) -> int:
        """Return the number of lines of batches that have not ended."""
        opened = open_store(self.store)
        try:
            return sum(sums.requests for sums in opened.requests.sums())
        finally:
            opened.close()


@contextmanager
def started(folder: Path, tenants: int, *, on_postgres: bool, step_s: float) -> Iterator[LiveFleet]:
    """Run a fleet; at the end all of its processes have ended."""
    server: Server | None = None
    if on_postgres:
        data = folder / "postgres"
        data.mkdir()
        server = Server(installed(data), data, free_port())
        server.initialize()
        server.start()
    fleet = LiveFleet(folder, tenants, server, step_s)
    try:
        fleet.start()
        with bounded.within("two engines", 120.0):
            while len(fleet.all_engines()) < len(HOSTS):
                fleet.keep()
                time.sleep(0.2)
        yield fleet
    finally:
        fleet.stop()
        if server is not None:
            server.stop()
