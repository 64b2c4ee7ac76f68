"""An HTTP/3 listener beside a TCP port: in front of the same application, with the certificates of both."""

import ssl
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from aioquic.quic.configuration import QuicConfiguration
from prometheus_client import CollectorRegistry

from sloserve.core.addresses import is_exposed
from sloserve.core.errors import ConfigError
from sloserve.http3 import self_check
from sloserve.http3.certificates import CertificateFiles, make_certificate, write_certificate
from sloserve.http3.listener import Listener, bound, listen
from sloserve.http3.listener_metrics import Http3Collector
from sloserve.wire.optional_http3 import Http3Settings, Tls
from sloserve.wire.resolve import Classify

ALT_SVC_MAX_AGE_S: Final = 3600


def check(settings: Http3Settings, tls: Tls, address: tuple[str, int]) -> None:
    """Raise ConfigError for settings with which a listener at this UDP address could not do what was asked for."""
    if settings.self_signed and tls.certfile:
        raise ConfigError("--http3-self-signed and --ssl-certfile exclude each other; give one of them")
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
            "--ssl-cert-reqs 2 asks clients for a certificate; name the authorities that sign it with --ssl-ca-certs"
        )
    self_check.check(settings.scheduler)
    bound(*address).close()
    if tls.certfile and tls.keyfile:
        CertificateFiles(tls.certfile, tls.keyfile).load(QuicConfiguration(is_client=False))


class BesideTcp:
    """A listener that is announced to clients on TCP.

    Args:
        where: a description of where it listens, for the operator to read.
        held: Resources that are released at its end.
    """

    def __init__(self, listener: Listener, where: str, held: AsyncExitStack) -> None:
        self.listener = listener
        self.where = where
        self.alt_svc = (b"alt-svc", f'h3=":{listener.port}"; ma={ALT_SVC_MAX_AGE_S}'.encode())
        self.going_away = listener.going_away
        self._held = held

    async def stop(self, linger_s: float) -> None:
        """End the listener once all requests are answered, or after ``linger_s``; another call may shorten that."""
        await self.listener.stop(linger_s)
        await self._held.aclose()


async def serve(
    app: Any,
    settings: Http3Settings,
    tls: Tls,
    address: tuple[str, int],
    classify: Classify,
    registry: CollectorRegistry,
) -> BesideTcp:
    """Listen for HTTP/3 until the result is stopped; the metrics are in ``registry`` until then.

    Raises: ConfigError for settings, certificates or an address that do not work.
    """
    certfile, keyfile, trust = tls.certfile or "", tls.keyfile or "", ""
    async with AsyncExitStack() as held:
        if settings.self_signed:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="sloserve-http3-")))
            certfile, keyfile = map(str, write_certificate(folder, make_certificate()))
            trust = f", with the certificate {certfile}"
        files = CertificateFiles(certfile, keyfile, tls.refresh)
        listener = await listen(app, settings, files, address, classify, tls.client_authorities)
        held.push_async_callback(listener.stop, 0.0)
        collector = Http3Collector(listener)
        registry.register(collector)
        held.callback(registry.unregister, collector)
        where = f"HTTP/3 on UDP port {listener.port}, streams served by {settings.scheduler}{trust}"
        return BesideTcp(listener, where, held.pop_all())
