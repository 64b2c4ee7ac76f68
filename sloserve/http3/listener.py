"""An HTTP/3 listener in front of an ASGI application: :func:`listen`.

Bounds hold for a peer that has not shown a key yet. Connections and handshakes per second are limited, both in all and
per address, and so is the time of a handshake. An address must be proven (Retry) once many handshakes are unfinished or
come from it. Sessions are not resumed, so there is no 0-RTT, in which requests could be replayed.
"""

import asyncio
import contextlib
import logging
import os
import socket
from functools import partial
from typing import Any, cast

from aioquic.buffer import Buffer
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicFrameType,
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.retry import QuicRetryTokenHandler
from aioquic.tls import Alert, verify_certificate

from sloserve.core.errors import ConfigError
from sloserve.http3 import self_check
from sloserve.http3.answer_service import DEFAULT_CLASSIFY
from sloserve.http3.certificates import CertificateFiles
from sloserve.http3.congestion import congestion_name
from sloserve.http3.doorkeeper import Doorkeeper, TokenBucket
from sloserve.http3.http3_exchange import App
from sloserve.http3.scheduled_connection import ScheduledConnection
from sloserve.http3.server_connection import Front, ServerProtocol
from sloserve.http3.stateless_reset import key_bytes, stateless_reset, tokens
from sloserve.http3.stream_schedulers import scheduler
from sloserve.http3.transport_limits import TransportLimits
from sloserve.http3.unread import Unread
from sloserve.wire.optional_http3 import Http3Settings
from sloserve.wire.resolve import Classify

logger = logging.getLogger(__name__)

ALPN = "h3"
HANDSHAKE_S = 10.0
"""A handshake that is not done by then is given up."""

REFRESH_S = 1.0
"""Least seconds between two looks at the files of certificates."""

RESETS_PER_S = 50
"""Most stateless resets a second, since anyone may provoke one in the name of any address."""

RECEIVE_BUFFER_BYTES = 4 * 2**20
"""Receive buffer requested from the kernel, which may give less; it holds datagrams while the application computes."""


async def listen(
    app: App,
    settings: Http3Settings,
    certificates: CertificateFiles,
    address: tuple[str, int] = ("127.0.0.1", 443),
    classify: Classify = DEFAULT_CLASSIFY,
    client_ca: str | None = None,
) -> "Listener":
    """Serve ``app`` over HTTP/3 until the listener is stopped; the application's lifespan is not run here.

    Args:
        app: Any ASGI application.
        settings: Settings of HTTP/3.
        certificates: The server's certificate and key.
        address: Host and UDP port; 0 for any that is free.
        classify: Function that derives from a request's headers, and its peer's address, how to send its response.
        client_ca: PEM file of authorities; if it is given, a client needs a certificate that one of them signed.

    Raises: ConfigError for certificates that cannot be read, a port that is taken, or an aioquic without its hooks.
    """
    self_check.check(settings.scheduler)
    configuration = QuicConfiguration(
        is_client=False,
        alpn_protocols=[ALPN],
        idle_timeout=settings.idle_s,
        congestion_control_algorithm=congestion_name(settings.congestion, settings.window_bytes),
    )
    certificates.load(configuration)
    if client_ca is not None and not os.access(client_ca, os.R_OK):
        raise ConfigError(f"--ssl-ca-certs {client_ca}: not a readable file")
    sock = bound(*address)
    own_address = cast(tuple[str, int], sock.getsockname()[:2])
    unread = Unread(settings.unread_total_bytes)
    front = Front(app, settings, classify, partial(refusal, client_ca), own_address, unread)
    listener = Listener(front, configuration, certificates, client_ca is not None)
    listener.inode = os.fstat(sock.fileno()).st_ino
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: listener, sock=sock)
    return listener


def bound(host: str, port: int) -> socket.socket:
    """Return a UDP socket that is bound to this address.

    Raises: ConfigError if the socket cannot be bound.
    """
    sock = None
    try:
        family, kind, protocol, _, at = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        sock.setblocking(False)
        sock.bind(at)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise ConfigError(
            f"cannot listen on {host} UDP port {port}: {error.strerror or error}; choose another with --http3-port"
        ) from error
    return sock


