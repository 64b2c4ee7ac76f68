"""The forwarding processes of an agent: they are kept alive, and their requests are decided here."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import msgspec

from sloserve.fleet.agent.engine_requests import InFlightRequest, TakenRequest
from sloserve.fleet.agent.forwarding.forwarder_job import ForwarderJob
from sloserve.fleet.agent.forwarding.messages import (
    Abort,
    Ask,
    ForwardEnded,
    Go,
    Hello,
    RefuseAsk,
    ReportedRequest,
    Retire,
    StreamProgress,
    ToForwarder,
    to_agent,
)
from sloserve.fleet.agent.host_processes import ForwarderProcess, HostProcesses
from sloserve.fleet.contract.endpoint import Refusal, Refused
from sloserve.fleet.framing import encoded, next_message
from sloserve.fleet.streamed import Streamed
from sloserve.fleet.supervised import supervised

logger = logging.getLogger(__name__)

_RESTART_S: Final = 1.0
_HELLO_S: Final = 5.0
"""Seconds within which processes that an earlier agent has left are expected to connect."""
_END_S: Final = 5.0
"""Seconds that a process has to end."""
_CLOSED_S: Final = 1.0
"""Seconds in which connections to processes are closed at the end."""


@dataclass(frozen=True, slots=True)
class ForwarderSettings:
    """Settings of the forwarding processes of one host.

    Args:
        count: Number of processes; with 0 the agent itself passes requests on.
        certificates: Folder of certificates, for an endpoint with TLS; ``None`` for one without.
        of_gateways: Whether gateways show certificates.
    """

    count: int = 0
    certificates: Path | None = None
    of_gateways: bool = False


class TakesRequests(Protocol):
    """An instance that takes requests of forwarders."""

    def take(self, request: InFlightRequest, prefixes: str, task: str = "") -> TakenRequest:
        """Take a request. Raises: Refused."""
        ...

    def resume(self, request: InFlightRequest, socket: Path, at: str | None, age_s: float) -> TakenRequest | None:
        """Take a request that an engine has from an earlier agent; ``None`` if there is no such engine.

        Args:
            request: The request.
            socket: Unix socket of the engine.
            at: URL of the engine in place of the socket; ``None`` if it has the socket.
            age_s: Seconds since it was taken.
        """
        ...


@dataclass(slots=True, eq=False)
class ForwardedResponse:
    """A response that a forwarder passes on, as far as the forwarder has reported it.

    Args:
        number: Number of the request in the forwarder.
        link: Connection to the forwarder.
        taken: The request, as its instance has taken it.
    """

    number: int
    link: "ForwarderLink"
    taken: TakenRequest
    streamed: Streamed = field(default_factory=Streamed)
    parts: int = 0

    def close(self, refusal: Refusal | None = None) -> None:
        """Have the forwarder end the request in the engine."""
        self.link.write(Abort(self.number, refusal))


class ForwarderLink:
    """The connection of the agent to one forwarder.

    Args:
        instances: Instances of the agent by name.
        connected: Function that is called once it is known which process this is, and has its requests.
        reader: Messages of the forwarder.
        writer: Messages to the forwarder.
    """

    def __init__(
        self,
        instances: Mapping[str, TakesRequests],
        connected: Callable[["ForwarderLink"], None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._instances, self._connected, self._reader, self._writer = instances, connected, reader, writer
        self._responses: dict[int, ForwardedResponse] = {}
        self.pid = 0
        """Process id of the forwarder; 0 until it has said so."""

    async def serve(self) -> None:
        """Decide requests until the forwarder is gone; the ones that it had have ended then."""
        try:
            while (data := await next_message(self._reader)) is not None:
                match to_agent.decode(data):
                    case Hello(pid, requests):
                        self.pid = pid
                        for held in requests:
                            self._resume(held)
                        self._connected(self)
                    case Ask() as ask:
                        self.write(self._decided(ask))
                    case StreamProgress(events):
                        self._progress(events)
                    case ForwardEnded() as ended:
                        self._ended(ended)
        finally:
            self._writer.close()
            for response in self._responses.values():
                response.taken.ended(False)
            self._responses.clear()

    def close(self) -> None:
        """Close the connection; the forwarder goes on, and connects to the next agent."""
        self._writer.close()

    def write(self, message: ToForwarder) -> None:
        """Send a message; one to a forwarder that is gone is lost, and so are its requests."""
        if not self._writer.is_closing():
            self._writer.write(encoded(message))

    def _decided(self, ask: Ask) -> ToForwarder:
        request = InFlightRequest(ask.model, False, ask.prompt_tokens, ask.max_tokens, ask.streams)
        try:
            taken = self._instances[ask.instance].take(request, ask.prefixes, ask.task)
        except Refused as refused:
            return RefuseAsk(ask.id, refused.reason)
        except Exception:  # a fault of the agent, which must not end the requests of all others
            logger.exception("%s: a request could not be taken", ask.instance)
            return RefuseAsk(ask.id, Refusal.FAILED)
        request.answer = self._responses[ask.id] = ForwardedResponse(ask.id, self, taken)
        return Go(ask.id, str(taken.client.socket), taken.client.at, taken.client.key)

    def _resume(self, held: ReportedRequest) -> None:
        """Count a request of an engine that is still there; end one of an engine that the agent has not."""
        request = InFlightRequest(held.model, False, held.prompt_tokens, held.max_tokens, held.streams)
        instance = self._instances.get(held.instance)
        taken = None if instance is None else instance.resume(request, Path(held.socket), held.at, held.age_s)
        if taken is not None:
            response = ForwardedResponse(held.id, self, taken, Streamed(held.events), held.parts)
            request.answer = self._responses[held.id] = response
        elif held.at is None:  # a server that others started goes on in any case
            self.write(Abort(held.id, None))

    def _progress(self, events: Mapping[int, int]) -> None:
        for number, come in events.items():
            response = self._responses.get(number)
            if response is not None:
                response.streamed.events = come
                response.parts = max(response.parts, 1)

    def _ended(self, ended: ForwardEnded) -> None:
        response = self._responses.pop(ended.id, None)
        if response is not None:
            response.parts, response.streamed = ended.parts, Streamed(ended.events, ended.end)
            response.taken.ended(ended.broken)


class Forwarders:
    """Keeps the forwarding processes of an agent alive; the owner begins with it, and closes or leaves it at the end.

    Args:
        settings: Number of the processes, and certificates.
        job: Job of each of them.
        processes: Starts them, and has the ones of an earlier agent.
        instances: Instances of the agent by name.
    """

    def __init__(
        self,
        settings: ForwarderSettings,
        job: ForwarderJob,
        processes: HostProcesses,
        instances: Mapping[str, TakesRequests],
    ) -> None:
        if settings.certificates is not None:
            job = msgspec.structs.replace(
                job, certificates=str(settings.certificates), of_gateways=settings.of_gateways
            )
        self._job, self._host, self._decisions = msgspec.json.encode(job), job.host, Path(job.decisions)
        self._count, self._processes, self._instances = settings.count, processes, instances
        self._links: set[ForwarderLink] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._retired: dict[int, ForwarderProcess] = {}
        self._running: set[ForwarderProcess] = set()
        self._awaited: set[int] = set()
        self._is_closing = False
        self._known = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Begin to decide requests, and wait until the processes of an earlier agent have said what they forward."""
        found = list(self._processes.forwarders)
        alike = [one for one in found if one.job == self._job][: self._count]
        self._retired = {one.pid: one for one in found if one not in alike}
        for process in self._retired.values():
            self._processes.retire(process)  # it must not count as one that takes requests if the file changes back
        self._awaited = {one.pid for one in found}
        with suppress(FileNotFoundError):
            self._decisions.unlink()
        self._server = await asyncio.start_unix_server(self._served, str(self._decisions))
        if self._awaited:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HELLO_S):
                    await self._known.wait()
        for process in found:
            if process.pid in self._awaited:  # it hangs, and its streams with it
                process.kill()
        places: list[ForwarderProcess | None] = [*alike, *[None] * (self._count - len(alike))]
        self._tasks = [asyncio.create_task(self._keep(number, process)) for number, process in enumerate(places)]

    async def close(self) -> None:
        """End all processes."""
        ending = [*self._running, *self._retired.values()]
        await self.leave()
        for process in ending:
            process.kill()
        await asyncio.gather(*(_ended(process) for process in ending))

    async def leave(self) -> None:
        """Leave the processes to the next agent."""
        self._is_closing = True
        self._server.close()
        for link in self._links:
            link.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._serving:
            await asyncio.wait(self._serving, timeout=_CLOSED_S)

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link, serving = ForwarderLink(self._instances, self._connected, reader, writer), asyncio.current_task()
        assert serving is not None
        self._links.add(link)
        self._serving.add(serving)
        try:
            await link.serve()
        except (ValueError, msgspec.MsgspecError) as error:  # of a version that says something else
            logger.warning("a forwarder of %s says what this agent cannot read: %s", self._host, error)
        finally:
            self._links.discard(link)
            self._serving.discard(serving)

    def _connected(self, link: ForwarderLink) -> None:
        if link.pid in self._retired:
            link.write(Retire())
        self._awaited.discard(link.pid)
        if not self._awaited:
            self._known.set()

    async def _keep(self, number: int, found: ForwarderProcess | None) -> None:
        """Keep one process alive, the first of which may be there."""
        begins_with = [found] if found is not None else []

        async def turn() -> None:
            process = begins_with.pop() if begins_with else await self._processes.forward(self._job)
            self._running.add(process)
            try:
                await process.wait()
                if not self._is_closing:
                    logger.warning("a forwarder of %s has ended, and its streams with it; another starts", self._host)
            finally:
                self._running.discard(process)

        await supervised(f"forwarder {number} of {self._host} does not run", turn, _RESTART_S)


async def _ended(process: ForwarderProcess) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            await process.wait()
