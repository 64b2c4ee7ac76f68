"""One HTTP/3 connection of a client, in front of an ASGI application."""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import ErrorCode
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StopSendingReceived,
    StreamReset,
)

from sloserve.quic.asgi import App, Exchange, Headers, make_scope, split_headers
from sloserve.quic.connection import ScheduledConnection
from sloserve.quic.figures import Deadlines, Figures
from sloserve.quic.h3 import BoundedH3, Malformed
from sloserve.quic.priority import Priority
from sloserve.quic.service import Classify
from sloserve.quic.settings import Http3Settings

SPARE_RESETS = 256
"""Requests that a client may cancel beyond those that it lets be answered; more is an attack (CVE-2023-44487). One that
shows a certificate, as an edge does, may cancel any number: they are those of its many clients.
"""

PING_S = 10.0
"""How often a client that waits for an answer is pinged: a connection ends by silence, and few clients see to that."""

ALERT_BAD_CERTIFICATE = 0x100 + 42


@dataclass(frozen=True, slots=True)
class Front:
    """What all connections of a listener share.

    authorize: says why the client's certificate is not accepted, ``None`` where it is, or none is asked for.
    figures: what they have done.
    """

    app: App
    settings: Http3Settings
    classify: Classify
    authorize: Callable[[ScheduledConnection], str | None]
    address: tuple[str, int]
    figures: Figures = field(default_factory=Figures)


