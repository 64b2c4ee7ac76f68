"""Probes of what :class:`BoundedH3` and :class:`ScheduledConnection` change in private parts of aioquic.

Each probe sends what a peer might send, on two connections in memory, and checks the effect. If a method of aioquic
were renamed, our override would not be called and its bound would not hold; nothing else would show that.
"""

from collections.abc import Callable

from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, FrameType, Setting, encode_frame
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, QuicEvent

from sloserve.http3.bounded_h3 import MAX_CONTROL_BYTES, SPARE_FRAMES, BoundedH3, Malformed
from sloserve.http3.joined import Joined
from sloserve.http3.stateless_reset import stateless_reset
from sloserve.http3.stream_priority import StreamPriority
from sloserve.http3.transport_limits import TransportLimits

HEADER_BYTES = 1000
QPACK_ENCODER_STREAM_ERROR = 0x201
GET = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")]
CONTROL, ENCODER = 2, 6
"""Streams that a client's HTTP/3 opens first."""
MANY_FIELDS = b"\x00\x00" + b"\xc0" * 100
"""A header section of 102 bytes that decodes to several times :data:`HEADER_BYTES`, from the static table."""
INSERT = b"\x3f\x81\x1f\x41a\x01b"
"""Encoder instructions that set a dynamic table of 4 KB and put a field into it."""


class Probe(Joined):
    """HTTP/3 on both connections.

    ``told`` has the events of both ends, and ``ended`` the error code with which the server ended the connection.
    """

    def __init__(self, request_certificate: bool = False) -> None:
        self._ends: dict[QuicConnection, BoundedH3] = {}
        super().__init__("rr", request_certificate=request_certificate)
        self.told: list[H3Event] = []
        self.priorities: list[tuple[int, StreamPriority]] = []
        self.going = False
        self.ended: int | None = None
        self.h3 = BoundedH3(self.client, HEADER_BYTES, on_goaway=self._goaway)
        self.served = BoundedH3(self.server, HEADER_BYTES, lambda *update: self.priorities.append(update))
        self._ends = {self.client: self.h3, self.server: self.served}
        self.run()

    def _goaway(self) -> None:
        self.going = True

    def heard(self, receiver: QuicConnection, event: QuicEvent) -> None:
        if receiver in self._ends:
            self.told += self._ends[receiver].handle_event(event)
        if isinstance(event, ConnectionTerminated):
            self.ended = event.error_code

    def write(self, stream_id: int, data: bytes) -> "Probe":
        self.client.send_stream_data(stream_id, data)
        self.run()
        return self


def _announced(kind: int, size: int) -> bytes:
    return encode_uint_var(kind) + encode_uint_var(size)


def _request_and_answer() -> bool:
    probe = Probe()
    probe.h3.send_headers(0, [(b":method", b"HEAD"), *GET[1:]], True)
    probe.run()
    probe.served.send_headers(0, [(b":status", b"200"), (b"content-length", b"5")], True)
    probe.run()
    kinds = [type(event) for event in probe.told]
    return kinds == [HeadersReceived, HeadersReceived] and 0 not in probe.served._stream


def _settings() -> bool:
    stated = Probe().h3.received_settings or {}
    wanted = {Setting.QPACK_MAX_TABLE_CAPACITY: 0, Setting.QPACK_BLOCKED_STREAMS: 0}
    return wanted.items() <= stated.items() and stated.get(Setting.MAX_FIELD_SECTION_SIZE) == HEADER_BYTES


def _told() -> bool:
    probe = Probe()
    probe.h3.send_priority_update(0, "u=1")
    probe.served.send_goaway(0)
    probe.run()
    return probe.priorities == [(0, StreamPriority(1))] and probe.going


