"""Members of a fleet in virtual time, put together from the product's objects as its processes put them together."""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from sloserve.core.errors import ConfigError, StoreError
from sloserve.fleet.agent.agent_server import AgentServer
from sloserve.fleet.agent.claims import cancelled
from sloserve.fleet.agent.costs import SHARE_S, Costs, SharedCosts
from sloserve.fleet.agent.engine import EngineLimits
from sloserve.fleet.agent.engine_note import read_note
from sloserve.fleet.agent.engine_spec import EngineModel
from sloserve.fleet.agent.following import Following
from sloserve.fleet.agent.host_fence import HostFence
from sloserve.fleet.agent.host_parts import HostParts
from sloserve.fleet.agent.instance import Instance
from sloserve.fleet.agent.memory import HostMemory
from sloserve.fleet.agent.pulling import Pulling
from sloserve.fleet.agent.state_route import StateRoute
from sloserve.fleet.contract.reports import AgentReport, to_json
from sloserve.fleet.fleet import Fleet, Host
from sloserve.fleet.gateway.batch_work import BatchWork
from sloserve.fleet.gateway.gateway import Gateway
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.fleet.planning.planning_task import Planning
from sloserve.fleet.run.agent_process import STOP_S
from sloserve.fleet.store.sqlite import SqliteDatabase
from sloserve.fleet.store.store import Store
from sloserve.fleet.supervised import supervised
from tests.fleet.faults.engines import EngineTimes, KeptEngines, SimulatedEngine
from tests.fleet.faults.kernel import Kernel, Process
from tests.fleet.faults.network import Network
from tests.fleet.faults.storage import Disk, ReachedDatabase, ReachedFolder, StoreTrouble

_LOOK_S: Final = 0.1
SEQS: Final = 4
"""Requests that an engine runs at once."""


@dataclass
class Knobs:
    """Settings that a seed draws.

    Args:
        pace: Factor of the periods of all loops.
        lease_s: Lease of claims and hosts.
        planner_lease_s: Lease of the planner that leads.
        search_s: Seconds that a plan takes.
        slice_lines: Lines of a file that are accepted at once.
        piece: Requests that one transaction ends or deletes.
        page: Rows of a page of results.
        silent_max_s: Seconds of silence after which a gateway gives an engine up.
        hung_s: The same of an agent.
        alone_s: Seconds for which engines go on without an agent.
    """

    pace: float = 1.0
    lease_s: float = 30.0
    planner_lease_s: float = 5.0
    search_s: float = 0.0
    slice_lines: int = 4
    piece: int = 3
    page: int = 3
    silent_max_s: float = 60.0
    hung_s: float = 30.0
    alone_s: float = 0.0


@dataclass
class Ground:
    """What the members of a world stand on.

    Args:
        began: Called with an engine and a request that it begins.
        watched: Returns the transaction that members get, for one of the store.
        lost: Called with the process of an agent that finds that another has its host.
        holders: Holders of claims, by process.
        kept: Engines that outlive their agents, by state folder.
        instances: Instances of agents that have taken over what they found, by process.
    """

    kernel: Kernel
    network: Network
    fleet: Fleet
    inner: SqliteDatabase
    path: Path
    keys: Path
    knobs: Knobs
    trouble: StoreTrouble
    disk: Disk
    times: EngineTimes
    began: Callable[[SimulatedEngine, str], None]
    watched: Callable[[Any], Any]
    lost: Callable[[Process], None]
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    engines: list[SimulatedEngine] = field(default_factory=list)
    holders: dict[str, str] = field(default_factory=dict)
    kept: dict[Path, KeptEngines] = field(default_factory=dict)
    instances: dict[str, list[Instance]] = field(default_factory=dict)

    def store_of(self, process: Process) -> Store:
        """Return the store as a process reaches it."""
        return Store(ReachedDatabase(self.inner, process, self.trouble, self.watched))

    def start_engine(self, owner: Process, spec: Any) -> SimulatedEngine:
        self.engines = [one for one in self.engines if one.process.is_alive]
        engine = SimulatedEngine(
            self.kernel, self.network, owner, next(self.numbers), spec, self.times, lambda *begun: self.began(*begun)
        )
        self.engines.append(engine)
        return engine

    def kept_in(self, folder: Path, place: str) -> KeptEngines:
        """Return the engines of the agents with this state folder."""
        if folder not in self.kept:
            self.kept[folder] = KeptEngines(self.kernel, place, self.knobs.alone_s, self.start_engine)
        return self.kept[folder]


