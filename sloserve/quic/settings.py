"""Settings of an HTTP/3 listener: the setting ``http3`` of a server, and of a fleet's gateway."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sloserve.files.model import Allowed
from sloserve.quic.transport_limits import TransportLimits

Positive = Annotated[int, Field(strict=True, ge=1), Allowed("a whole number >= 1")]
Seconds = Annotated[float, Field(strict=True, gt=0.0, le=3600.0), Allowed("a number of seconds above 0, up to 3600")]


class Http3Settings(BaseModel):
    """What an HTTP/3 listener does, and what it puts up with.

    enabled: whether there is one. scheduler: of streams, see :mod:`sloserve.quic.schedulers`. port: UDP, ``None`` for
    the number of the TCP port. self_signed: makes a certificate for localhost at start. deadlines: ``renewed`` gives
    each chunk of an event stream the moment when its reader runs dry, ``fixed`` one deadline for the whole answer.
    late: ``send`` goes on with an answer that is past its e2e target, ``drop`` resets its stream then.
    congestion: ``cubic``, ``reno``, or ``constant``, a window of ``window_bytes`` whatever is lost: for private links
    of known bandwidth alone.

    connections, connections_per_address: at once. handshakes_per_s, handshakes_per_s_per_address: that are
    begun, with bursts of twice as many.
    retry_above: from so many unfinished handshakes on a client must show that it receives at its address. idle_s: after
    which a silent connection ends. streams: requests of a connection at once. header_bytes: of one request's headers.
    buffer_bytes: of one answer that wait for its client; more makes the application wait. unread_bytes: of a
    connection's answers; more makes its next requests wait. unread_total_bytes: of all connections' answers; more ends
    the connection that holds the most. unread_s: an answer of which its client reads nothing for so long is reset.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: Annotated[bool, Allowed("true or false")] = False
    scheduler: Annotated[Literal["edf", "ml", "abs", "rr", "fcfs"], Allowed("one of edf, ml, abs, rr, fcfs")] = "edf"
    port: Annotated[
        Annotated[int, Field(strict=True, ge=1, le=65535)] | None, Allowed("a port from 1 to 65535, or null")
    ] = None
    self_signed: Annotated[bool, Allowed("true or false")] = False
    deadlines: Annotated[Literal["renewed", "fixed"], Allowed("one of renewed, fixed")] = "renewed"
    late: Annotated[Literal["send", "drop"], Allowed("one of send, drop")] = "send"
    congestion: Annotated[Literal["cubic", "reno", "constant"], Allowed("one of cubic, reno, constant")] = "cubic"
    window_bytes: Positive = 75_000
    connections: Positive = 256
    connections_per_address: Positive = 32
    handshakes_per_s: Positive = 50
    handshakes_per_s_per_address: Positive = 16
    retry_above: Annotated[int, Field(strict=True, ge=0), Allowed("a whole number >= 0")] = 16
    idle_s: Seconds = 60.0
    streams: Positive = 128
    header_bytes: Positive = 32_768
    buffer_bytes: Positive = 262_144
    unread_bytes: Positive = 8 * 2**20
    unread_total_bytes: Positive = 64 * 2**20
    unread_s: Seconds = 60.0

    @property
    def limits(self) -> TransportLimits:
        """What a peer may make a connection hold."""
        return TransportLimits(streams=self.streams)
