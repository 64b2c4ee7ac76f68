"""HTTP as servers of a fleet speak it with unknown clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn

KEEP_ALIVE_S: Final = 75
"""Seconds for which an idle connection is kept. Clients close theirs after 5 to 15 s, proxies after 60 s, and should be
first: a request that is sent as its connection closes is reset, which looks as if it had killed the server."""


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