class Member(ABC):
    """A member that can be started again. place: its end of network links."""

    kind = ""

    def __init__(self, ground: Ground, place: str) -> None:
        self.ground, self.place = ground, place
        self.process = Process(ground.kernel, f"{place} before its start", place)
        self.process.kill()
        self.starts = 0
        self.before: list[Process] = []
        """Processes that were started before, elsewhere, and are alive."""

    def start(self) -> None:
        """Start a new process."""
        self.starts += 1
        self.before = [one for one in (*self.before, self.process) if one.is_alive]
        process = self.process = Process(self.ground.kernel, f"{self.place}#{self.starts}", self.place)
        main = self._main(process)
        process.call_soon(lambda: process.create_task(self._until_it_ends(process, main)))

    def look(self) -> None:
        """Take up a process from before if the newest has ended, since it gave way to that one."""
        self.before = [one for one in self.before if one.is_alive]
        if not self.process.is_alive and self.before:
            self.process = self.before.pop()

    async def _until_it_ends(self, process: Process, main: Any) -> None:
        try:
            await main
        except (ConfigError, StoreError):
            pass  # it ends, and is started again
        process.kill()

    @abstractmethod
    def _main(self, process: Process) -> Any: ...


class TaskBatchWork(BatchWork):
    """The batches' work of a gateway, in a thread of the simulated process."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._turns())

    def stop(self) -> None:
        self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def _turns(self) -> None:
        while True:
            await asyncio.sleep(await asyncio.get_running_loop().run_in_executor(None, self.turn))


class ProcessExecutor(Executor):
    """An executor of which the threads belong to the simulated process that gives it work."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **given: Any) -> Any:
        return asyncio.get_running_loop().run_in_executor(None, partial(fn, *args, **given))


class GatewayMember(Member):
    kind = "gateway"

    @property
    def path(self) -> str:
        """Path behind which clients reach it."""
        return f"/{self.place}"

    def _main(self, process: Process) -> Any:
        ground = self.ground
        folder = ReachedFolder(ground.path / "files", process, ground.disk)
        around = GatewayDependencies(
            ground.store_of(process),
            folder,  # type: ignore[arg-type]
            ground.keys,
            limits=_limits(ground),
            name=f"{self.place}-{self.starts}",
        )
        return self._serve(process, Gateway(ground.fleet, around, process.clock))

    async def _serve(self, process: Process, gateway: Gateway) -> None:
        await gateway.start()
        self.ground.network.listen(self.path, process, gateway.app)
        await asyncio.get_running_loop().create_future()


class PlannerMember(Member):
    kind = "planner"

    def _main(self, process: Process) -> Any:
        ground = self.ground

        def searched() -> None:
            if ground.knobs.search_s:
                ground.kernel.pause(float(ground.kernel.rng.uniform(0.5, 1.5)) * ground.knobs.search_s)

        self.planning = Planning(
            ground.fleet,
            ground.store_of(process),
            f"{self.place}:{self.starts}",
            process.clock,
            lease_s=ground.knobs.planner_lease_s,
            replayed=searched,
        )
        return self.planning.run(None, every_s=ground.knobs.pace)  # type: ignore[arg-type]


class AgentMember(Member):
    """An agent. folder: number of its state folder; another one is another machine's."""

    kind = "agent"

    def __init__(self, ground: Ground, place: str, host: Host) -> None:
        super().__init__(ground, place)
        self.host, self.folder = host, 0
        self.must_restart = asyncio.Event()
        """Set to have it end as on SIGHUP: its engines go on."""

    def state_folder(self, number: int) -> Path:
        return self.ground.path / f"state-{self.host.name}-{number}"

    def lose_engines(self) -> None:
        """End all engines of the host, whichever agent started them."""
        for number in range(self.folder + 1):
            if (kept := self.ground.kept.get(self.state_folder(number))) is not None:
                kept.kill_all()

    def _main(self, process: Process) -> Any:
        self.must_restart = asyncio.Event()
        folder = self.state_folder(self.folder)
        return _Agent(self.ground, self.host, process, self.starts, folder).run(self.must_restart)


