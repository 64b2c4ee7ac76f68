"""The HTTP/3 listener beside vLLM's TCP port, in the same process and in front of the same application."""

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.types import Message, Send

from sloserve.core.errors import ConfigError
from sloserve.settings import PluginSettings
from sloserve.vllm_plugin.server.http3 import client_authorities, udp_address

if TYPE_CHECKING:
    from sloserve.quic.listener import Listener

logger = logging.getLogger(__name__)

ALT_SVC_MAX_AGE_S = 3600


class Http3Front:
    """Starts and ends with the server; without ``--http3`` it does nothing."""

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._alt_svc: tuple[bytes, bytes] | None = None

    async def start(self, app: Any, args: Any, settings: PluginSettings) -> str | None:
        """Listens, and says so to print: where, and which certificate to trust.

        What was checked before the model was loaded may have changed since: then TCP is served alone, with an error in
        the log.
        """
        if not settings.http3.enabled:
            return None
        try:
            return await self._start(app, args, settings)
        except ConfigError as error:
            logger.error("HTTP/3 is off, and TCP alone is served: %s", error)
        except Exception:
            logger.exception("HTTP/3 is off, and TCP alone is served")
        await self.stop(0.0)
        return None

    async def _start(self, app: Any, args: Any, settings: PluginSettings) -> str:
        from sloserve.quic.certificates import CertificateFiles, make_certificate, write_certificate
        from sloserve.quic.listener import listen
        from sloserve.quic.service import by_class

        certfile, keyfile, trust = args.ssl_certfile, args.ssl_keyfile, ""
        if settings.http3.self_signed:
            self._folder = tempfile.TemporaryDirectory(prefix="sloserve-http3-")
            made = write_certificate(Path(self._folder.name), make_certificate())
            certfile, keyfile = map(str, made)
            trust = f", with the certificate {certfile}"
        self._listener = await listen(
            app,
            settings.http3,
            CertificateFiles(certfile, keyfile, args.enable_ssl_refresh),
            udp_address(args, settings.http3),
            by_class(settings.rules, settings.header_rules),
            client_authorities(args),
        )
        port = self._listener.port
        self._alt_svc = (b"alt-svc", f'h3=":{port}"; ma={ALT_SVC_MAX_AGE_S}'.encode())
        return f"HTTP/3 on UDP port {port}, streams served by {settings.http3.scheduler}{trust}"

    async def stop(self, linger_s: float) -> None:
        """Ends the listener once all requests are answered, or after ``linger_s``."""
        self._alt_svc = None
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
