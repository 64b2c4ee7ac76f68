"""The stream of one request at the server, as its exchange uses it."""

import asyncio
from typing import TYPE_CHECKING

from aioquic.h3.connection import ErrorCode
from aioquic.h3.events import Headers

if TYPE_CHECKING:
    from sloserve.http3.server_connection import ServerProtocol


class RequestStream:
    """Where a request comes from, and its answer goes."""

    def __init__(self, protocol: "ServerProtocol", stream_id: int) -> None:
        self._protocol = protocol
        self._quic = protocol.quic
        self.stream_id = stream_id

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def send_head(self, headers: Headers, end: bool) -> None:
        assert self._protocol._h3 is not None
        self._protocol._h3.send_headers(self.stream_id, headers, end)
        self._protocol.transmit_soon()

    def send_body(self, data: bytes, end: bool) -> None:
        assert self._protocol._h3 is not None
        self._protocol._h3.send_data(self.stream_id, data, end)
        self._protocol.wrote(len(data))

    def set_priority(self, deadline_s: float | None, urgency: int | None, incremental: bool | None) -> None:
        self._quic.set_stream(self.stream_id, deadline_s=deadline_s, urgency=urgency, incremental=incremental)

    def due(self, deadline_s: float, slo_class: str | None = None, written_s: float = 0.0) -> None:
        """What was sent since the last call is due then. slo_class: counts it, as what was written at ``written_s``."""
        tally = None if slo_class is None else self._protocol.deadlines(slo_class)
        if tally is not None and deadline_s <= written_s:
            tally.overdue += 1
            tally = None
        self._quic.due(self.stream_id, deadline_s, tally)

    def late_from(self, deadline_s: float | None) -> None:
        self._protocol.drop_at(self.stream_id, deadline_s)

    def may_begin(self) -> bool:
        return self._protocol.may_begin

    def unsent_bytes(self) -> int:
        return self._quic.unsent_bytes(self.stream_id)

    def starved(self) -> bool:
        return self._quic.starved(self.stream_id)

    def hold(self, unread_bytes: int) -> None:
        self._quic.hold(self.stream_id, unread_bytes)
        if not unread_bytes:
            self._protocol.transmit_soon()

    def stop_reading(self) -> None:
        self._protocol.stop_reading(self.stream_id)

    def abort(self) -> None:
        self._protocol.abort(self.stream_id, ErrorCode.H3_INTERNAL_ERROR)
