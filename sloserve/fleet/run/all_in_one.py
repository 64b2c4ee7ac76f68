"""``sloserve fleet FILE``: gateway and planner in this process, and an agent for each host as a child of it.

A child dies with this process, however it ends; a child that dies is started again.
"""

import asyncio
import logging
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from sloserve.core.clock import SystemClock
from sloserve.core.errors import ConfigError, StoreError
from sloserve.core.file_lock import OwnLock
from sloserve.fleet.file import Fleet, Host
from sloserve.fleet.launcher.plain import kill_group, start
from sloserve.fleet.planning.planning_task import LEASE_S
from sloserve.fleet.run.agent_process import STOP_S
from sloserve.fleet.run.gateway_process import GatewayServer, stop
from sloserve.fleet.run.live import Place
from sloserve.fleet.run.open_files import allow_open_files
from sloserve.fleet.run.planner_process import run_planner
from sloserve.fleet.run.progress import Progress
from sloserve.fleet.run.signals import Stopping
from sloserve.fleet.store.store import Store, open_store

logger = logging.getLogger(__name__)

_AGAIN_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Between starts of an agent that ends by itself; the last again and again."""
_LIVED_S: Final = 60.0
"""An agent that ran for so long is started again as soon as one that ends for the first time."""
_KILL_S: Final = 15.0
"""An agent that has not ended so long after it was told to is killed, beyond what its lines may take."""
_CONFIG_ERROR: Final = 2
_LOOK_S: Final = 0.5


class _Child:
    """An agent's process, started again whenever it ends."""

    def __init__(self, command: Sequence[str], log: Path, run_folder: Path, say: Callable[[str], None]) -> None:
        self._command, self._log, self._run_folder, self._say = command, log, run_folder, say
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    async def keep_running(self) -> None:
        """Returns once it is stopped. Raises: ConfigError where the agent says that something is set wrongly."""
        attempt, is_first, clock = 0, True, SystemClock()
        while not self._stopping:
            begun_s = clock.monotonic_s()
            try:
                what = f"has ended with status {await self._run(is_first)}"
            except OSError as error:  # no memory for another process, or no room for its log
                what = f"cannot be started: {error}"
            if self._stopping:
                return
            self._say(f"an agent {what}, and is started again; its log is {self._log}")
            attempt = 0 if clock.monotonic_s() - begun_s > _LIVED_S else attempt
            await asyncio.sleep(_AGAIN_S[min(attempt, len(_AGAIN_S) - 1)])
            attempt, is_first = attempt + 1, False

    async def _run(self, is_first: bool) -> int:
        """One process, and its exit status. Raises: OSError; ConfigError where the first says so: what a later one
        meets, as a store that is away, may pass.
        """
        environment = {"XDG_RUNTIME_DIR": str(self._run_folder)}
        self._process = await start(self._command, self._log, environment, stdin=None, stdout=None)
        status = await self._process.wait()
        kill_group(self._process.pid)
        if status == _CONFIG_ERROR and is_first and not self._stopping:
            raise ConfigError(f"an agent does not start; its log {self._log} ends with\n{_tail(self._log)}")
        return status

    async def stop(self, *, at_once: bool) -> None:
        """Ends it; what it runs goes back into the queue."""
        self._stopping = True
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S + _KILL_S):
                await self._process.wait()
        except TimeoutError:
            kill_group(self._process.pid)


async def run_fleet(
    fleet: Fleet,
    place: Place,
    say: Callable[[str], None],
    *,
    agent_options: Sequence[str] = (),
    lease_s: float = LEASE_S,
) -> None:
    """Serves until it is told to stop by SIGINT or SIGTERM; a second one does not wait for what runs.

    say: prints a line. agent_options: further ones of ``sloserve fleet agent``.
    Raises: ConfigError for what is set wrongly, here or at an agent.
    """
    stopping = Stopping()
    allow_open_files(fleet.gateway.max_requests)
    lock = OwnLock(place.folder / "fleet.lock", f"the fleet of {fleet.source}")
    store = open_store(place.store)
    run_folder = Path(tempfile.mkdtemp(prefix="slo-"))  # 0700; short, since a socket's path has at most 107 bytes
    try:
        place.logs.mkdir(exist_ok=True)
        server = GatewayServer(fleet, place, store, fleet.switching.drain_max_s)
        children = [_child(fleet, host, place, run_folder, agent_options, say) for host in fleet.hosts.values()]
        counted = f"{len(fleet.models)} models on {len(fleet.instances)} instances"
        say(f"{counted}; store {_shown(place.store)}; logs in {place.logs}")
        with ThreadPoolExecutor(2, "sloserve-planner") as executor:
            tasks = [asyncio.create_task(child.keep_running()) for child in children]
            tasks.append(asyncio.create_task(run_planner(fleet, store, executor, lease_s=lease_s)))
            tasks.append(asyncio.create_task(_tell(fleet, store, server, say)))
            also = await server.start()
            if also is not None:
                say(also)
            stopped = asyncio.create_task(stopping.wait())
            ended = await _first_failure(stopped, tasks)
            say("stops: no more requests, those that run end; once more to end at once")
            await _stop(server, children, stopping)
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
        if ended is not None:
            raise ended
        say("stopped")
    finally:
        store.close()
        lock.close()
        shutil.rmtree(run_folder, ignore_errors=True)


def _child(
    fleet: Fleet, host: Host, place: Place, run_folder: Path, options: Sequence[str], say: Callable[[str], None]
) -> _Child:
    command = ["sloserve.cli", "fleet", "agent", fleet.source, "--host", host.name, "--state", str(place.folder)]
    return _Child([*command, *options], place.logs / f"agent-{host.name}.log", run_folder, say)


async def _first_failure(stopped: "asyncio.Task[None]", tasks: Sequence["asyncio.Task[None]"]) -> BaseException | None:
    """Waits until the fleet shall stop; the error of a part that has failed, if that is why."""
    waiting = {stopped, *tasks}
    while not stopped.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopped}:
            if (error := task.exception()) is not None:
                return error
    return None


async def _stop(server: GatewayServer, children: Sequence[_Child], stopping: Stopping) -> None:
    stopping.again()
    hurried = asyncio.create_task(stopping.wait())
    await stop(server, hurried)
    await asyncio.gather(*(child.stop(at_once=hurried.done()) for child in children))
    hurried.cancel()


async def _tell(fleet: Fleet, store: Store, server: GatewayServer, say: Callable[[str], None]) -> None:
    """Prints what happens until the fleet serves."""
    progress = Progress(fleet, say)
    while True:
        try:
            if progress.look(await asyncio.to_thread(store.members.agents)):
                break
        except StoreError as error:
            logger.warning("%s", error)
        await asyncio.sleep(_LOOK_S)
    say(f"ready: {server.address}/v1 with models {', '.join(fleet.models)}")


def _shown(address: str) -> str:
    """Without a password."""
    scheme, at, rest = address.rpartition("@")
    return f"{scheme.partition('://')[0]}://...@{rest}" if at else address


def _tail(log: Path, lines: int = 5) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
