"""The stream of one request at the server, as its exchange uses it."""

import asyncio
from typing import Protocol

from aioquic.h3.connection import ErrorCode
from aioquic.h3.events import Headers

from sloserve.http3.bounded_h3 import BoundedH3
from sloserve.http3.listener_figures import Deadlines
from sloserve.http3.scheduled_connection import ScheduledConnection


class RespondingConnection(Protocol):
    """What the streams of a connection share."""

    @property
    def quic(self) -> ScheduledConnection: ...

    @property
    def may_begin(self) -> bool:
        """Whether the client has read enough of its responses to get another."""

    def transmit_soon(self) -> None:
        """Send what there is to send once the callbacks at hand are done."""

    def wrote(self, size_bytes: int) -> None:
        """Record ``size_bytes`` of a response as written to the connection."""

    def deadlines(self, slo_class: str) -> Deadlines:
        """Return the counts of response parts of this class."""

    def drop_at(self, stream_id: int, deadline_s: float | None) -> None:
        """Set the time after which unsent bytes of the response may be dropped; ``None`` to keep them."""

    def stop_reading(self, stream_id: int) -> None:
        """Discard what still comes of the request's body."""

    def abort(self, stream_id: int, error_code: int) -> None:
        """End a stream both ways."""


class RequestStream:
    """The stream on which a request comes and its response goes.

    Args:
        connection: The connection to which the stream belongs.
        h3: The HTTP/3 layer, which writes the frames of the connection.
        stream_id: Number of the stream.
    """

    def __init__(self, connection: RespondingConnection, h3: BoundedH3, stream_id: int) -> None:
        self._connection = connection
        self._quic = connection.quic
        self._h3 = h3
        self.stream_id = stream_id

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def send_head(self, headers: Headers, end: bool) -> None:
        self._h3.send_headers(self.stream_id, headers, end)
        self._connection.transmit_soon()

    def send_body(self, data: bytes, end: bool) -> None:
        self._h3.send_data(self.stream_id, data, end)
        self._connection.wrote(len(data))

    def set_priority(self, deadline_s: float | None, urgency: int | None, incremental: bool | None) -> None:
        self._quic.set_stream(self.stream_id, deadline_s=deadline_s, urgency=urgency, incremental=incremental)

    def due(self, deadline_s: float, slo_class: str | None = None, written_s: float = 0.0) -> None:
        """Set when what was sent since the last call is due.

        Args:
            deadline_s: When it is due, on the clock of the connection, in seconds.
            slo_class: Service class for which to count the part; ``None`` not to count it.
            written_s: When the application wrote the part.
        """
        tally = None if slo_class is None else self._connection.deadlines(slo_class)
        if tally is not None and deadline_s <= written_s:
            tally.overdue += 1
            tally = None
        self._quic.due(self.stream_id, deadline_s, tally)

    def late_from(self, deadline_s: float | None) -> None:
        self._connection.drop_at(self.stream_id, deadline_s)

    def may_begin(self) -> bool:
        return self._connection.may_begin

    def unsent_bytes(self) -> int:
        return self._quic.unsent_bytes(self.stream_id)

    def starved(self) -> bool:
        return self._quic.starved(self.stream_id)

    def hold(self, unread_bytes: int) -> None:
        self._quic.hold(self.stream_id, unread_bytes)
        if not unread_bytes:
            self._connection.transmit_soon()

    def stop_reading(self) -> None:
        self._connection.stop_reading(self.stream_id)

    def abort(self) -> None:
        self._connection.abort(self.stream_id, ErrorCode.H3_INTERNAL_ERROR)
