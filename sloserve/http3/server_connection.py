"""One HTTP/3 connection of a client, in front of an ASGI application."""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aioquic.h3.connection import ErrorCode
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StopSendingReceived,
    StreamReset,
)

from sloserve.http3.answer_service import ResponseService
from sloserve.http3.bounded_h3 import BoundedH3, Malformed
from sloserve.http3.http3_exchange import App, Headers, Http3Exchange, make_scope, split_headers
from sloserve.http3.leftovers import Leftovers
from sloserve.http3.listener_figures import Deadlines, Http3Figures
from sloserve.http3.request_stream import RequestStream
from sloserve.http3.scheduled_connection import ScheduledConnection
from sloserve.http3.stream_priority import StreamPriority
from sloserve.http3.transmitting import TransmittingProtocol
from sloserve.http3.unread import Unread, stalled
from sloserve.wire.optional_http3 import Http3Settings
from sloserve.wire.resolve import Classify

SPARE_RESETS = 256
"""The number of requests that a client may cancel beyond the requests that it lets be answered.

More is an attack (CVE-2023-44487). A client that shows a certificate, as an edge does, may cancel any number, since
they come from its many clients.
"""

PING_S = 10.0
"""Seconds between two pings of a client that waits for a response.

A connection ends by silence, and few clients prevent that themselves. The server checks at the same interval whether
the client reads.
"""

ALERT_BAD_CERTIFICATE = 0x100 + 42


@dataclass(frozen=True, slots=True)
class Front:
    """What all connections of a listener share.

    Args:
        app: The ASGI application.
        settings: Settings of HTTP/3.
        classify: Function that derives from a request's headers, and its peer's address, how to send its response.
        authorize: Function that returns why the client's certificate is not accepted; ``None`` where it is, or none is
            asked for.
        address: The listener's own host and port.
        unread: The bytes of responses that the connections hold.
        figures: Counters of what the connections have done.
    """

    app: App
    settings: Http3Settings
    classify: Classify
    authorize: Callable[[ScheduledConnection], str | None]
    address: tuple[str, int]
    unread: Unread
    figures: Http3Figures = field(default_factory=Http3Figures)


