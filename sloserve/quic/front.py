"""An HTTP/3 listener beside a TCP port: in front of the same application, with the certificates of both."""

import importlib.util
import ssl
import tempfile
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sloserve.core.addresses import is_exposed
from sloserve.core.errors import ConfigError
from sloserve.quic.settings import Http3Settings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from sloserve.quic.listener import Listener
    from sloserve.quic.service import Classify

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

ALT_SVC_MAX_AGE_S: Final = 3600
EXTRA: Final = "pip install 'sloserve[http3]'"


@dataclass(frozen=True, slots=True)
class Tls:
    """As vLLM's flags ``--ssl-*``. cert_reqs: what clients must show, as ``ssl.CERT_REQUIRED``. refresh: files that
    change are read for the next connection.
    """

    certfile: str | None = None
    keyfile: str | None = None
    ca_certs: str | None = None
    cert_reqs: int = ssl.CERT_NONE
    refresh: bool = False

    @property
    def client_authorities(self) -> str | None:
        """Who must have signed a client's certificate; ``None`` where clients need none."""
        return self.ca_certs if self.cert_reqs == ssl.CERT_REQUIRED else None


def check_installed() -> None:
    """Raises: ConfigError without the extra."""
    if importlib.util.find_spec("aioquic") is None:
        raise ConfigError(f"--http3 needs aioquic, which is not installed: {EXTRA}")


def check(settings: Http3Settings, tls: Tls, address: tuple[str, int]) -> None:
    """Raises: ConfigError for whatever would keep a listener at this UDP address from being what was asked for."""
    check_installed()
    if settings.self_signed and tls.certfile:
        raise ConfigError("--http3-self-signed beside --ssl-certfile: give one of them")
    if settings.self_signed and is_exposed(address[0]):
        raise ConfigError(
            f"--http3-self-signed is for localhost, and the server listens on {address[0]}; give --ssl-certfile"
        )
    if not settings.self_signed and not (tls.certfile and tls.keyfile):
        raise ConfigError(
            "--http3 needs a certificate: --ssl-certfile and --ssl-keyfile, or --http3-self-signed for localhost"
        )
    if tls.cert_reqs == ssl.CERT_REQUIRED and not tls.ca_certs:
        raise ConfigError(
            "--ssl-cert-reqs 2 asks clients for a certificate; --ssl-ca-certs says who may have signed it"
        )
    from aioquic.quic.configuration import QuicConfiguration

    from sloserve.quic import self_check
    from sloserve.quic.certificates import CertificateFiles
    from sloserve.quic.listener import bound

    self_check.check(settings.scheduler)
    bound(*address).close()
    if tls.certfile and tls.keyfile:
        CertificateFiles(tls.certfile, tls.keyfile).load(QuicConfiguration(is_client=False))


class Http3Front:
    """Starts and ends with a server on TCP."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._alt_svc: tuple[bytes, bytes] | None = None
        self._no_metrics: Callable[[], None] = lambda: None

    async def listen(
        self,
        app: Any,
        settings: Http3Settings,
        tls: Tls,
        address: tuple[str, int],
        classify: "Classify",
        registry: "CollectorRegistry",
    ) -> str:
        """Listens, and says where, and which certificate to trust. registry: of metrics. Raises: ConfigError."""
        from sloserve.quic.certificates import CertificateFiles, make_certificate, write_certificate
        from sloserve.quic.listener import listen
        from sloserve.quic.metrics import Http3Collector

        certfile, keyfile, trust = tls.certfile or "", tls.keyfile or "", ""
        if settings.self_signed:
            self._folder = tempfile.TemporaryDirectory(prefix="sloserve-http3-")
            made = write_certificate(Path(self._folder.name), make_certificate())
            certfile, keyfile = map(str, made)
            trust = f", with the certificate {certfile}"
        files = CertificateFiles(certfile, keyfile, tls.refresh)
        self._listener = await listen(app, settings, files, address, classify, tls.client_authorities)
        collector = Http3Collector(self._listener)
        registry.register(collector)
        self._no_metrics = lambda: registry.unregister(collector)
        port = self._listener.port
        self._alt_svc = (b"alt-svc", f'h3=":{port}"; ma={ALT_SVC_MAX_AGE_S}'.encode())
        return f"HTTP/3 on UDP port {port}, streams served by {settings.scheduler}{trust}"

    def going_away(self) -> None:
        """Takes no more requests, and tells clients so at once; what they have asked for is answered."""
        self._alt_svc = None
        if self._listener is not None:
            self._listener.going_away()

    async def stop(self, linger_s: float) -> None:
        """Ends the listener once all requests are answered, or after ``linger_s``."""
        self._alt_svc = None
        self._no_metrics()
        self._no_metrics = lambda: None
        if self._listener is not None:
            await self._listener.stop(linger_s)
        if self._folder is not None:
            self._folder.cleanup()

    def advertising(self, scope: Any, send: Send) -> Send:
        """``send``, which tells clients on TCP where HTTP/3 is served."""
        alt_svc = self._alt_svc
        if alt_svc is None or scope["http_version"] == "3":
            return send

        async def advertise(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), alt_svc]
            await send(message)

        return advertise