def _malformed() -> bool:
    probe = Probe()
    probe.write(0, encode_frame(FrameType.HEADERS, b"\x00\x00\xd1"))  # a method, and nothing else
    probe.h3.send_headers(4, GET)
    probe.h3.send_data(4, b"x", True)
    probe.run()
    told = [(type(event), getattr(event, "stream_id", None)) for event in probe.told]
    return (
        told == [(Malformed, 0), (HeadersReceived, 4), (DataReceived, 4)]
        and probe.ended is None
        and not probe.served._malformed
    )


def _reset_frees() -> bool:
    probe = Probe()
    probe.h3.send_headers(0, GET, True)
    probe.run()
    probe.served.send_headers(0, [(b":status", b"200")])
    probe.served.send_data(0, bytes(9999), False)
    held = probe.server.buffered_bytes
    probe.served.abort(0, ErrorCode.H3_REQUEST_CANCELLED)
    freed = held - probe.server.buffered_bytes
    probe.run()
    return freed >= 9999 and probe.ended is None and not probe.served._stream.get(0)


def _stateless_reset() -> bool:
    probe = Probe()
    heard_s = probe.client.heard_s
    reset = stateless_reset(probe.token(probe.server.host_cid), 100)
    spare = probe.client._peer_cid_available
    if reset is None or not spare or any(one.stateless_reset_token != probe.token(one.cid) for one in spare):
        return False
    probe.client.receive_datagram(bytes(100), ("192.0.2.2", 2), 99.0)
    if probe.client.heard_s != heard_s or heard_s is None:
        return False  # else a server that is gone would never be silent
    probe.client.receive_datagram(reset, ("192.0.2.2", 2), probe.now_s)
    event = probe.client.next_event()
    return isinstance(event, ConnectionTerminated) and "stateless reset" in event.reason_phrase


def _certificate_asked_for() -> bool:
    return Probe(request_certificate=True).server.client_certificate is not None


def _stream_window() -> bool:
    joined = Joined("fcfs", TransportLimits(stream_window_bytes=8192, connection_window_bytes=65536))
    joined.server.hold(0, 2**20)  # none of it will be read
    joined.client.send_stream_data(0, bytes(65536))
    joined.run()
    return joined.received == {0: 8192}


def _ends_with(code: int, stream_id: int, data: bytes) -> Callable[[], bool]:
    return lambda: Probe().write(stream_id, data).ended == code


_TOO_MUCH = int(ErrorCode.H3_EXCESSIVE_LOAD)

PROBES: dict[str, Callable[[], bool]] = {
    "settings are stated": _settings,
    "requests and responses pass": _request_and_answer,
    "PRIORITY_UPDATE and GOAWAY are reported": _told,
    "a malformed request ends alone": _malformed,
    "what is reset is freed": _reset_frees,
    "stateless resets and silence are noticed": _stateless_reset,
    "client certificates are asked for": _certificate_asked_for,
    "a stream's window waits for its reader": _stream_window,
    "decoded header sections are bounded": _ends_with(_TOO_MUCH, 0, encode_frame(FrameType.HEADERS, MANY_FIELDS)),
    "header sections are bounded": _ends_with(_TOO_MUCH, 0, _announced(FrameType.HEADERS, HEADER_BYTES + 1)),
    "control frames are bounded": _ends_with(
        _TOO_MUCH, CONTROL, _announced(FrameType.MAX_PUSH_ID, MAX_CONTROL_BYTES + 1)
    ),
    "frames are counted": _ends_with(_TOO_MUCH, CONTROL, _announced(0x21, 0) * (SPARE_FRAMES + 200)),
    "there is no dynamic table": _ends_with(QPACK_ENCODER_STREAM_ERROR, ENCODER, INSERT),
}


def failing() -> list[str]:
    """Return the names of the probes that fail with the installed aioquic; an exception counts as a failure too."""
    return [name for name, probe in PROBES.items() if not _holds(probe)]


def _holds(probe: Callable[[], bool]) -> bool:
    try:
        return probe()
    except Exception:  # private parts that are gone may show as any
        return False
