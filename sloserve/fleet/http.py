"""HTTP as servers of a fleet speak it with unknown clients."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from ssl import SSLContext
from typing import Any, Final, NoReturn, Protocol

import uvicorn

from sloserve.fleet.supervised import supervised

KEEP_ALIVE_S: Final = 75
"""Seconds for which an idle connection is kept. Clients close theirs after 5 to 15 s, proxies after 60 s, and should be
first: a request that is sent as its connection closes is reset, which looks as if it had killed the server."""

_CERTIFICATES_S: Final = 600.0
"""Seconds between looks for certificates that end, or that were renewed elsewhere."""


class Renewable(Protocol):
    """Certificates that are renewed while they are used."""

    def refresh(self) -> None: ...


class EmbeddedServer(uvicorn.Server):
    """A server that leaves signals to the process that it is a part of."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bounded_http() -> Any:
    """Return uvicorn's protocol class: httptools costs half of what h11 does, which bounds headers by itself."""
    try:
        from sloserve.fleet.bounded_protocol import BoundedProtocol
    except ImportError:
        return "h11"
    return BoundedProtocol


async def keep_renewed(certificates: Renewable) -> NoReturn:
    """Renew certificates that end, and read certificates that were renewed elsewhere, until cancelled."""

    async def turn() -> None:
        await asyncio.to_thread(certificates.refresh)

    await supervised("certificates of agents are not renewed", turn, _CERTIFICATES_S)


def endpoint_server(app: Any, tls: SSLContext | None) -> EmbeddedServer:
    """Return a server of an agent's endpoint.

    Args:
        app: ASGI app.
        tls: TLS context; ``None`` for an endpoint without TLS.
    """
    config = uvicorn.Config(
        app,
        http=bounded_http(),
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    config.ssl = tls
    return EmbeddedServer(config)
