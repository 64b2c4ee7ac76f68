"""A world: a fleet, its users and its faults, drawn from one seed; its run, and the time that it is given to settle."""

import hashlib
import logging
import math
import secrets
import shutil
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np

from sloserve.fleet.batch_api import routes, runner
from sloserve.fleet.batch_api.files import open_files
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.gateway import gateway as gateway_module
from sloserve.fleet.gateway import shared_state
from sloserve.fleet.store import requests
from sloserve.fleet.store.sqlite import SqliteDatabase
from sloserve.fleet.store.store import Store
from tests.fleet.faults.engines import EngineTimes
from tests.fleet.faults.faults import Faults
from tests.fleet.faults.kernel import START_S, Kernel, Process
from tests.fleet.faults.members import (
    SEQS,
    AgentMember,
    GatewayMember,
    Ground,
    Knobs,
    Member,
    PlannerMember,
    ProcessExecutor,
    TaskBatchWork,
)
from tests.fleet.faults.network import Network, SimulatedSession
from tests.fleet.faults.oracles import TRIGGERS, Oracles, WatchedSession, lapse_s
from tests.fleet.faults.storage import Disk, StoreClock, StoreTrouble
from tests.fleet.faults.users import Users

TENANTS: Final = {"acme": "key-of-acme-0000000", "bolt": "key-of-bolt-0000000", "core": "key-of-core-0000000"}
SETTLE_S: Final = 7_200.0
"""Seconds without faults after which everything must have come to its end."""
_TRIES: Final = 4
"""Streams of each tenant after that, of which one must be whole."""
_LOOK_S: Final = 10.0
_TIDY_S: Final = 15.0
_FLEET: Final = """
models: {{m: {{profile: h100-llama3-8b}}, n: {{profile: h100-llama3-8b}}}}
hosts: {{{hosts}}}
switching: {{min_active_s: 5.0, max_wait_s: 5.0, drain_max_s: {drain_s}}}
gateway: {{hold_max_s: 60.0}}
settings: {{policy: edf, classes: {{urgent: {{rank: 0, e2e_ms: 20000}}, batch: {{rank: 1, e2e_ms: 300000}}}}}}
"""


@cache
def fleet_of(hosts: int, devices: int, memory_gib: int, drain_s: float) -> Fleet:
    one = f"{{device: h100, devices: {devices}, host_memory_gib: {memory_gib}}}"
    return parse_fleet(_FLEET.format(hosts=", ".join(f"h{i}: {one}" for i in range(hosts)), drain_s=drain_s))


class Violated(Exception):
    """What must never be has been; the rest of the run would say nothing more."""


