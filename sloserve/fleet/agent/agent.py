"""The agent of a host: its instances, behind one endpoint, and its signs of life in the store."""

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sloserve.core.clock import Clock, SystemClock
from sloserve.core.errors import ConfigError
from sloserve.core.installed_code import digest_of_code
from sloserve.fleet.agent.agent_server import AgentServer
from sloserve.fleet.agent.costs import Costs
from sloserve.fleet.agent.engine import EngineLimits
from sloserve.fleet.agent.engine_logs import rotate
from sloserve.fleet.agent.engine_note import EngineNote, read_note
from sloserve.fleet.agent.engine_spec import EngineModel, EngineProcess
from sloserve.fleet.agent.forwarding.forwarder_job import ForwarderJob
from sloserve.fleet.agent.forwarding.forwarders import Forwarders, ForwarderSettings
from sloserve.fleet.agent.host_fence import HostFence
from sloserve.fleet.agent.host_parts import HostParts
from sloserve.fleet.agent.host_processes import HostProcesses
from sloserve.fleet.agent.instance import Instance, NoDurableWork
from sloserve.fleet.agent.listening import UNIX, address_of, listening_on
from sloserve.fleet.agent.memory import HostMemory
from sloserve.fleet.agent.state_route import StateRoute
from sloserve.fleet.agent.tenant_service import TenantService
from sloserve.fleet.contract.endpoint import DurableWork
from sloserve.fleet.contract.reports import AgentReport, to_json
from sloserve.fleet.http import endpoint_server
from sloserve.fleet.supervised import Faults, supervised

logger = logging.getLogger(__name__)

BEAT_S: Final = 1.0
_IDLE_MAX_S: Final = 120.0
"""Seconds for which a moment without a switch on any instance is awaited; then no further switch begins."""
_IDLE_LOOK_S: Final = 0.1
_ANSWERED_S: Final = 0.5
"""Seconds in which questions for the report may be answered as the agent ends; then they are broken off."""
_LOGS_EVERY_S: Final = 10.0
"""Seconds between looks at the sizes of logs."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Settings of one host's agent.

    Args:
        host: Name of the host.
        device: Kind of its devices.
        instances: Models that each instance can serve, by name, for each instance by name.
        state_folder: Folder for logs and measured costs; created if it does not exist.
        environments: Further environment variables of each instance's engines, by instance: its devices.
        endpoint: Address of the endpoint, ``unix:PATH``, ``http://HOST:PORT`` or ``https://HOST:PORT``; ``None`` for a
            socket of the agent's own choice.
        endpoint_key: Key that the endpoint asks for; an endpoint on TCP has one.
        endpoint_tls: TLS context of an endpoint with ``https``.
        forwarders: Processes that pass requests on.
        host_memory_bytes: Bytes of host memory for weights of models that sleep.
        drain_max_s: See :class:`sloserve.fleet.file_sections.Switching`.
        limits: Times that an engine may take.
        half_life_s: Seconds in which service of tenants halves; ``None`` where they have no shares.
    """

    host: str
    device: str
    instances: Mapping[str, Mapping[str, EngineModel]]
    state_folder: Path
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    endpoint: str | None = None
    endpoint_key: str | None = field(default=None, repr=False)
    endpoint_tls: ssl.SSLContext | None = None
    forwarders: ForwarderSettings = ForwarderSettings()
    host_memory_bytes: int = 0
    drain_max_s: float = 60.0
    limits: EngineLimits = EngineLimits()
    half_life_s: float | None = None


