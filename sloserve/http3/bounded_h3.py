"""HTTP/3 of aioquic with bounds on what a peer sends, and with PRIORITY_UPDATE, which aioquic passes over.

Requests are decoded without QPACK's dynamic table: one byte of a header block can refer to an entry of 4 KB there, so
that a small request could become a large one in memory. One byte is up to 69 of the static table, so what is decoded
is bounded too. Each frame costs as much time as a KB of data, so that many small ones end the connection.

A message that is malformed ends its stream alone (RFC 9114, Sec. 4.1.2), since a connection may carry many clients'.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakSet

import pylsqpack
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import (
    ErrorCode,
    FrameType,
    FrameUnexpected,
    H3Connection,
    H3Stream,
    HeadersState,
    MessageError,
    ProtocolError,
    Setting,
    encode_frame,
)
from aioquic.h3.events import H3Event, Headers
from aioquic.quic.events import StreamDataReceived

from sloserve.http3.scheduled_connection import ScheduledConnection
from sloserve.http3.stream_priority import PRIORITY_UPDATE_REQUEST, ControlFrames, StreamPriority, parse_update

KEPT_UNTIL_WHOLE = (FrameType.SETTINGS, FrameType.MAX_PUSH_ID)
"""Frames of a control stream that aioquic keeps until all of them is there."""
MAX_CONTROL_BYTES = 4096
MAX_UPDATE_BYTES = 512
SPARE_FRAMES = 1024
"""Frames that a client may send whatever their size, in addition to :data:`REQUEST_FRAMES` of each request.

