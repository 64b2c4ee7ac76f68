"""Checks that the private parts of aioquic on which the stream schedulers depend work as expected.

Two connections, joined in memory, send four streams; the order of their frames must be the scheduler's. A server on
which the scheduler had no effect would look healthy and serve in rotation, so :func:`check` refuses instead. The same
holds for the bounds on HTTP/3 (:mod:`sloserve.http3.bounded_h3`), each of which is tried by a request that breaks it,
and for the resets of lost connections.

Each probe sends what a peer might send, on two connections in memory, and checks the effect. If a method of aioquic
were renamed, our override would not be called and its bound would not hold; nothing else would show that.
"""

import functools
import importlib.metadata
import re
from collections.abc import Callable
from itertools import groupby

from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import ErrorCode, FrameType, Setting, encode_frame
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, QuicEvent

from sloserve.core.errors import ConfigError
from sloserve.core.extras import install_command
from sloserve.http3.bounded_h3 import MAX_CONTROL_BYTES, SPARE_FRAMES, BoundedH3, Malformed
from sloserve.http3.joined import Joined
from sloserve.http3.scheduled_connection import AIOQUIC
from sloserve.http3.stateless_reset import stateless_reset
from sloserve.http3.stream_priority import StreamPriority
from sloserve.http3.transport_limits import TransportLimits

STREAM_BYTES = 3000
STREAMS = ((7.0, 5), (2.0, 3), (7.1, 5), (1.0, 1))
"""Deadline in seconds and urgency, in the order of opening."""

ORDERS = {"fcfs": "0123", "edf": "3102", "abs": "3102", "ml": "301201201202", "rr": "01230123012313"}
"""The streams in the order in which their bytes leave, by scheduler, without repetitions."""


def observed_order(name: str) -> str:
    """Return the order in which the scheduler ``name`` serves the four streams, without repetitions."""
    joined = Joined(name)
    for number, (deadline_s, urgency) in enumerate(STREAMS):
        joined.client.send_stream_data(4 * number, bytes(STREAM_BYTES), end_stream=True)
        joined.client.set_stream(4 * number, deadline_s=deadline_s, urgency=urgency)
    joined.run()
    if joined.received != {4 * number: STREAM_BYTES for number in range(len(STREAMS))}:
        return "incomplete"
    return "".join(str(number) for number, _ in groupby(joined.client.served))


def unread_limit() -> int:
    """Return how many bytes a peer can send that the application leaves unread, with windows of 8 and 16 KiB."""
    joined = Joined("fcfs", TransportLimits(stream_window_bytes=8192, connection_window_bytes=16384))
    for stream_id in (0, 4, 8):
        joined.server.hold(stream_id, 2**20)  # none of it will be read
        joined.client.send_stream_data(stream_id, bytes(65536), end_stream=True)
    joined.run()
    return sum(joined.received.values())


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

    ``events`` has the events of both ends, and ``ended`` the error code with which the server ended the connection.
    """

    def __init__(self, request_certificate: bool = False) -> None:
        self._ends: dict[QuicConnection, BoundedH3] = {}
        super().__init__("rr", request_certificate=request_certificate)
        self.events: list[H3Event] = []
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
            self.events += self._ends[receiver].handle_event(event)
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
    kinds = [type(event) for event in probe.events]
    return kinds == [HeadersReceived, HeadersReceived] and 0 not in probe.served._stream


def _settings() -> bool:
    stated = Probe().h3.received_settings or {}
    wanted = {Setting.QPACK_MAX_TABLE_CAPACITY: 0, Setting.QPACK_BLOCKED_STREAMS: 0}
    return wanted.items() <= stated.items() and stated.get(Setting.MAX_FIELD_SECTION_SIZE) == HEADER_BYTES


def _control_frames_reported() -> bool:
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
    seen = [(type(event), getattr(event, "stream_id", None)) for event in probe.events]
    return (
        seen == [(Malformed, 0), (HeadersReceived, 4), (DataReceived, 4)]
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
    "PRIORITY_UPDATE and GOAWAY are reported": _control_frames_reported,
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


@functools.cache
def _tried(name: str) -> tuple[str, int]:
    """Return the order and the limit that are seen; aioquic stays as it is while the process runs."""
    return observed_order(name), unread_limit()


_failing = functools.cache(failing)


def check(name: str, any_version: bool = False) -> None:
    """Raise ConfigError if aioquic does not work as needed.

    It does not if the scheduler ``name`` has no effect, memory has no bound, or a probe of HTTP/3 fails.

    Args:
        name: Name of the stream scheduler.
        any_version: Whether to accept any aioquic with private parts that work, for a look at a new release.
    """
    version = importlib.metadata.version("aioquic")
    if not any_version and tuple(map(int, re.findall(r"\d+", version)[:2])) != AIOQUIC:
        wanted = ".".join(map(str, AIOQUIC))
        raise ConfigError(f"aioquic {version} is installed, and HTTP/3 needs {wanted}: {install_command('http3')}")
    for one in dict.fromkeys((name, "rr")):  # streams without a deadline take turns under any
        order, unread = _tried(one)
        if order != ORDERS[one]:
            raise ConfigError(
                f"aioquic {version} does not serve streams in the order of {one}: {order} instead of {ORDERS[one]}; "
                "reinstall aioquic, or serve without --http3"
            )
    if unread > 16384:
        raise ConfigError(
            f"aioquic {version} does not bound what a peer may send ahead; reinstall aioquic, or drop --http3"
        )
    missing = ", ".join(_failing())
    if missing:
        raise ConfigError(f"aioquic {version}: these checks failed: {missing}; reinstall aioquic, or drop --http3")