def refusal(ca_file: str | None, quic: ScheduledConnection) -> str | None:
    """Return why a client is refused: none of the authorities in ``ca_file`` has signed its certificate.

    Without a file all clients may come.
    """
    if ca_file is None:
        return None
    if quic.client_certificate is None:
        return "a client certificate is needed"
    try:
        verify_certificate(*quic.client_certificate, cafile=ca_file)
    except Alert as error:
        return f"client certificate: {error}"
    return None


class Listener(asyncio.DatagramProtocol):
    """The connections at one UDP port."""

    def __init__(
        self, front: Front, configuration: QuicConfiguration, certificates: CertificateFiles, ask_certificate: bool
    ) -> None:
        self.front = front
        self.figures = front.figures
        self.doorkeeper = Doorkeeper(front.settings, front.figures.handshakes)
        self.inode = 0
        """Inode of its socket, by which the kernel's tables name it."""
        self.protocols: set[ServerProtocol] = set()
        self._configuration = configuration
        self._certificates = certificates
        self._ask_certificate = ask_certificate
        self._scheduler = scheduler(front.settings.scheduler)
        self._by_id: dict[bytes, ServerProtocol] = {}
        self._retry = QuicRetryTokenHandler()
        self._reset_token = tokens(key_bytes(configuration.private_key), front.address[1])
        self._resets = TokenBucket(RESETS_PER_S)
        self._loop = asyncio.get_running_loop()
        self._refreshed_s = self._loop.time()
        self._transport: asyncio.DatagramTransport | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._stopping = False

    @property
    def port(self) -> int:
        return self.front.address[1]

    def going_away(self) -> None:
        """Take no new connection or request, and notify all clients; what they have asked for is answered."""
        self._stopping = True
        for protocol in self.protocols:
            protocol.going_away()

    async def stop(self, linger_s: float = 5.0) -> None:
        """Take no new connection or request; end once all responses have arrived, or after ``linger_s``."""
        self._stopping = True
        await asyncio.gather(*(protocol.drain(linger_s) for protocol in [*self.protocols]))
        for protocol in [*self.protocols]:
            protocol.silence()
        if self._transport is not None:
            self._transport.close()
            await self._closed

    # asyncio.DatagramProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=self._configuration.connection_id_length)
        except ValueError:
            self.figures.discarded["malformed"] += 1
            return
        protocol = self._by_id.get(header.destination_cid) or self._begin(header, len(data), addr)
        if protocol is None:
            return
        try:
            protocol.datagram_received(data, addr)
        except Exception:
            logger.exception("a datagram from %s ended its HTTP/3 connection", addr[0])
            with contextlib.suppress(Exception):
                protocol.close(error_code=QuicErrorCode.INTERNAL_ERROR)
            self._left(protocol, addr)

    def _begin(self, header: QuicHeader, size: int, addr: Any) -> ServerProtocol | None:
        """Return a new connection if the datagram begins one and is allowed to."""
        kind, versions = header.packet_type, self._configuration.supported_versions
        answered = kind != QuicPacketType.VERSION_NEGOTIATION and size >= SMALLEST_MAX_DATAGRAM_SIZE
        if answered and header.version is not None and header.version not in versions:
            self._send(
                encode_quic_version_negotiation(
                    source_cid=header.destination_cid,
                    destination_cid=header.source_cid,
                    supported_versions=versions,
                ),
                addr,
            )
            return None
        if not answered or kind != QuicPacketType.INITIAL or self._stopping:
            self.figures.discarded["unknown"] += 1
            if kind == QuicPacketType.ONE_RTT:
                self._reset(header, size, addr)
            elif answered and kind == QuicPacketType.INITIAL:
                self._send(closing(header, QuicErrorCode.CONNECTION_REFUSED), addr)
            return None
        original, retried = header.destination_cid, None
        now_s = self._loop.time()
        if header.token:
            try:
                original = self._retry.validate_token(
                    address=addr, destination_cid=header.destination_cid, token=header.token, now=now_s
                )
            except ValueError:
                self.figures.handshakes["token"] += 1
                self._send(closing(header, QuicErrorCode.INVALID_TOKEN), addr)
                return None
            retried = header.destination_cid
        answer = self.doorkeeper.ask(addr[0], retried is not None, now_s)
        if answer == "retry":
            self._ask_again(header, addr, now_s)
        elif answer == "refuse":
            self._send(closing(header, QuicErrorCode.CONNECTION_REFUSED), addr)
        return self._enter(header, addr, original, retried) if answer == "admit" else None

    def _reset(self, header: QuicHeader, size: int, addr: Any) -> None:
        """Notify a client that its connection is lost, as after a restart of this process."""
        reset = stateless_reset(self._reset_token(header.destination_cid), size)
        if reset is not None and self._resets.take(self._loop.time()):
            self._send(reset, addr)

    def _ask_again(self, header: QuicHeader, addr: Any, now_s: float) -> None:
        source_cid = os.urandom(8)
        token = self._retry.create_token(
            address=addr,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source_cid,
            now=now_s,
        )
        assert header.version is not None
        self._send(
            encode_quic_retry(
                version=header.version,
                source_cid=source_cid,
                destination_cid=header.source_cid,
                original_destination_cid=header.destination_cid,
                retry_token=token,
            ),
            addr,
        )

    def _enter(self, header: QuicHeader, addr: Any, original: bytes, retried: bytes | None) -> ServerProtocol:
        now_s = self._loop.time()
        if now_s - self._refreshed_s >= REFRESH_S:
            self._refreshed_s = now_s
            self._certificates.reload_if_changed(self._configuration)
        quic = ScheduledConnection(
            configuration=self._configuration,
            scheduler=self._scheduler,
            limits=TransportLimits(streams=self.front.settings.streams),
            request_certificate=self._ask_certificate,
            traffic=self.figures.traffic,
            reset_token=self._reset_token,
            original_destination_connection_id=original,
            retry_source_connection_id=retried,
        )
        protocol = ServerProtocol(quic, self.front, (addr[0], addr[1]))
        assert self._transport is not None
        protocol.connection_made(self._transport)
        protocol._connection_id_issued_handler = lambda cid: self._by_id.__setitem__(cid, protocol)
        protocol._connection_id_retired_handler = self._retired
        protocol.on_handshake = self.doorkeeper.shook_hands
        protocol.on_end = lambda: self._left(protocol, addr)
        self._by_id[header.destination_cid] = self._by_id[quic.host_cid] = protocol
        self.protocols.add(protocol)
        self.doorkeeper.entered(addr[0])
        self._loop.call_later(HANDSHAKE_S, self._check_handshake, protocol)
        return protocol

    def _retired(self, cid: bytes) -> None:
        self._by_id.pop(cid, None)

    def _check_handshake(self, protocol: ServerProtocol) -> None:
        if protocol in self.protocols and not protocol.quic.handshake_complete:
            protocol.unfinished = "timed-out"
            protocol.close(error_code=QuicErrorCode.CONNECTION_REFUSED, reason_phrase="the handshake took too long")

    def _left(self, protocol: ServerProtocol, addr: Any) -> None:
        if protocol in self.protocols:
            self.protocols.remove(protocol)
            if not protocol.shook_hands:
                self.figures.handshakes[protocol.unfinished] += 1
            self.doorkeeper.left(addr[0], not protocol.shook_hands)
            for cid in [cid for cid, owner in self._by_id.items() if owner is protocol]:
                del self._by_id[cid]

    def _send(self, data: bytes, addr: Any) -> None:
        if self._transport is not None:
            self._transport.sendto(data, addr)


def closing(header: QuicHeader, error_code: int) -> bytes:
    """Return a datagram, far smaller than the one it answers, that ends a connection before any state is kept."""
    assert header.version is not None
    crypto = CryptoPair()
    crypto.setup_initial(cid=header.destination_cid, is_client=False, version=header.version)
    builder = QuicPacketBuilder(
        host_cid=header.destination_cid,
        is_client=False,
        max_datagram_size=SMALLEST_MAX_DATAGRAM_SIZE,
        peer_cid=header.source_cid,
        version=header.version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    buf = builder.start_frame(QuicFrameType.TRANSPORT_CLOSE, capacity=32)
    buf.push_uint_var(error_code)
    buf.push_uint_var(QuicFrameType.PADDING)
    buf.push_uint_var(0)
    return builder.flush()[0][0]