class World:
    """One world. Use it as a context manager; :meth:`run` runs it once."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, np.random.default_rng(seed)
        self.kernel = Kernel(self.rng)
        self.events: list[tuple[float, str]] = []
        self.violations: list[str] = []
        """What was wrong while it ran."""
        self.counts: Counter[str] = Counter()
        self.blamed: Counter[str] = Counter()
        """How often each request ran on an engine, or for an agent, that something happened to: the fleet may take it
        for the reason."""
        self.quiet_s = float("inf")
        """Time since which there are no faults."""
        self.oracles = Oracles(self)
        self.ran: Counter[str] = Counter()
        """How often an engine began each request."""
        self._draw()

    def _draw(self) -> None:
        rng = self.rng
        choice = lambda *values: values[int(rng.integers(len(values)))]  # noqa: E731
        self.fleet = fleet_of(choice(1, 2, 2, 3), choice(1, 1, 2), choice(0, 999), choice(5.0, 30.0))
        self.knobs = Knobs(
            pace=choice(1.0, 4.0, 8.0, 8.0),
            lease_s=choice(15.0, 30.0, 60.0),
            planner_lease_s=choice(10.0, 20.0),
            search_s=choice(0.0, 0.0, 0.5, 2.0),
            slice_lines=choice(1, 4, 1_000),
            piece=choice(1, 3, 256),
            page=choice(1, 3, 256),
            silent_max_s=choice(20.0, 60.0),
            hung_s=choice(10.0, 30.0),
            alone_s=choice(0.0, 20.0, 120.0),
        )
        self.knobs.planner_lease_s = max(self.knobs.planner_lease_s, 3.0 * self.knobs.pace)
        self.times = EngineTimes(
            start_s=choice(2.0, 10.0),
            step_s=choice(0.05, 0.5, 1.0, 2.0),
            control_s=choice(0.2, 2.0),
            fails_to_start=choice(0.0, 0.0, 0.1),
        )
        self.gateway_count, self.planner_count = choice(1, 2, 2), choice(1, 2)
        self.every_s, self.streams = choice(3.0, 5.0, 10.0, 30.0), choice(0.1, 0.3, 0.6)
        self.poison, self.most_tokens = choice(0.0, 0.0, 0.05, 0.2), choice(5, 20, 40)
        self.most_lines = choice(15, 30)
        # Twice what the fleet can serve at most: it must come to an end after the faults.
        places = SEQS * sum(len(host.instances) for host in self.fleet.hosts.values())
        batch_s = self.most_lines * self.most_tokens / 4.0 * self.times.step_s / places
        self.every_s = max(self.every_s, batch_s / 2.0)

    def __enter__(self) -> "World":
        with ExitStack() as stack:
            base = "/dev/shm" if Path("/dev/shm").is_dir() else None
            self.path = Path(tempfile.mkdtemp(prefix="faults-", dir=base))
            stack.callback(shutil.rmtree, self.path, ignore_errors=True)
            self.network = Network(self.kernel)
            stack.enter_context(_patched(self))
            stack.enter_context(_noting_faults(self))
            self._build()
            stack.callback(self.inner.close)
            stack.callback(self.kernel.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _build(self) -> None:
        self.store_clock, self.trouble, self.disk = StoreClock(self.kernel), StoreTrouble(), Disk()
        self.inner = SqliteDatabase(self.path / "store.sqlite", self.store_clock)
        self.store, self.folder = Store(self.inner), open_files(self.path / "files")
        with self.inner.transaction() as session:
            for statement in TRIGGERS:
                session.change(statement)
        keys = self.path / "keys.yaml"
        entries = (
            f"  {name}: {{keys: ['sha256:{hashlib.sha256(key.encode()).hexdigest()}']}}\n"
            for name, key in TENANTS.items()
        )
        keys.write_text("tenants:\n" + "".join(entries))
        keys.chmod(0o600)
        self.ground = Ground(
            self.kernel,
            self.network,
            self.fleet,
            self.inner,
            self.path,
            keys,
            self.knobs,
            self.trouble,
            self.disk,
            self.times,
            self.oracles.began,
            lambda session: WatchedSession(session, self.violations),
            self.oracles.lost_host,
        )
        self.gateways = [GatewayMember(self.ground, f"gateway-{i}") for i in range(self.gateway_count)]
        self.planners = [PlannerMember(self.ground, f"planner-{i}") for i in range(self.planner_count)]
        self.agents = [AgentMember(self.ground, f"agent-{host.name}", host) for host in self.fleet.hosts.values()]
        self.users = Users(
            Process(self.kernel, "users", "users"),
            self.network,
            [one.path for one in self.gateways],
            list(self.fleet.models),
            TENANTS,
            self.poison,
            self.most_tokens,
            self.most_lines,
        )

    @property
    def members(self) -> list[Member]:
        return [*self.gateways, *self.planners, *self.agents]

    def note(self, text: str) -> None:
        """Add an event to the trace."""
        self.events.append((self.kernel.now_s - START_S, text.replace(str(self.path), "")))

    def run(self, hours: float) -> None:
        """Run for so long with faults, and then until everything has settled. Raises: Violated."""
        for member in self.members:
            member.start()
        self.kernel.run_until(START_S + 30.0)
        self.users.spawn(self.users.act(self.every_s, self.streams))
        faults = Faults(self)
        faults.begin(START_S + hours * 3_600.0)
        self._run_until(START_S + hours * 3_600.0)
        self.users.is_over = True
        faults.end()
        self.note("the faults have ended")
        self.quiet_s = self.kernel.now_s
        self._settle()

    def _run_until(self, end_s: float) -> None:
        while self.kernel.now_s < end_s:
            self.kernel.run_until(min(self.kernel.now_s + _LOOK_S, end_s))
            self.oracles.look()
            if self.violations:
                raise Violated

    def _settle(self) -> None:
        """Have all come to its end, and look whether the fleet serves as it should."""
        begun_s, ledger = self.kernel.now_s, self.users.ledger
        self._run_until(begun_s + max(30.0 + 8.0 * self.knobs.pace, lapse_s(self)))
        for tenant in TENANTS:
            self.users.spawn(self.users.upload_and_create(tenant, 2, "24h"))
        self.users.spawn(self.users.create_and_cancel(next(iter(TENANTS)), self.knobs.pace))
        term = self.term()
        while self.kernel.now_s < begun_s + SETTLE_S:
            self._run_until(self.kernel.now_s + _LOOK_S)
            if (
                self.users.is_idle
                and not self.store.batches.unfinished()
                and all(one.outcome for one in ledger.streams)
            ):
                break
        self.note(f"settled after {self.kernel.now_s - begun_s:.0f} s")
        self.last_streams = [self.users.spawn(self.users.stream_again(tenant, _TRIES)) for tenant in TENANTS]
        for _ in range(math.ceil(_TRIES * 120.0 / _LOOK_S)):
            if all(task.done() for task in self.last_streams):
                break
            self._run_until(self.kernel.now_s + _LOOK_S)
        if self.term() != term:
            self.violations.append(f"planners without faults changed the term from {term} to {self.term()}")

    def wait_and_tidy(self, seconds: float) -> None:
        """Let time pass by the store's clock alone, and then a round in which gateways tidy up."""
        self.store_clock.set(self.store_clock.ahead_s + seconds)
        self.kernel.run_until(self.kernel.now_s + 2.0 * _TIDY_S + 2.0 * self.knobs.pace)

    def term(self) -> int:
        """Return the term of the planner that leads."""
        with self.inner.reading() as session:
            found = session.rows("SELECT term FROM leader")
        return int(found[0][0]) if found else 0

    def leader(self) -> str | None:
        """Return the holder of the planner's lead; ``None`` if there is none."""
        with self.inner.reading() as session:
            found = session.rows("SELECT holder FROM leader")
        return str(found[0][0]) if found else None

    @property
    def hours(self) -> float:
        """Return the virtual hours until now."""
        return (self.kernel.now_s - START_S) / 3_600.0

    def digest(self) -> str:
        """Return a number that is equal for equal runs."""
        text = "\n".join(f"{when_s:.6f} {what}" for when_s, what in self.events)
        return hashlib.sha256(f"{text} {self.kernel.steps}".encode()).hexdigest()[:16]