Any more must have :data:`FRAME_BYTES` each on average.
"""
REQUEST_FRAMES = 4
FRAME_BYTES = 32
FIELD_OVERHEAD_BYTES = 32
"""Bytes that a field counts in addition to its name and value (RFC 9114, Sec. 4.2.2)."""


class TooMuch(ProtocolError):
    """A peer sent more than it may, which ends the connection."""

    error_code = ErrorCode.H3_EXCESSIVE_LOAD


@dataclass(frozen=True, slots=True)
class Malformed(H3Event):
    """The peer sent something on this stream that is not an HTTP message; the stream is ended both ways."""

    stream_id: int
    reason: str


def section_bytes(headers: Headers) -> int:
    """Return the size of a header section in bytes, as RFC 9114, Sec. 4.2.2 counts it."""
    return sum(len(name) + len(value) + FIELD_OVERHEAD_BYTES for name, value in headers)


class BoundedH3(H3Connection):
    """HTTP/3 on one connection.

    A client's frames are counted. A server's frames are not counted, since it sends one for each token.

    Args:
        quic: The connection that carries the frames.
        max_header_bytes: Most bytes of a header section, as it is sent and as it is decoded.
        on_priority: Function that is called with each PRIORITY_UPDATE of the peer.
        on_goaway: Function that is called when the peer takes no more requests.
    """

    def __init__(
        self,
        quic: ScheduledConnection,
        max_header_bytes: int,
        on_priority: Callable[[int, StreamPriority], None] | None = None,
        on_goaway: Callable[[], None] | None = None,
    ) -> None:
        self._connection = quic
        self._max_header_bytes = max_header_bytes
        self._on_priority = on_priority
        self._on_goaway = on_goaway
        self._control_frames: dict[int, ControlFrames] = {}
        self._frames = self._frame_bytes = self._requests = 0
        self._malformed: set[int] = set()
        self._without_body: WeakSet[H3Stream] = WeakSet()
        super().__init__(quic)

    @property
    def peer_header_bytes(self) -> int | None:
        """Bytes of the largest header section that the peer takes; ``None`` if it has not stated a limit."""
        return (self.received_settings or {}).get(Setting.MAX_FIELD_SECTION_SIZE)

    def abort(self, stream_id: int, error_code: int) -> None:
        """End a stream both ways, whatever has passed on it."""
        with suppress(ValueError):  # it is over
            self._connection.reset_stream(stream_id, error_code)
            self._connection.stop_reading(stream_id, error_code)
        stream = self._stream.get(stream_id)
        if stream is not None:
            stream.sending_ended = True
            if stream.is_ended():
                del self._stream[stream_id]

    def send_priority_update(self, stream_id: int, field: str) -> None:
        """Send the server, as its client, another priority of a request."""
        payload = encode_uint_var(stream_id) + field.encode()
        assert self._local_control_stream_id is not None
        self._quic.send_stream_data(self._local_control_stream_id, encode_frame(PRIORITY_UPDATE_REQUEST, payload))

    def send_goaway(self, stream_id: int) -> None:
        """Notify the client that requests from ``stream_id`` on are not served."""
        assert self._local_control_stream_id is not None
        frame = encode_frame(FrameType.GOAWAY, encode_uint_var(stream_id))
        self._quic.send_stream_data(self._local_control_stream_id, frame)

    def _count_frame(self) -> None:
        self._frames += 1
        spare = SPARE_FRAMES + REQUEST_FRAMES * self._requests
        if not self._is_client and self._frames > spare + self._frame_bytes // FRAME_BYTES:
            raise TooMuch(f"{self._frames} frames of {self._frame_bytes} bytes in all; send fewer and larger ones")

    # What aioquic calls

    def _receive_stream_data(self, event: StreamDataReceived) -> list[H3Event]:
        self._frame_bytes += len(event.data)
        if event.stream_id in self._malformed:
            if event.end_stream:
                self._forget(event.stream_id)
            return []
        try:
            events: list[H3Event] = super()._receive_stream_data(event)
        except MessageError as error:
            self.abort(event.stream_id, error.error_code)
            if not event.end_stream:
                self._malformed.add(event.stream_id)
            return [Malformed(event.stream_id, error.reason_phrase)]
        return events

    def _forget(self, stream_id: int) -> None:
        self._malformed.discard(stream_id)
        self._stream.pop(stream_id, None)

    def _decode_headers(self, stream_id: int, frame_data: bytes | None) -> Headers:
        headers = super()._decode_headers(stream_id, frame_data)
        size = section_bytes(headers)
        if size > self._max_header_bytes:
            raise TooMuch(f"a header section of {size} bytes, decoded; send at most {self._max_header_bytes}")
        if (b":status", b"304") in headers:
            self._without_body.add(self._stream[stream_id])
        return headers

    def send_headers(self, stream_id: int, headers: Headers, end_stream: bool = False) -> None:
        super().send_headers(stream_id, headers, end_stream)
        if (b":method", b"HEAD") in headers:
            self._without_body.add(self._stream[stream_id])

    def _check_content_length(self, stream: H3Stream) -> None:
        if stream.content_length or stream not in self._without_body:
            super()._check_content_length(stream)

    def _init_connection(self) -> None:
        self._max_table_capacity = self._blocked_streams = 0
        self._decoder = pylsqpack.Decoder(0, 0)
        super()._init_connection()

    def _get_local_settings(self) -> dict[int, int]:
        return {
            Setting.QPACK_MAX_TABLE_CAPACITY: 0,
            Setting.QPACK_BLOCKED_STREAMS: 0,
            Setting.MAX_FIELD_SECTION_SIZE: self._max_header_bytes,
        }

    def _check_request_or_push_frame_type(self, frame_type: int, stream: H3Stream) -> None:
        super()._check_request_or_push_frame_type(frame_type, stream)
        self._requests += frame_type == FrameType.HEADERS and stream.headers_recv_state == HeadersState.INITIAL
        self._count_frame()
        if frame_type == FrameType.WEBTRANSPORT_STREAM:
            raise FrameUnexpected("WebTransport was not offered")
        headers = frame_type in (FrameType.HEADERS, FrameType.PUSH_PROMISE)
        if headers and (stream.frame_size or 0) > self._max_header_bytes:
            raise TooMuch(f"a header section of {stream.frame_size} bytes; send at most {self._max_header_bytes}")

    def _receive_stream_data_uni(self, stream: H3Stream, data: bytes, stream_ended: bool) -> list[H3Event]:
        frames = self._control_frames.setdefault(
            stream.stream_id, ControlFrames(frozenset({PRIORITY_UPDATE_REQUEST}), MAX_UPDATE_BYTES)
        )
        updates = []
        for frame_type, length, payload in frames.feed(data):
            self._count_frame()
            if frame_type in KEPT_UNTIL_WHOLE and length > MAX_CONTROL_BYTES:
                raise TooMuch(f"a control frame of {length} bytes; send at most {MAX_CONTROL_BYTES}")
            updates += [] if payload is None else [parse_update(payload)]
            if frame_type == FrameType.GOAWAY and self._on_goaway is not None:
                self._on_goaway()
        if stream_ended:
            self._control_frames.pop(stream.stream_id, None)
        events = super()._receive_stream_data_uni(stream, data, stream_ended)
        for update in updates:
            if update is not None and self._on_priority is not None:
                self._on_priority(*update)
        return events

    def _receive_stream_reset(self, stream_id: int) -> None:
        self._control_frames.pop(stream_id, None)
        super()._receive_stream_reset(stream_id)
        if stream_id in self._malformed:
            self._forget(stream_id)
