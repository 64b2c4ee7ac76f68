"""The HTTP that servers of a fleet speak with clients that they do not know."""

from typing import Any


def bounded_http() -> Any:
    """For uvicorn: httptools costs half of what h11 does, which bounds heads by itself."""
    try:
        from sloserve.fleet.bounded_protocol import BoundedProtocol
    except ImportError:
        return "h11"
    return BoundedProtocol