class ServerProtocol(QuicConnectionProtocol):
    """One connection; its requests run as tasks of their own."""

    def __init__(self, quic: ScheduledConnection, front: Front, client: tuple[str, int]) -> None:
        super().__init__(quic)
        self.quic = quic
        self.exchanges: dict[int, Exchange] = {}
        self.shook_hands = False
        self.unfinished = "failed"
        """How its handshake counts if it never ends well."""
        self.on_handshake: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        self._front = front
        self._client = client
        self._h3: BoundedH3 | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._early: OrderedDict[int, Priority] = OrderedDict()
        self._drops: dict[int, asyncio.TimerHandle] = {}
        self._next_stream_id = 0
        self._resets = self._answered = 0
        self._spare_resets: float = SPARE_RESETS
        self._pinging: asyncio.TimerHandle | None = None
        self._stopping = False
        self._sending = False

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, HandshakeCompleted):
            self.shook_hands = True
            self.on_handshake()
            refused = self._front.authorize(self.quic)
            if self.quic.client_certificate is not None:
                self._spare_resets = math.inf
            self._front.figures.handshakes["completed" if refused is None else "certificate"] += 1
            if refused is None:
                self._h3 = BoundedH3(self.quic, self._front.settings.header_bytes, self._reprioritize)
            else:
                self.close(error_code=ALERT_BAD_CERTIFICATE, reason_phrase=refused)
        elif isinstance(event, ConnectionTerminated):
            for exchange in self.exchanges.values():
                exchange.disconnect()
            for stream_id, drop in self._drops.items():
                drop.cancel()
                if stream_id not in self.exchanges:
                    self._count("cancelled")
            self._drops.clear()
            if self._pinging is not None:
                self._pinging.cancel()
            self.on_end()
        if self._h3 is not None:
            for h3_event in self._h3.handle_event(event):
                self._h3_event(h3_event)
            if isinstance(event, StreamReset | StopSendingReceived):
                self._reset(event.stream_id)

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        super().datagram_received(data, addr)
        self._look_at_senders()

    def _handle_timer(self) -> None:
        super()._handle_timer()
        self._look_at_senders()

    def transmit_soon(self) -> None:
        """Sends what there is to send once the callbacks at hand are done, so that packets are filled."""
        if not self._sending:
            self._sending = True
            self._loop.call_soon(self._transmit_once)

    def _transmit_once(self) -> None:
        self._sending = False
        self.transmit()

    async def drain(self, timeout_s: float) -> None:
        """Takes no more requests, and waits for those that are being answered."""
        self._stopping = True
        if self._h3 is not None:
            self._h3.send_goaway(self._next_stream_id)
            self.transmit()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        waiting = [task for task in self._tasks if task.cancel()]
        if waiting:
            await asyncio.wait(waiting)
        self.close(error_code=ErrorCode.H3_NO_ERROR)

    def silence(self) -> None:
        """Sends nothing more: the socket is about to be closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_at_senders(self) -> None:
        for exchange in self.exchanges.values():
            exchange.drained()
        arrived = (s for s in self._drops if s not in self.exchanges and not self.quic.unsent_bytes(s))
        for stream_id in [*arrived]:
            self._drops.pop(stream_id).cancel()
            self._count("answered")

    def _count(self, outcome: str) -> None:
        self._front.figures.requests[outcome] += 1

    def _h3_event(self, event: H3Event) -> None:
        if isinstance(event, HeadersReceived):
            exchange = self.exchanges.get(event.stream_id)
            if exchange is not None:  # trailers, which are of no use here
                exchange.feed(b"", event.stream_ended)
            else:
                self._begin(event.stream_id, event.headers, event.stream_ended)
        elif isinstance(event, DataReceived):
            exchange = self.exchanges.get(event.stream_id)
            if exchange is not None:
                exchange.feed(event.data, event.stream_ended)
        elif isinstance(event, Malformed):
            self._reset(event.stream_id)

    def _begin(self, stream_id: int, headers: Headers, complete: bool) -> None:
        self._next_stream_id = max(self._next_stream_id, stream_id + 4)
        early = self._early.pop(stream_id, None)
        pseudo, rest = split_headers(headers)
        settings = self._front.settings
        # Requests whose client is gone may take a while to end: they count, or opening and cancelling would pile up.
        if self._stopping or len(self._tasks) >= 2 * settings.streams or not pseudo.get(b":path", b"").startswith(b"/"):
            self._count("refused")
            self.abort(stream_id, ErrorCode.H3_REQUEST_REJECTED)
            return
        service = self._front.classify(rest)
        self.quic.set_stream(stream_id, tenant=service.tenant)
        stream = RequestStream(self, stream_id)
        scope = make_scope(pseudo, rest, self._client, self._front.address)
        exchange = Exchange(stream, scope, service, settings.deadlines == "renewed", settings.buffer_bytes)
        if early is not None:
            exchange.prioritize(early)
        self.exchanges[stream_id] = exchange
        if complete:
            exchange.feed(b"", True)
        task = self._loop.create_task(exchange.run(self._front.app))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(stream_id, done))
        if self._pinging is None:
            self._ping_later()

    def _ping_later(self) -> None:
        self._pinging = self._loop.call_later(min(PING_S, self._front.settings.idle_s / 2), self._ping)

    def _ping(self) -> None:
        self._pinging = None
        if self._tasks:
            self.quic.send_ping(0)
            self.transmit_soon()
            self._ping_later()

    def abort(self, stream_id: int, error_code: int) -> None:
        """Ends a stream both ways."""
        assert self._h3 is not None
        self._h3.abort(stream_id, error_code)
        self.transmit_soon()

    def deadlines(self, slo_class: str) -> Deadlines:
        """Where parts of answers of this class are counted."""
        return self._front.figures.deadlines[slo_class]

    def _ended(self, stream_id: int, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        exchange = self.exchanges.pop(stream_id)
        self._answered += exchange.outcome != "cancelled"
        if stream_id in self._drops and not self.quic.unsent_bytes(stream_id):
            self._drops.pop(stream_id).cancel()
        if stream_id not in self._drops:  # else it may be dropped yet
            self._count(exchange.outcome)
        self.transmit_soon()

    def drop_at(self, stream_id: int, deadline_s: float | None) -> None:
        """From when on what was not sent of the answer is of no use, if late answers are dropped at all."""
        drop = self._drops.pop(stream_id, None)
        if drop is not None:
            drop.cancel()
        if self._front.settings.late == "drop" and deadline_s is not None:
            self._drops[stream_id] = self._loop.call_at(deadline_s, self._drop, stream_id)

    def _drop(self, stream_id: int) -> None:
        """The answer is past its e2e target; where not all of it has arrived, the rest is of no use."""
        del self._drops[stream_id]
        exchange = self.exchanges.get(stream_id)
        unsent = self.quic.unsent_bytes(stream_id) > 0
        if exchange is None:
            self._count("dropped" if unsent else "answered")
        if exchange is not None or unsent:
            self.abort(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
        if exchange is not None:
            exchange.disconnect("dropped")

    def _reset(self, stream_id: int) -> None:
        exchange = self.exchanges.get(stream_id)
        if exchange is not None and exchange.wanted:
            exchange.disconnect()
            self.abort(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
            self._resets += 1
            if self._resets > self._answered + self._spare_resets:
                self.close(error_code=ErrorCode.H3_EXCESSIVE_LOAD, reason_phrase="too many cancelled requests")

    def _reprioritize(self, stream_id: int, priority: Priority) -> None:
        exchange = self.exchanges.get(stream_id)
        if exchange is not None:
            exchange.prioritize(priority)
        elif stream_id >= self._next_stream_id or self.quic.is_untouched(stream_id):
            self._early[stream_id] = priority
            if len(self._early) > self._front.settings.streams:
                self._early.popitem(last=False)


class RequestStream:
    """The stream of one request, as its exchange uses it."""

    def __init__(self, protocol: ServerProtocol, stream_id: int) -> None:
        self._protocol = protocol
        self._quic = protocol.quic
        self._id = stream_id

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def send_head(self, headers: Headers, end: bool) -> None:
        assert self._protocol._h3 is not None
        self._protocol._h3.send_headers(self._id, headers, end)
        self._protocol.transmit_soon()

    def send_body(self, data: bytes, end: bool) -> None:
        assert self._protocol._h3 is not None
        self._protocol._h3.send_data(self._id, data, end)
        self._protocol.transmit_soon()

    def set_priority(self, deadline_s: float | None, urgency: int | None, incremental: bool | None) -> None:
        self._quic.set_stream(self._id, deadline_s=deadline_s, urgency=urgency, incremental=incremental)

    def due(self, deadline_s: float, slo_class: str) -> None:
        tally = self._protocol.deadlines(slo_class)
        if deadline_s > self.now_s():
            self._quic.due(self._id, deadline_s, tally)
        else:
            tally.overdue += 1
            self._quic.due(self._id, deadline_s)

    def late_from(self, deadline_s: float | None) -> None:
        self._protocol.drop_at(self._id, deadline_s)

    def unsent_bytes(self) -> int:
        return self._quic.unsent_bytes(self._id)

    def hold(self, unread_bytes: int) -> None:
        self._quic.hold(self._id, unread_bytes)
        if not unread_bytes:
            self._protocol.transmit_soon()

    def stop_reading(self) -> None:
        self._quic.stop_reading(self._id, ErrorCode.H3_NO_ERROR)
        self._protocol.transmit_soon()

    def abort(self) -> None:
        self._protocol.abort(self._id, ErrorCode.H3_INTERNAL_ERROR)
