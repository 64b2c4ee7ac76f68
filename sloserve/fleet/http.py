"""The HTTP that servers of a fleet speak with clients that they do not know."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn

KEEP_ALIVE_S: Final = 75
"""An idle connection is kept for so long. Clients let go of theirs after 5 to 15 s, proxies after 60 s, and are to be
the first: a request that is sent as its connection closes is reset, and looks like a server that died of it."""


class EmbeddedServer(uvicorn.Server):
    """Leaves signals to the process that it is a part of."""

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
