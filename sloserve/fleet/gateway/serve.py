"""A gateway behind a server of HTTP/1.1. Another server may serve the same app, over another version of HTTP."""

from pathlib import Path
from typing import Final

import uvicorn

from sloserve.fleet.gateway.gateway import Gateway, check_address

LINGER_S: Final = 5
"""At the end, for streams that are under way and clients that do not read."""


def server(gateway: Gateway, host: str, port: int, keys: Path | None) -> uvicorn.Server:
    """Serves once its ``serve()`` runs. Raises: ConfigError where it may not be reached at this address."""
    check_address(host, keys)
    config = uvicorn.Config(
        gateway.app,
        host=host,
        port=port,
        lifespan="on",
        ws="none",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        log_level="warning",
        timeout_graceful_shutdown=LINGER_S,
    )
    return uvicorn.Server(config)
