"""HTTP/3 as all other packages see it: its settings, its certificates, and a server that may run beside a TCP port.

All that uses QUIC is in :mod:`sloserve.http3`, which is optional, as is aioquic, which it needs: no module imports it,
and :func:`part` loads it when a setting asks for it.
"""

import importlib
import ssl
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from sloserve.core.extras import not_installed
from sloserve.core.files.model import NOT_TINY, Allowed
from sloserve.wire.asgi import Message, Scope, Send
from sloserve.wire.resolve import Classify

Positive = Annotated[int, Field(strict=True, ge=1), Allowed("a whole number >= 1")]
Seconds = Annotated[
    float, Field(strict=True, gt=0.0, le=3600.0), NOT_TINY, Allowed("a number of seconds above 0, up to 3600")
]


FLAGS: Final = {
    "enabled": "http3",
    "scheduler": "quic_scheduler",
    "congestion": "quic_congestion",
    "port": "http3_port",
    "self_signed": "http3_self_signed",
}
"""The flags that set fields of :class:`Http3Settings`, of servers and gateways alike."""


class Http3Settings(BaseModel):
    """What an HTTP/3 listener serves, and the limits that it sets to clients.

    Args:
        enabled: Whether HTTP/3 is served.
        scheduler: Scheduler of streams, see docs/http3.md.
        port: UDP port; ``None`` for the number of the TCP port.
        self_signed: Whether to make a certificate for localhost at start.
        deadlines: ``renewed`` gives each chunk of an event stream the moment when its reader runs dry, ``fixed`` one
            deadline for the whole response.
        late: ``send`` continues a response that is past its e2e target, ``drop`` resets its stream then.
        congestion: ``cubic``, ``reno``, or ``constant``, a window of ``window_bytes`` whatever is lost: for private
            links of known bandwidth alone.
        window_bytes: Window of the congestion control ``constant``, in bytes.
        connections: Most connections at a time.
        connections_per_address: Most connections of one client address at a time.
        handshakes_per_s: Handshakes that may begin per second, with bursts of twice as many.
        handshakes_per_s_per_address: Handshakes of one address that may begin per second, with bursts of twice as many.
        retry_above: Number of unfinished handshakes above which a client must show that it receives at its address.
        idle_s: Seconds after which a silent connection ends.
        streams: Most requests of a connection at a time.
        header_bytes: Most bytes of one request's headers.
        buffer_bytes: Bytes of one response that wait for its client; beyond them the application waits.
        unread_bytes: Unread bytes of a connection's responses; beyond them its next requests wait.
        unread_total_bytes: Unread bytes of all connections; beyond them the connection that holds the most is ended.
        unread_s: Seconds after which a response is reset if its client reads nothing of it.
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


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS of a server, as vLLM's flags ``--ssl-*`` set it.

    Args:
        cert_reqs: What clients must show, such as ``ssl.CERT_REQUIRED``.
        refresh: Whether changed files are read for the next connection.
    """

    certfile: str | None = None
    keyfile: str | None = None
    ca_certs: str | None = None
    cert_reqs: int = ssl.CERT_NONE
    refresh: bool = False

    @property
    def client_authorities(self) -> str | None:
        """Authorities one of which must have signed a client's certificate; ``None`` if clients need none."""
        return self.ca_certs if self.cert_reqs == ssl.CERT_REQUIRED else None


def part(name: str) -> Any:
    """Return a module of :mod:`sloserve.http3`.

    Raises: ConfigError if the module, or a package that it needs, is not installed.
    """
    try:
        return importlib.import_module(f"sloserve.http3.{name}")
    except ModuleNotFoundError as error:
        raise not_installed("HTTP/3 (--http3, sloserve edge)", str(error.name), "http3") from error


def check(settings: Http3Settings, tls: Tls, address: tuple[str, int]) -> None:
    """Raise ConfigError for whatever would keep a server at this UDP address from working as configured."""
    part("beside_tcp").check(settings, tls, address)


class Http3Server(Protocol):
    """A running HTTP/3 server.

    Args:
        where: Address of the server, for the operator to read.
        alt_svc: The header that announces it to clients.
    """

    where: str
    alt_svc: tuple[bytes, bytes]

    def going_away(self) -> None: ...
    async def stop(self, linger_s: float) -> None: ...


class Http3Front:
    """Serves HTTP/3 beside a TCP port from :meth:`listen` to :meth:`stop`; before and after that it does nothing."""

    def __init__(self) -> None:
        self._serving: Http3Server | None = None
        self._going = False

    async def listen(
        self, app: Any, settings: Http3Settings, tls: Tls, address: tuple[str, int], classify: Classify, registry: Any
    ) -> str:
        """Start to listen; return the address, and which certificate to trust, as a line for the operator.

        Args:
            app: The ASGI application.
            settings: Settings of the listener.
            tls: Certificate and keys.
            address: Host and port of the TCP server.
            classify: Returns a request's SLO and tenant from its headers and its peer's address.
            registry: Registry of metrics.

        Raises: ConfigError if the server cannot be started.
        """
        serving: Http3Server = await part("beside_tcp").serve(app, settings, tls, address, classify, registry)
        self._serving = serving
        return serving.where

    def going_away(self) -> None:
        """Accept no more requests, and announce this to clients at once; requests in progress are finished."""
        self._going = True
        if self._serving is not None:
            self._serving.going_away()

    async def stop(self, linger_s: float) -> None:
        """Stop once all requests have got their responses, or after ``linger_s`` seconds."""
        self._going = True
        if self._serving is not None:
            await self._serving.stop(linger_s)

    def advertising(self, scope: Scope, send: Send) -> Send:
        """Return ``send`` with a header that announces HTTP/3 to clients on TCP."""
        if self._serving is None or self._going or scope["http_version"] == "3":
            return send
        alt_svc = self._serving.alt_svc

        def advertise(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), alt_svc]
            return send(message)

        return advertise