class ServerProtocol(TransmittingProtocol):
    """One connection; its requests run as tasks of their own."""

    def __init__(self, quic: ScheduledConnection, front: Front, client: tuple[str, int]) -> None:
        super().__init__(quic)
        self.exchanges: dict[int, Http3Exchange] = {}
        self.shook_hands = False
        self.trusted = False
        self.unfinished = "failed"
        """The outcome under which the handshake is counted if it is never completed."""
        self.on_handshake: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        self._front = front
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()
        self._early: OrderedDict[int, StreamPriority] = OrderedDict()
        self._drops: dict[int, asyncio.TimerHandle] = {}
        self._leftovers = Leftovers(self._stop_reading)
        self._next_stream_id = 0
        self._resets = self._answered = 0
        self._spare_resets: float = SPARE_RESETS
        self._pinging: asyncio.TimerHandle | None = None
        self._stopping = False

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, HandshakeCompleted):
            self.shook_hands = True
            self.on_handshake()
            refused = self._front.authorize(self.quic)
            self.trusted = refused is None and self.quic.client_certificate is not None
            if self.trusted:
                self._spare_resets = math.inf
            self._front.figures.handshakes["completed" if refused is None else "certificate"] += 1
            if refused is None:
                self._h3 = BoundedH3(self.quic, self._front.settings.header_bytes, self._reprioritize)
                if self._stopping:  # the stop began while the client shook hands
                    self._h3.send_goaway(self._next_stream_id)
            else:
                self.close(error_code=ALERT_BAD_CERTIFICATE, reason_phrase=refused)
        elif isinstance(event, ConnectionTerminated):
            self._over("cancelled")
            self.on_end()
        if self._h3 is not None:
            for h3_event in self._h3.handle_event(event):
                self._h3_event(h3_event)
            if isinstance(event, StreamReset | StopSendingReceived):
                self._reset(event.stream_id)
            if isinstance(event, StopSendingReceived):
                self.quic.free(event.stream_id)
            elif isinstance(event, StreamReset):
                self._leftovers.ended(event.stream_id)

    def datagram_received(self, data: bytes | str, addr: Any) -> None:
        super().datagram_received(data, addr)
        self._look_at_senders()

    def _handle_timer(self) -> None:
        super()._handle_timer()
        self._look_at_senders()

    def going_away(self) -> None:
        """Take no more requests, and notify the client; the requests that it has begun are answered."""
        if not self._stopping:
            self._stopping = True
            if self._h3 is not None:
                self._h3.send_goaway(self._next_stream_id)
                self.transmit()

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests, and wait until the requests in progress are answered and their responses read."""
        self.going_away()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        waiting = [task for task in self._tasks if task.cancel()]
        if waiting:
            await asyncio.wait(waiting)
        self.close(error_code=ErrorCode.H3_NO_ERROR)

    def give_up(self) -> None:
        """End the connection: its client reads too little of what it asked for, and others need the memory."""
        self.close(error_code=ErrorCode.H3_EXCESSIVE_LOAD, reason_phrase="responses are not read")
        self.quic.free()
        self._over("unread")

    def _over(self, outcome: str) -> None:
        self.is_over = True
        for exchange in self.exchanges.values():
            exchange.disconnect(outcome)
        for drop in self._drops.values():
            drop.cancel()
        self._drops.clear()
        self._leftovers.clear()
        if self._pinging is not None:
            self._pinging.cancel()
        self._front.unread.holds(self, 0)

    def silence(self) -> None:
        """Stop sending: the socket is about to be closed."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_at_senders(self) -> None:
        """Subtract what has arrived from what is unread, and only then resume requests that wait for that room."""
        if self.is_over:
            return
        sent = {stream_id: self.quic.sent(stream_id) for stream_id in self.exchanges}
        self._front.unread.holds(self, sum(unacknowledged for unacknowledged, _ in sent.values()))
        for stream_id, bytes_of_answer in sent.items():
            self.exchanges[stream_id].arrived(*bytes_of_answer)

    def wrote(self, size_bytes: int) -> None:
        """Record ``size_bytes`` of a response as written to the connection."""
        self._front.unread.holds(self, self._front.unread.of(self) + size_bytes)
        self.transmit_soon()

    @property
    def may_begin(self) -> bool:
        """Whether the client has read enough of its responses to get another."""
        settings = self._front.settings
        most = settings.unread_bytes
        if self.trusted:
            most = max(most, settings.streams * settings.buffer_bytes)
        return self._front.unread.of(self) < most

    def _count(self, outcome: str) -> None:
        self._front.figures.requests[outcome] += 1

    def _h3_event(self, event: H3Event) -> None:
        if isinstance(event, HeadersReceived):
            if any(name == b":method" for name, _ in event.headers):
                self._begin(event.stream_id, event.headers, event.stream_ended)
            elif event.stream_ended:  # trailers, which are of no use here; the response may have arrived before them
                if (exchange := self.exchanges.get(event.stream_id)) is not None:
                    exchange.feed(b"", True)
                self._leftovers.ended(event.stream_id)
        elif isinstance(event, DataReceived):
            exchange = self.exchanges.get(event.stream_id)
            if exchange is not None:
                exchange.feed(event.data, event.stream_ended)
            self._leftovers.came(event.stream_id, len(event.data))
            if event.stream_ended:
                self._leftovers.ended(event.stream_id)
        elif isinstance(event, Malformed):
            self._leftovers.ended(event.stream_id)
            self._reset(event.stream_id)

    def _begin(self, stream_id: int, headers: Headers, complete: bool) -> None:
        assert self._h3 is not None
        self._next_stream_id = max(self._next_stream_id, stream_id + 4)
        early = self._early.pop(stream_id, None)
        pseudo, rest = split_headers(headers)
        settings = self._front.settings
        # Requests may take a while to end after their client has left: they count, or opening and cancelling would pile
        # up.
        if self._stopping or len(self._tasks) >= 2 * settings.streams or not pseudo.get(b":path", b"").startswith(b"/"):
            self._count("refused")
            self.abort(stream_id, ErrorCode.H3_REQUEST_REJECTED)
            return
        service = ResponseService.of(*self._front.classify(rest, self._client))
        self.quic.set_stream(stream_id, tenant=service.tenant)
        stream = RequestStream(self, self._h3, stream_id)
        scope = make_scope(pseudo, rest, self._client, self._front.address)
        exchange = Http3Exchange(stream, scope, service, settings.deadlines == "renewed", settings.buffer_bytes)
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
            self._give_up_unread()
            self.quic.send_ping(0)
            self.transmit_soon()
            self._ping_later()

    def _give_up_unread(self) -> None:
        self._look_at_senders()  # no silence counts for a response without unread bytes
        for stream_id in stalled(self.exchanges, self._loop.time() - self._front.settings.unread_s):
            self.abort(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
            self.exchanges[stream_id].disconnect("unread")

    def stop_reading(self, stream_id: int) -> None:
        """Discard what still comes of the request's body."""
        self._leftovers.begin(stream_id)

    def _stop_reading(self, stream_id: int) -> None:
        self.quic.stop_reading(stream_id, ErrorCode.H3_NO_ERROR)
        self.transmit_soon()

    def abort(self, stream_id: int, error_code: int) -> None:
        """End a stream both ways."""
        assert self._h3 is not None
        self._h3.abort(stream_id, error_code)
        self.transmit_soon()

    def deadlines(self, slo_class: str) -> Deadlines:
        """Return the counts of response parts of this class."""
        return self._front.figures.deadlines[slo_class]

    def _ended(self, stream_id: int, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        exchange = self.exchanges.pop(stream_id)
        self._answered += exchange.outcome != "cancelled"
        if stream_id in self._drops:
            self._drops.pop(stream_id).cancel()
        self._count(exchange.outcome)
        self.transmit_soon()

    def drop_at(self, stream_id: int, deadline_s: float | None) -> None:
        """Set the time after which unsent bytes of the response may be dropped; ``None`` to keep them."""
        drop = self._drops.pop(stream_id, None)
        if drop is not None:
            drop.cancel()
        if self._front.settings.late == "drop" and deadline_s is not None:
            self._drops[stream_id] = self._loop.call_at(deadline_s, self._drop, stream_id)

    def _drop(self, stream_id: int) -> None:
        """Drop the rest of a response that is past its e2e target and has not arrived whole."""
        del self._drops[stream_id]
        self.abort(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
        self.exchanges[stream_id].disconnect("dropped")

    def _reset(self, stream_id: int) -> None:
        exchange = self.exchanges.get(stream_id)
        if exchange is not None and exchange.wanted:
            exchange.disconnect()
            self.abort(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
            self._resets += 1
            if self._resets > self._answered + self._spare_resets:
                self.close(error_code=ErrorCode.H3_EXCESSIVE_LOAD, reason_phrase="too many cancelled requests")

    def _reprioritize(self, stream_id: int, priority: StreamPriority) -> None:
        exchange = self.exchanges.get(stream_id)
        if exchange is not None:
            exchange.prioritize(priority)
        elif stream_id >= self._next_stream_id or self.quic.is_untouched(stream_id):
            self._early[stream_id] = priority
            if len(self._early) > self._front.settings.streams:
                self._early.popitem(last=False)
