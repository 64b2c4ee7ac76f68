"""Routes of a gateway for watchers of the fleet: the feed, and the page, with files that hold no data.

For all but these files the admin key is checked before anything else of a request.
"""

import os
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from sloserve.wire.asgi import CLOSE, Receive, Scope, Send, refuse, shows_admin_key
from sloserve.wire.live_feed import LiveFeed, View
from sloserve.wire.watch_page import sent_page

PREFIX: Final = "/sloserve/"
EVENTS: Final = PREFIX + "events"


class WatchRoutes:
    """ASGI app of the routes below :data:`PREFIX`.

    Args:
        key: Admin key.
        read: View of the fleet, called in the event loop.
    """

    def __init__(self, key: str, read: Callable[[], View]) -> None:
        self._key = os.fsencode(key)
        self._feed = LiveFeed(read, in_loop=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].removeprefix(PREFIX)
        if await sent_page(scope, send, name) or not await shows_admin_key(scope, send, self._key):
            return
        if scope["path"] != EVENTS:
            message = f"there is no such route; there is GET {EVENTS}"
            await refuse(send, HTTPStatus.NOT_FOUND, message, headers=[CLOSE])
        elif scope["method"] != "GET":
            headers = [("allow", "GET"), CLOSE]
            await refuse(send, HTTPStatus.METHOD_NOT_ALLOWED, f"{EVENTS}: the method is GET", headers=headers)
        else:
            await self._feed.serve(receive, send)

    def close(self) -> None:
        """End the responses to all watchers, and take no more."""
        self._feed.close()