_PERIODS: Final = {
    "ASK_S": 4.0,
    "ASK_SOON_S": 8.0,
    "STORE_S": 1.0,
    "GONE_S": 1.0,
    "ALIVE_S": 1.0,
    "FRESH_S": 1.0,
    "LOOK_S": 1.0,
    "STALE_S": 1.0,
    "HEALTH_EVERY_S": 1.0,
    "_IDLE_S": 1.0,
    "IDLE_S": 1.0,
}
"""Periods of loops, and ages that follow from them, in the product's modules, and by how much more than the pace they
grow."""


def _each(name: str, value: Callable[[float], float]) -> Iterator[tuple[Any, str, float]]:
    """Yield a patch for each module of a fleet that has a constant of this name."""
    for module in [one for key, one in sorted(sys.modules.items()) if key.startswith("sloserve.fleet.")]:
        if isinstance(known := vars(module).get(name), float):
            yield module, name, value(known)


def _outside_of_virtual_time(thread: threading.Thread) -> None:
    raise AssertionError(f"{thread.name}: a thread of the system has no turn in virtual time, and no seed repeats it")


def _times(factor: float) -> Callable[[float], float]:
    return lambda known: known * factor


@contextmanager
def _patched(world: World) -> Iterator[None]:
    """Have the product use what stands in for the system: its sockets, its threads, its random numbers."""
    knobs, rng = world.knobs, np.random.default_rng(world.seed + 1)
    session = type("Session", (SimulatedSession,), {"network": world.network})
    patches: list[tuple[Any, str, Any]] = [
        (aiohttp, "ClientSession", session),
        (gateway_module, "BatchWork", TaskBatchWork),
        (threading.Thread, "start", _outside_of_virtual_time),
        (routes, "ThreadPoolExecutor", lambda *_: ProcessExecutor()),
        (shared_state, "open_files", lambda files, *rest: files.opened(open_files, *rest)),
        (secrets, "token_hex", lambda count=32: rng.bytes(count).hex()),
        (secrets, "token_bytes", lambda count=32: rng.bytes(count)),
        (secrets, "token_urlsafe", lambda count=32: rng.bytes(count).hex()),
        *_each("_READY_POLL_S", lambda _: 0.5),
        *_each("TIDY_S", lambda _: _TIDY_S),
        *(patch for name, factor in _PERIODS.items() for patch in _each(name, _times(factor * knobs.pace))),
        (runner, "_SLICE_LINES", knobs.slice_lines),
        (requests, "PIECE", knobs.piece),
        (requests.Requests.results, "__defaults__", (0, knobs.page, 16_000_000)),
    ]
    before = [(where, name, getattr(where, name)) for where, name, _ in patches]
    try:
        for where, name, value in patches:
            setattr(where, name, value)
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)


class _Noting(logging.Handler):
    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._world.note(f"log: {text[:200]}")
        if record.exc_info and record.exc_info[1] is not None:
            where = traceback.extract_tb(record.exc_info[2])[-1]
            self._world.violations.append(
                f"a fault of ours: {text[:120]}: {record.exc_info[1]!r} at {where.filename}:{where.lineno}"
            )


@contextmanager
def _noting_faults(world: World) -> Iterator[None]:
    """Take what the product logs into the trace; an exception in its log is a fault of the product."""
    logger = logging.getLogger("sloserve")
    handler, level, propagates, handlers = _Noting(world), logger.level, logger.propagate, logger.handlers[:]
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagates
        logger.setLevel(level)