class _Agent:
    """The process of an agent, as :mod:`sloserve.fleet.run.agent_process` puts it together."""

    def __init__(self, ground: Ground, host: Host, process: Process, number: int, folder: Path) -> None:
        self._ground, self._host, self._process = ground, host, process
        self._state = folder
        self._state.mkdir(exist_ok=True)
        self._run = ground.path / f"run-{host.name}-{number}"
        self._run.mkdir(exist_ok=True)
        self._store = ground.store_of(process)
        self._instances: dict[str, Instance] = {}
        self._plan: Callable[[], tuple[int, int] | None] = lambda: None
        self._door = f"unix:{self._run}/door"
        self._costs = Costs(self._state / f"swap-costs-{host.name}.json", host.device)
        self._memory = HostMemory(host.host_memory_bytes)

    def report(self, *, for_store: bool = True) -> AgentReport:
        instances = tuple(instance.report() for instance in self._instances.values())
        names = list(self._ground.fleet.models)
        return AgentReport(
            host=self._host.name,
            door=self._door,
            instances=tuple(one.for_store() for one in instances) if for_store else instances,
            plan=self._plan(),
            swaps=self._costs.swaps(names) if for_store else (),
        )

    async def run(self, restarting: asyncio.Event) -> None:
        ground, process, host, knobs = self._ground, self._process, self._host, self._ground.knobs
        fence = HostFence(host.name, self._store, self._state, knobs.lease_s)
        ground.holders[process.name] = fence.holder
        await fence.take()
        process.on_death.append(lambda: _unlock(fence))
        pulling = Pulling(self._store.requests, fence.holder, process.clock, None, lease_s=knobs.lease_s)  # type: ignore[arg-type]
        kept = ground.kept_in(self._state, process.place)
        found = [(engine, note) for engine, text in kept.begin(process) if (note := read_note(text)) is not None]
        parts = HostParts(
            kept,
            self._run,
            self._run,
            self._memory,
            self._costs,
            process.clock,
            limits=EngineLimits(start_s=120.0, control_s=60.0, canary_s=30.0, hung_s=knobs.hung_s),
            note=kept.note,
        )
        models = {name: served(name) for name in ground.fleet.models_on(host)}
        drain_s = ground.fleet.switching.drain_max_s
        for name in host.instances:
            self._instances[name] = Instance(name, host.device, models, parts, pulling, drain_max_s=drain_s)
            self._instances[name].adopt([(engine, note) for engine, note in found if note.instance == name])
            self._instances[name].follow_file()
        endpoints = ground.instances[process.name] = list(self._instances.values())
        state = StateRoute(
            lambda: self.report(for_store=False), lambda: tuple(one.standing for one in self._instances.values())
        )
        ground.network.listen(
            self._door.removeprefix("unix:"),
            process,
            AgentServer(self._instances, state.answer),
        )
        pulling.start(endpoints)
        following = Following(ground.fleet, endpoints, pulling, self._store, process.clock, None)  # type: ignore[arg-type]
        self._plan = lambda: following.plan
        shared = SharedCosts(self._costs, self._store.switch_costs, host.device, None)  # type: ignore[arg-type]

        async def beat() -> None:
            await fence.beat(to_json(self.report()))

        looking = asyncio.create_task(following.run())
        beside = [
            asyncio.create_task(supervised("no sign of life", beat, knobs.pace)),
            asyncio.create_task(supervised("costs are not shared", shared.turn, SHARE_S * 10 * knobs.pace)),
        ]
        ends = [asyncio.ensure_future(one.wait()) for one in (fence.must_end, fence.lost)]
        hung_up = asyncio.ensure_future(restarting.wait())
        await asyncio.wait([*ends, hung_up], return_when=asyncio.FIRST_COMPLETED)
        leaves = not any(one.done() for one in ends)
        if leaves:
            held = asyncio.ensure_future(_without_switch(endpoints))
            await asyncio.wait([*ends, held], return_when=asyncio.FIRST_COMPLETED)
            leaves = not any(one.done() for one in ends)
            ends.append(held)
        await cancelled([looking, *beside, *ends, hung_up])
        await following.stop()
        if fence.lost.is_set():
            ground.lost(process)
            await pulling.stop(0.0)
        elif leaves:
            await pulling.stop(STOP_S)
        else:
            draining = asyncio.gather(*(one.drain(drain_s) for one in endpoints))
            await pulling.stop(STOP_S)
            await draining
        for instance in endpoints:
            await (instance.leave() if leaves else instance.close())
        if not leaves:
            await kept.close()
        try:
            await fence.leave(to_next=leaves)
        except StoreError:
            pass


async def _without_switch(instances: list[Instance]) -> None:
    """Return once no switch is on its way on any instance, and none will be."""
    while any(one.is_switching for one in instances):
        await asyncio.sleep(_LOOK_S)
    await asyncio.gather(*(one.hold() for one in instances))


def served(name: str) -> EngineModel:
    return EngineModel(
        name, f"/weights/{name}", ("--max-num-seqs", str(SEQS)), weights_bytes=10, max_num_seqs=SEQS, longest_step_s=1.0
    )


def _limits(ground: Ground) -> Any:
    limits = ground.fleet.gateway
    values = limits.model_dump(include=set(GatewaySettings.model_fields))
    return GatewaySettings(**{**values, "silent_max_s": ground.knobs.silent_max_s})


def _unlock(fence: HostFence) -> None:
    """Release the lock of a process that has ended, as the operating system does."""
    if fence._lock is not None:
        fence._lock.close()
        fence._lock = None
