"""A line for each response in uvicorn's access log, which its flags turn on and off for TCP and HTTP/3 alike.

The query is left out: some clients put a key there.
"""

import logging
from urllib.parse import quote

from sloserve.wire.asgi import Scope

_logger = logging.getLogger("uvicorn.access")


def answered(scope: Scope, status: int) -> None:
    """Log that a response with this status begins."""
    if _logger.hasHandlers():  # as uvicorn finds out whether it is on
        host, port = scope["client"]
        method, path = quote(scope["method"]), quote(scope["path"])
        _logger.info('%s - "%s %s HTTP/%s" %d', f"{host}:{port}", method, path, scope["http_version"], status)
