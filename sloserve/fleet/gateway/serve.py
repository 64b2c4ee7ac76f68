"""The server of a gateway's app over HTTP/1.1. Another server may serve the same app, over another version of HTTP."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import uvicorn

from sloserve.fleet.http import KEEP_ALIVE_S, bounded_http
from sloserve.wire.asgi import Receive, Scope, Send

App = Callable[[Scope, Receive, Send], Awaitable[None]]


def config(app: App, **given: Any) -> uvicorn.Config:
    """Return the configuration of a server of the app.

    Args:
        app: App of the gateway.
        **given: Settings of uvicorn that say where it listens, and how it stops.
    """
    # The gateway reads no headers of proxies; no key, prompt or tenant may reach an access log.
    fixed: dict[str, Any] = {
        "http": bounded_http(),
        "interface": "asgi3",
        "lifespan": "on",
        "ws": "none",
        "access_log": False,
        "proxy_headers": False,
        "server_header": False,
        "timeout_keep_alive": KEEP_ALIVE_S,
    }
    return uvicorn.Config(app, log_config=None, **(fixed | given))


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a process that serves streams, on uvloop if it is installed.

    vLLM brings uvloop, which halves the cost of a stream's events.
    """
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
