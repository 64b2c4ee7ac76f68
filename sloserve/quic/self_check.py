"""Checks that the private parts of aioquic on which the stream schedulers depend work as expected.

Two connections, joined in memory, send four streams; the order of their frames must be the scheduler's. A server whose
scheduler had no effect would look healthy and serve in rotation, so :func:`check` refuses instead.
"""

import functools
import importlib.metadata
import math
from itertools import groupby
from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import StreamDataReceived

from sloserve.core.errors import ConfigError
from sloserve.quic.certificates import make_certificate
from sloserve.quic.connection import AIOQUIC, ScheduledConnection
from sloserve.quic.limits import Limits
from sloserve.quic.schedulers import scheduler

STREAM_BYTES = 3000
STREAMS = ((7.0, 5), (2.0, 3), (7.1, 5), (1.0, 1))
"""Deadline in seconds and urgency, in the order of opening."""

ORDERS = {"fcfs": "0123", "edf": "3102", "abs": "3102", "ml": "301201201202", "rr": "01230123012313"}
"""Which stream's bytes leave next, a repetition left out."""

_CLIENT, _SERVER = ("192.0.2.1", 1), ("192.0.2.2", 2)


class _Recording(ScheduledConnection):
    served: list[int]

    def _write_stream_frame(self, builder: Any, space: Any, stream: Any, max_offset: int) -> int:
        used = super()._write_stream_frame(builder, space, stream, max_offset)
        if used > 0 and stream.stream_id % 4 == 0:
            self.served.append(stream.stream_id // 4)
        return used


class Joined:
    """A client and a server with no network between; time passes by hand.

    received: bytes by stream, at either end. finished: streams in the order in which they arrived whole.
    """

    def __init__(self, name: str, limits: Limits | None = None) -> None:
        self.now_s = 0.0
        common: dict[str, Any] = {"alpn_protocols": ["sloserve-check"]}
        self.client = _Recording(
            configuration=QuicConfiguration(is_client=True, verify_mode=0, server_name="localhost", **common),
            scheduler=scheduler(name),
        )
        self.client.served = []
        certificate, key = _certificate()
        self.server = ScheduledConnection(
            configuration=QuicConfiguration(is_client=False, certificate=certificate, private_key=key, **common),
            scheduler=scheduler(name),
            limits=limits,
            original_destination_connection_id=self.client.original_destination_connection_id,
        )
        self.received: dict[int, int] = {}
        self.finished: list[int] = []
        self.client.connect(_SERVER, now=self.now_s)
        self.run(50)

    def run(self, rounds: int = 200) -> None:
        """Carries datagrams to and fro until both are silent, a millisecond a round, at most ``rounds`` times."""
        for _ in range(rounds):
            self.now_s += 1e-3
            sent = self._carry(self.client, self.server, _CLIENT) + self._carry(self.server, self.client, _SERVER)
            timers = [t for end in (self.client, self.server) if (t := end.get_timer()) is not None]
            if not sent and min(timers, default=math.inf) > self.now_s + 0.1:
                break

    def _carry(self, sender: QuicConnection, receiver: QuicConnection, address: tuple[str, int]) -> int:
        timer_s = sender.get_timer()
        if timer_s is not None and timer_s <= self.now_s:
            sender.handle_timer(self.now_s)
        datagrams = sender.datagrams_to_send(self.now_s)
        for data, _ in datagrams:
            receiver.receive_datagram(data, address, self.now_s)
        while (event := receiver.next_event()) is not None:
            if isinstance(event, StreamDataReceived):
                self.received[event.stream_id] = self.received.get(event.stream_id, 0) + len(event.data)
                if event.end_stream:
                    self.finished.append(event.stream_id)
        return len(datagrams)


@functools.cache
def _certificate() -> Any:
    return make_certificate()


def observed_order(name: str) -> str:
    """The order in which the scheduler ``name`` serves the four streams, a repetition left out."""
    joined = Joined(name)
    for number, (deadline_s, urgency) in enumerate(STREAMS):
        joined.client.send_stream_data(4 * number, bytes(STREAM_BYTES), end_stream=True)
        joined.client.set_stream(4 * number, deadline_s=deadline_s, urgency=urgency)
    joined.run()
    if joined.received != {4 * number: STREAM_BYTES for number in range(len(STREAMS))}:
        return "incomplete"
    return "".join(str(number) for number, _ in groupby(joined.client.served))


def unread_limit() -> int:
    """How many bytes a peer can send that the application leaves unread, with windows of 8 and 16 KiB."""
    joined = Joined("fcfs", Limits(stream_window_bytes=8192, connection_window_bytes=16384))
    for stream_id in (0, 4, 8):
        joined.server.hold(stream_id, 2**20)  # none of it will be read
        joined.client.send_stream_data(stream_id, bytes(65536), end_stream=True)
    joined.run()
    return sum(joined.received.values())


@functools.cache
def _tried(name: str) -> tuple[str, int]:
    """The order and the limit that are seen; aioquic stays as it is while the process runs."""
    return observed_order(name), unread_limit()


def check(name: str) -> None:
    """Raises: ConfigError where the scheduler ``name`` would have no effect, or memory no bound."""
    version = importlib.metadata.version("aioquic")
    if version != AIOQUIC:
        raise ConfigError(
            f"aioquic {version} is installed, and the stream schedulers need {AIOQUIC}: pip install 'sloserve[http3]'"
        )
    order, unread = _tried(name)
    if order != ORDERS[name]:
        raise ConfigError(
            f"aioquic does not serve streams in the order of {name}: {order} instead of {ORDERS[name]}; "
            "reinstall aioquic, or serve without --http3"
        )
    if unread > 16384:
        raise ConfigError("aioquic does not bound what a peer may send ahead; reinstall aioquic, or drop --http3")
