"""A request's time to live, ``x-request-ttl-ms``: who has no first token by then gets a 429 and leaves the engine.

The answer's head is held until its first byte, since a stream's head leaves before anything is computed, and a status
cannot be taken back. When the time is over the app is told that its client has left, upon which vLLM aborts what it
began. A reply in one piece whose first token came in time is not given up.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive, Send

GRACE_S = 5.0
"""An app that has not noticed by then that its client left is cancelled."""
_LEFT: Message = {"type": "http.disconnect"}


class TimeToLive:
    """One request's; ``receive`` and ``send`` stand between the server and whoever serves it."""

    def __init__(self, ttl_s: float, receive: Receive, send: Send) -> None:
        self._ttl_s = ttl_s
        self._receive = receive
        self._send = send
        self._over = asyncio.Event()
        self._head: Message | None = None
        self._begun = False

    async def receive(self) -> Message:
        """The server's next message, or that the client has left."""
        if self._over.is_set():
            return _LEFT
        message, over = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({message, over}, return_when=asyncio.FIRST_COMPLETED)
            return message.result() if message.done() else _LEFT
        finally:
            message.cancel()
            over.cancel()

    async def send(self, message: Message) -> None:
        if self._over.is_set():
            return
        if message["type"] == "http.response.start":
            self._head = message
            return
        if self._head is not None:
            if message.get("more_body", False) and not message.get("body"):
                return
            head, self._head, self._begun = self._head, None, True
            await self._send(head)
        await self._send(message)

    async def run(
        self, app: Awaitable[None], is_waiting: Callable[[], bool], expired: Callable[[], Awaitable[None]]
    ) -> None:
        """Runs ``app``, which serves the request, and ``expired``, which answers, once its time is over.

        is_waiting: whether it has no token yet; asked once, when the time is over.
        """
        serving = asyncio.ensure_future(app)
        try:
            await asyncio.wait({serving}, timeout=self._ttl_s)
            if serving.done() or self._begun or not is_waiting():
                await serving
                return
            self._over.set()
            await expired()
            await asyncio.wait({serving}, timeout=GRACE_S)
        finally:
            if not serving.done():
                serving.cancel()
                await asyncio.wait({serving})
            if self._over.is_set() and not serving.cancelled():
                serving.exception()  # of an app whose client left: nobody is to be told
