"""The forwarding processes of an agent: they are started, asked nothing, and have their requests decided here."""

import asyncio
import logging
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import msgspec

from sloserve.fleet.agent.engine_requests import InFlightRequest, TakenRequest
from sloserve.fleet.agent.forwarding.forwarder import ForwarderJob
from sloserve.fleet.agent.forwarding.messages import (
    Abort,
    Ask,
    ForwardEnded,
    Go,
    RefuseAsk,
    StreamProgress,
    ToForwarder,
    encoded,
    next_message,
    to_agent,
)
from sloserve.fleet.contract.endpoint import Refusal, Refused
from sloserve.fleet.streamed import Streamed
from sloserve.fleet.supervised import supervised

logger = logging.getLogger(__name__)

_RESTART_S: Final = 1.0
_END_S: Final = 5.0
"""Seconds that a process has to end once the agent has closed its connection."""


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

    def take(self, request: InFlightRequest, prefixes: str) -> TakenRequest: ...


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
        reader: Messages of the forwarder.
        writer: Messages to the forwarder.
    """

    def __init__(
        self, instances: Mapping[str, TakesRequests], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._instances, self._reader, self._writer = instances, reader, writer
        self._responses: dict[int, ForwardedResponse] = {}

    async def serve(self) -> None:
        """Decide requests until the forwarder is gone; the ones that it had have ended then."""
        try:
            while (data := await next_message(self._reader)) is not None:
                match to_agent.decode(data):
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
        """Close the connection, upon which the forwarder ends."""
        self._writer.close()

    def write(self, message: ToForwarder) -> None:
        """Send a message; one to a forwarder that is gone is lost, and so are its requests."""
        if not self._writer.is_closing():
            self._writer.write(encoded(message))

    def _decided(self, ask: Ask) -> ToForwarder:
        request = InFlightRequest(ask.model, False, ask.prompt_tokens, ask.max_tokens, ask.streams)
        try:
            taken = self._instances[ask.instance].take(request, ask.prefixes)
        except Refused as refused:
            return RefuseAsk(ask.id, refused.reason)
        except Exception:  # a fault of the agent, which must not end the requests of all others
            logger.exception("%s: a request could not be taken", ask.instance)
            return RefuseAsk(ask.id, Refusal.FAILED)
        request.answer = self._responses[ask.id] = ForwardedResponse(ask.id, self, taken)
        return Go(ask.id, str(taken.client.socket), taken.client.at, taken.client.key)

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
    """Keeps the forwarding processes of an agent alive; the owner must close them.

    Args:
        settings: Number of the processes, and certificates.
        job: What each is started with, but for the numbers of its open files.
        listening: Socket of the endpoint, which all of them accept connections from.
        instances: Instances of the agent by name.
    """

    def __init__(
        self,
        settings: ForwarderSettings,
        job: ForwarderJob,
        listening: socket.socket,
        instances: Mapping[str, TakesRequests],
    ) -> None:
        self._job, self._listening, self._instances = job, listening, instances
        if settings.certificates is not None:
            self._job = msgspec.structs.replace(
                job, certificates=str(settings.certificates), of_gateways=settings.of_gateways
            )
        self._links: set[ForwarderLink] = set()
        self._is_closing = False
        self._keeping = [
            asyncio.create_task(supervised(f"forwarder {number} of {job.host} does not run", self._kept, _RESTART_S))
            for number in range(settings.count)
        ]

    async def close(self) -> None:
        """End all processes."""
        self._is_closing = True
        for link in self._links:
            link.close()
        for keeping in self._keeping:
            keeping.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        self._listening.close()

    async def _kept(self) -> None:
        """Run one process until it ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        job = msgspec.structs.replace(self._job, listening=self._listening.fileno(), control=theirs.fileno())
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "sloserve.fleet.agent.forwarding.forwarder",
                    stdin=asyncio.subprocess.PIPE,
                    pass_fds=(job.listening, job.control),
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        link = ForwarderLink(self._instances, reader, writer)
        self._links.add(link)
        try:
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(job))
            process.stdin.close()
            await link.serve()
            if not self._is_closing:
                logger.warning("a forwarder of %s has ended, and its streams with it; another starts", job.host)
        finally:
            self._links.discard(link)
            writer.close()
            await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