class Agent:
    """Runs the engines of one host. Within ``async with`` its endpoint is open.

    At the end all engines have ended, unless :meth:`leave` was called: then the next agent of the host takes them over.

    Raises: ConfigError, when it is entered, for an endpoint that cannot be opened.

    Args:
        settings: Settings of the host.
        processes: Starts the engines and the forwarding processes, and has the ones of an earlier agent.
        fence: Lease by which this is the one agent of the host, and which gives signs of life; ``None`` without a
            store.
        durable: Puller of requests from the store; ``None`` for none.
        clock: Clock of this process; ``None`` for the system's.
    """

    def __init__(
        self,
        settings: AgentSettings,
        processes: HostProcesses,
        fence: HostFence | None = None,
        durable: DurableWork | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._settings, self._processes, self._fence = settings, processes, fence
        self._durable, self._clock = durable or NoDurableWork(), clock or SystemClock()
        self.endpoint = settings.endpoint or ""
        """Address of the endpoint, once it is open."""
        self._memory = HostMemory(settings.host_memory_bytes)
        settings.state_folder.mkdir(parents=True, exist_ok=True)
        self._logs = settings.state_folder / "logs"
        self._logs.mkdir(exist_ok=True)
        self.costs = Costs(settings.state_folder / f"swap-costs-{settings.host}.json", settings.device)
        half_life_s = settings.half_life_s
        self._service = None if half_life_s is None else TenantService(half_life_s, self._clock)
        self.instances: dict[str, Instance] = {}
        self._forwarders: Forwarders | None = None
        self._leaves = self._ends = False
        self.plan: Callable[[], tuple[int, int] | None] = lambda: None
        """Term and version of the plan that is followed; the follower of the plan sets it."""

    def report(self, *, for_store: bool = True) -> AgentReport:
        """Return the agent's report on itself, for the store or for its endpoint.

        Args:
            for_store: Whether planners read it: then it contains the measured swaps, one for each pair of models, and
                not the prompts and tasks of the last seconds, which gateways read.
        """
        instances = tuple(instance.report() for instance in self.instances.values())
        held: dict[str, int] = {}
        for (_, model), size in self._memory.held.items():
            held[model] = held.get(model, 0) + size
        names = dict.fromkeys(name for models in self._settings.instances.values() for name in models)
        return AgentReport(
            host=self._settings.host,
            door=self.endpoint,
            instances=tuple(one.for_store() for one in instances) if for_store else instances,
            plan=self.plan(),
            swaps=self.costs.swaps(names) if for_store else (),
            held_bytes=held,
        )

    async def __aenter__(self) -> "Agent":
        settings = self._settings
        folder = await self._processes.begin()
        try:
            return await self._open(folder)
        except OSError as error:
            await self._processes.leave()  # engines go on for a while: the file may be mended
            raise ConfigError(
                f"the agent's endpoint {self.endpoint} cannot be opened: {error.strerror or error}; give another as "
                f"`door` of hosts.{settings.host} in the fleet's file, or, for a socket, a shorter folder with TMPDIR"
            ) from None

    async def _open(self, folder: Path) -> "Agent":
        """Take over what an earlier agent has left, and serve. Raises: OSError where the endpoint cannot be opened."""
        settings = self._settings
        self.endpoint = settings.endpoint or f"{UNIX}{folder}/door"
        own = f"{UNIX}{folder}/agent" if settings.forwarders.count else self.endpoint
        if settings.forwarders.count:
            self.endpoint = await self._processes.listen(self.endpoint)
            listening = listening_on(own)
        else:
            listening = listening_on(self.endpoint)
            self.endpoint = address_of(self.endpoint, listening)
        if settings.endpoint_tls is not None:
            self.endpoint += f"#{quote(settings.host, safe='')}"
        self._make_instances(folder)
        key, tls = settings.endpoint_key, settings.endpoint_tls
        if settings.forwarders.count:
            key = tls = None
            await self._open_forwarders(folder)
        for instance in self.instances.values():
            instance.follow_file()
        self._state = StateRoute(
            lambda: self.report(for_store=False), lambda: tuple(one.standing for one in self.instances.values())
        )
        self._server = endpoint_server(AgentServer(self.instances, self._state.answer, key), tls)
        loops = [
            supervised(f"the agent of {settings.host} gives no sign of life", self._beat, BEAT_S),
            supervised(f"logs in {self._logs} are not rotated", self._rotate_logs, _LOGS_EVERY_S),
        ]
        self._loops = [asyncio.create_task(loop) for loop in loops]
        self._serving = asyncio.create_task(self._server.serve([listening]))
        return self

    def _make_instances(self, folder: Path) -> None:
        """Make the instances, with the engines that an earlier agent has left."""
        settings = self._settings
        left: dict[str, list[tuple[EngineProcess, EngineNote]]] = {name: [] for name in settings.instances}
        for found in self._processes.engines:
            note = read_note(found.note)
            if note is None or note.instance not in left:
                logger.warning("an engine of an instance that %s has no more is ended", settings.host)
                found.process.kill()
            else:
                left[note.instance].append((found.process, note))
        used = [path.stem for path in folder.glob("*.sock")]
        parts = HostParts(
            self._processes,
            folder,
            self._logs,
            self._memory,
            self.costs,
            self._clock,
            limits=settings.limits,
            sockets=itertools.count(1 + max((int(name) for name in used if name.isdecimal()), default=-1)),
            service=self._service,
            note=self._processes.note,
        )
        for name, models in settings.instances.items():
            devices = settings.environments.get(name, {})
            instance = Instance(
                name,
                settings.device,
                models,
                parts,
                self._durable,
                drain_max_s=settings.drain_max_s,
                environment=devices,
            )
            instance.adopt(left[name])
            self.instances[name] = instance

    async def _open_forwarders(self, folder: Path) -> None:
        """Leave the endpoint to forwarding processes."""
        settings = self._settings
        job = ForwarderJob(
            list(self.instances),
            settings.host,
            f"{folder}/agent",
            f"{folder}/decisions",
            settings.endpoint or "",
            settings.endpoint_key,
            version=digest_of_code(("sloserve",)),
        )
        self._forwarders = Forwarders(settings.forwarders, job, self._processes, self.instances)
        await self._forwarders.begin()

    async def drain(self) -> None:
        """Take no more requests, and wait until the running ones end, for the time that streams have at a switch."""
        await asyncio.gather(*(one.drain(self._settings.drain_max_s) for one in self.instances.values()))

    def ends(self) -> None:
        """Have engines end with this agent, whatever fault it meets from now."""
        self._ends, self._leaves = True, False

    async def leave(self) -> None:
        """Have engines and streams go on when this agent ends, which it may as soon as no switch is on its way."""
        looks = int(_IDLE_MAX_S / _IDLE_LOOK_S)
        while looks and any(one.is_switching for one in self.instances.values()):
            looks -= 1
            await asyncio.sleep(_IDLE_LOOK_S)  # meanwhile the other instances may switch, and replace what dies
        await asyncio.gather(*(one.hold() for one in self.instances.values()))
        self._leaves = True

    async def __aexit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        self._leaves = self._leaves or (kind is not None and not self._ends)  # the next agent goes on after a fault
        self._state.close()
        self._server.should_exit = True
        await asyncio.wait({self._serving}, timeout=_ANSWERED_S)
        self._server.force_exit = True
        if self._leaves:
            await asyncio.gather(*(instance.leave() for instance in self.instances.values()))
        else:
            await asyncio.gather(*(instance.close() for instance in self.instances.values()))
        if self._forwarders is not None:
            await (self._forwarders.leave() if self._leaves else self._forwarders.close())
        await (self._processes.leave() if self._leaves else self._processes.close())
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(self._serving, *self._loops, return_exceptions=True)
        if self._fence is not None:
            with Faults(f"the agent of {self._settings.host} cannot report that it ends"):
                await self._fence.leave(to_next=self._leaves)

    async def _beat(self) -> None:
        """Give a sign of life, if there is a store to have it, and read what tenants have had on other hosts."""
        if self._fence is not None:
            await self._fence.beat(to_json(self.report()))
            if self._service is not None:
                self._service.read_others(await self._fence.others())

    async def _rotate_logs(self) -> None:
        await asyncio.to_thread(self._rotated)

    def _rotated(self) -> None:
        for path in self._logs.glob("*.log"):
            try:
                rotate(path)
            except OSError as error:
                logger.warning("log file %s cannot be rotated: %s", path, error)
