"""The HTTP/3 listener beside vLLM's TCP port, in the same process and in front of the same application."""

import logging
from typing import Any

import prometheus_client

from sloserve.core.errors import ConfigError
from sloserve.quic import front
from sloserve.settings import PluginSettings
from sloserve.vllm_plugin.server.http3 import tls_of, udp_address

logger = logging.getLogger(__name__)


class Http3Front(front.Http3Front):
    """Starts and ends with the server; without ``--http3`` it does nothing."""

    async def start(self, app: Any, args: Any, settings: PluginSettings) -> str | None:
        """Listens, and says so to print: where, and which certificate to trust.

        What was checked before the model was loaded may have changed since: then TCP is served alone, with an error in
        the log.
        """
        if not settings.http3.enabled:
            return None
        try:
            from sloserve.quic.service import by_class

            classify = by_class(settings.rules, settings.header_rules)
            tls, address = tls_of(args), udp_address(args, settings.http3)
            return await self.listen(app, settings.http3, tls, address, classify, prometheus_client.REGISTRY)
        except ConfigError as error:
            logger.error("HTTP/3 is off, and TCP alone is served: %s", error)
        except Exception:
            logger.exception("HTTP/3 is off, and TCP alone is served")
        await self.stop(0.0)
        return None
