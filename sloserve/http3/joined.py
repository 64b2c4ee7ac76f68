"""A client's and a server's QUIC connection in one process, with no network between them, for checks at start."""

import functools
import math
from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import QuicEvent, StreamDataReceived

from sloserve.http3.certificates import make_certificate
from sloserve.http3.scheduled_connection import ScheduledConnection
from sloserve.http3.stateless_reset import tokens
from sloserve.http3.stream_schedulers import scheduler
from sloserve.http3.transport_limits import TransportLimits

_CLIENT, _SERVER = ("192.0.2.1", 1), ("192.0.2.2", 2)


class _Recording(ScheduledConnection):
    served: list[int]

    def _write_stream_frame(self, builder: Any, space: Any, stream: Any, max_offset: int) -> int:
        used = super()._write_stream_frame(builder, space, stream, max_offset)
        if used > 0 and stream.stream_id % 4 == 0:
            self.served.append(stream.stream_id // 4)
        return used


class Joined:
    """A client and a server with no network between them; time passes by hand.

    ``received`` has the bytes of each stream, at either end. ``finished`` has the streams in the order in which they
    arrived whole. ``token`` is the function with which the server makes the tokens of its stateless resets.
    """

    def __init__(self, name: str, limits: TransportLimits | None = None, request_certificate: bool = False) -> None:
        self.now_s = 0.0
        self.token = tokens(b"", 0)
        common: dict[str, Any] = {"alpn_protocols": ["sloserve-check"]}
        certificate, key = _certificate()
        shown = {"certificate": certificate, "private_key": key}
        self.client = _Recording(
            configuration=QuicConfiguration(is_client=True, verify_mode=0, server_name="localhost", **common, **shown),
            scheduler=scheduler(name),
        )
        self.client.served = []
        self.server = ScheduledConnection(
            configuration=QuicConfiguration(is_client=False, **common, **shown),
            scheduler=scheduler(name),
            limits=limits,
            request_certificate=request_certificate,
            reset_token=self.token,
            original_destination_connection_id=self.client.original_destination_connection_id,
        )
        self.received: dict[int, int] = {}
        self.finished: list[int] = []
        self.client.connect(_SERVER, now=self.now_s)
        self.run(50)

    def heard(self, receiver: QuicConnection, event: QuicEvent) -> None:
        """Notify one of the two ends of this event."""

    def run(self, rounds: int = 200) -> None:
        """Carry datagrams to and fro until both are silent, a millisecond a round, at most ``rounds`` times."""
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
            self.heard(receiver, event)
            if isinstance(event, StreamDataReceived):
                self.received[event.stream_id] = self.received.get(event.stream_id, 0) + len(event.data)
                if event.end_stream:
                    self.finished.append(event.stream_id)
        return len(datagrams)


@functools.cache
def _certificate() -> Any:
    return make_certificate()
