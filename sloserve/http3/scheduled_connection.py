"""A QUIC connection of aioquic that fills its packets in the order of a stream scheduler.

aioquic has no interface for that, so this subclass uses private parts; in this package only
:class:`sloserve.http3.bounded_h3.BoundedH3` does so too. The parts are the list of streams that aioquic goes through
for each packet, the function that writes a stream's next frame, the functions that widen flow control windows, a
stream's buffer, tokens of connection ids, the time when it gives up a silent peer, and the wish for a client
certificate. :mod:`sloserve.http3.self_check` tries them out at start.

Windows grow as the application reads, so that what a peer may leave unread in memory is bounded; aioquic doubles them
as data arrives.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import NetworkAddress, QuicConnection, QuicConnectionId, stream_is_unidirectional
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicErrorCode
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream

from sloserve.http3.listener_figures import Deadlines, QuicTraffic
from sloserve.http3.stateless_reset import is_stateless_reset
from sloserve.http3.stream_order import StreamOrder
from sloserve.http3.stream_schedulers import Scheduler
from sloserve.http3.transport_limits import TransportLimits

AIOQUIC = 1, 7
"""The version (major, minor) with the private parts in use; the self-check tries all of them with each release."""


class ScheduledConnection(QuicConnection):
    """A QUIC connection that sends the bytes of its streams in the order of ``scheduler``.

    Args:
        configuration: Aioquic's configuration of the connection.
        scheduler: Function that gives each stream its place in the order.
        limits: Streams and windows that the peer may use; ``None`` for the defaults.
        request_certificate: Whether, as a server, it asks the client for a certificate; see :attr:`client_certificate`.
        traffic: Counters of what it sends and receives.
        reset_token: Function that makes, as a server, the token of a connection id by which a client knows a stateless
            reset.
        others: Further arguments of :class:`aioquic.quic.connection.QuicConnection`.
    """

    def __init__(
        self,
        *,
        configuration: QuicConfiguration,
        scheduler: Scheduler,
        limits: TransportLimits | None = None,
        request_certificate: bool = False,
        traffic: QuicTraffic | None = None,
        reset_token: Callable[[bytes], bytes] | None = None,
        **others: Any,
    ) -> None:
        self._scheduled = _ServiceQueue([], self._arrange)
        self._order = StreamOrder(scheduler)
        self._unread: dict[int, int] = {}
        self._caps = limits or TransportLimits()
        self._request_certificate = request_certificate
        self._traffic = traffic or QuicTraffic()
        self._sending_s = 0.0
        self._reset_token = reset_token
        self.heard_s: float | None = None
        """The time when the last packet of the peer came that could be decrypted."""
        configuration = replace(
            configuration,
            max_stream_data=self._caps.stream_window_bytes,
            max_data=self._caps.connection_window_bytes,
        )
        super().__init__(configuration=configuration, **others)
        self._make_reset_tokens(self._host_cids)
        for limit, count in (
            (self._local_max_streams_bidi, self._caps.streams),
            (self._local_max_streams_uni, self._caps.uni_streams),
        ):
            limit.value = limit.sent = count

    def set_stream(
        self,
        stream_id: int,
        *,
        deadline_s: float | None = None,
        urgency: int | None = None,
        incremental: bool | None = None,
        tenant: str | None = None,
    ) -> None:
        """Set what the scheduler may know of a stream; ``None`` leaves a value as it is.

        ``deadline_s`` is on the clock of the times that this connection is given. For the other values see
        :class:`sloserve.http3.stream_schedulers.StreamState`.
        """
        self._order.set(stream_id, deadline_s, urgency, incremental, tenant)

    def due(self, stream_id: int, deadline_s: float, tally: Deadlines | None = None) -> None:
        """Set when what was written to the stream since the last call is due.

        Args:
            stream_id: Number of the stream.
            deadline_s: When it is due, on the clock of :meth:`set_stream`, in seconds.
            tally: Counter of whether it leaves by then.
        """
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._order.due(stream_id, stream.sender._buffer_stop, deadline_s, tally)

    def unsent_bytes(self, stream_id: int) -> int:
        """Return how many bytes of the stream are written and not acknowledged; 0 for a stream that is over."""
        return self.sent(stream_id)[0]

    def sent(self, stream_id: int) -> tuple[int, int]:
        """Return how many bytes of the stream are not acknowledged, as :meth:`unsent_bytes`, and how many are."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.sender._reset_error_code is not None:
            return 0, 0
        sender = stream.sender
        return sender._buffer_stop - sender._buffer_start, sender._buffer_start

    def starved(self, stream_id: int) -> bool:
        """Return whether the stream has something to send for which its peer has room."""
        stream = self._streams.get(stream_id)
        return stream is not None and _may_send(stream)

    def free(self, stream_id: int | None = None) -> None:
        """Free the data of a stream that was reset, or of all streams of a connection that was closed.

        aioquic keeps it until the peer has acknowledged the reset, or the connection has timed out.
        """
        streams = [*self._streams.values()] if stream_id is None else [self._streams.get(stream_id)]
        for stream in streams:
            if stream is not None and (stream_id is None or stream.sender._reset_error_code is not None):
                stream.sender._buffer = bytearray()

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were written and are still kept in memory, whether or not they were sent."""
        return sum(len(stream.sender._buffer) for stream in self._streams.values())

    def hold(self, stream_id: int, unread_bytes: int) -> None:
        """Set how many delivered bytes of the stream the application has not read yet; they count as held."""
        if unread_bytes:
            self._unread[stream_id] = unread_bytes
        else:
            self._unread.pop(stream_id, None)

    def is_untouched(self, stream_id: int) -> bool:
        """Return whether the peer has opened the stream, if only by opening a later one, and sent nothing on it."""
        stream = self._streams.get(stream_id)
        return stream is not None and not stream.receiver.is_finished and not stream.receiver.starting_offset()

    def stop_reading(self, stream_id: int, error_code: int) -> None:
        """Ask the peer to send no more of the stream, unless all of it is there."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.receiver.is_finished:
            self.stop_stream(stream_id, error_code)

    @property
    def handshake_complete(self) -> bool:
        return bool(self._handshake_complete)

    @property
    def client_certificate(self) -> tuple[Any, list[Any]] | None:
        """The certificate that the client proved to own and its chain, unverified; ``None`` if it showed none."""
        certificate = self.tls._peer_certificate
        return None if certificate is None else (certificate, self.tls._peer_certificate_chain)

    def _arrange(self, streams: list[QuicStream]) -> None:
        self._order.waiting(_id(stream) for stream in streams if _may_send(stream))
        streams.sort(key=self._service_key)

    def _service_key(self, stream: QuicStream) -> tuple[float, ...]:
        stream_id, sender = _id(stream), stream.sender
        if sender.reset_pending or stream.receiver.stop_pending:
            return (0,)  # a few bytes that end work for nothing; behind data they would wait for all of it
        if sender.buffer_is_empty:
            return (2,)
        if stream_is_unidirectional(stream_id):
            return (0,)  # HTTP/3's own streams: without them nothing else can be understood
        return (1, *self._order.key(stream_id, sender.next_offset, sender._buffer_start))

    # What aioquic's users and aioquic call and read

    def reset_stream(self, stream_id: int, error_code: int) -> None:
        super().reset_stream(stream_id, error_code)
        self.free(stream_id)

    def receive_datagram(self, data: bytes, addr: NetworkAddress, now: float) -> None:
        self._traffic.received_bytes += len(data)
        if is_stateless_reset(data, self._peer_cid.stateless_reset_token) and self.handshake_complete:
            self._end_at_once("the server does not know the connection any more (stateless reset)")
            return
        ends_at_s = self._close_at
        super().receive_datagram(data, addr, now)
        if self._close_at != ends_at_s:
            self.heard_s = now

    def _end_at_once(self, reason: str) -> None:
        if self._close_event is None:
            self._close_event = ConnectionTerminated(QuicErrorCode.NO_ERROR, None, reason)
            self._close_end()

    def _make_reset_tokens(self, ids: Iterable[QuicConnectionId]) -> None:
        if self._reset_token is not None:
            for one in ids:
                one.stateless_reset_token = self._reset_token(one.cid)

    def _replenish_connection_ids(self) -> None:
        before = len(self._host_cids)
        super()._replenish_connection_ids()
        self._make_reset_tokens(self._host_cids[before:])

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, NetworkAddress]]:
        self._sending_s = now
        datagrams: list[tuple[bytes, NetworkAddress]] = super().datagrams_to_send(now)
        self._traffic.sent_bytes += sum(len(data) for data, _ in datagrams)
        return datagrams

    @property
    def _streams_queue(self) -> list[QuicStream]:
        return self._scheduled

    @_streams_queue.setter
    def _streams_queue(self, streams: list[QuicStream]) -> None:
        self._order.forget(self._streams)
        self._scheduled = _ServiceQueue(streams, self._arrange)

    def _write_stream_frame(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream, max_offset: int
    ) -> int:
        sender = stream.sender
        start, sent_before = sender.next_offset, sender.highest_offset
        used: int = super()._write_stream_frame(builder, space, stream, max_offset)
        if used > 0:
            if not stream_is_unidirectional(_id(stream)):
                self._order.served(_id(stream), used, sender.highest_offset, self._sending_s)
        elif start < sent_before and sender.next_offset != start:
            self._traffic.resent_frames += 1
        return used

    def _write_stream_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream) -> None:
        receiver, window = stream.receiver, self._caps.stream_window_bytes
        if stream.max_stream_data_local and not receiver.is_finished:
            read = receiver.starting_offset() - self._unread.get(_id(stream), 0)
            if read + window - stream.max_stream_data_local >= window // 2:
                stream.max_stream_data_local = read + window
        highest, receiver.highest_offset = receiver.highest_offset, 0  # else aioquic doubles the window
        try:
            super()._write_stream_limits(builder, space, stream)
        finally:
            receiver.highest_offset = highest

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        limit, window = self._local_max_data, self._caps.connection_window_bytes
        if limit.value - limit.used <= window // 2:
            limit.value = max(limit.value, limit.used - sum(self._held_bytes()) + window)
        used, limit.used = limit.used, 0  # as above
        try:
            super()._write_connection_limits(builder, space)
        finally:
            limit.used = used

    def _held_bytes(self) -> Iterator[int]:
        yield from self._unread.values()
        for stream in self._streams.values():
            if not stream.receiver.is_finished:
                yield stream.receiver.highest_offset - stream.receiver.starting_offset()

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        self.tls._request_client_certificate = self._request_certificate


class _ServiceQueue(list[QuicStream]):
    """A list that puts itself in order when it is first gone through; aioquic makes a new one for each packet."""

    def __init__(self, streams: list[QuicStream], arrange: Callable[[list[QuicStream]], None]) -> None:
        super().__init__(streams)
        self._arrange = arrange
        self._in_order = False

    def __iter__(self) -> Iterator[QuicStream]:
        if not self._in_order:
            self._in_order = True
            self._arrange(self)
        return super().__iter__()


def _may_send(stream: QuicStream) -> bool:
    """Return whether a stream has data of a request or a response for which its peer has room."""
    sender = stream.sender
    waits = not (sender.buffer_is_empty or stream.is_blocked or stream_is_unidirectional(_id(stream)))
    return waits and sender.next_offset < stream.max_stream_data_remote


def _id(stream: QuicStream) -> int:
    """Return the stream's number; only aioquic's handshake streams have none, and they never come here."""
    assert stream.stream_id is not None
    return stream.stream_id
