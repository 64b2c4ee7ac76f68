"""A request's time to live, ``x-request-ttl-ms``: without a first token by then it gets a 429 and leaves the engine.

What is answered is held until the first token, since a stream's head, and of some routes the first events, leave before
anything is computed, and a status cannot be taken back. When the time is over the app is told that its client has left,
upon which vLLM aborts what it began. A reply in one piece whose first token came in time is not given up.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive, Send

GRACE_S = 5.0
"""An app that has not noticed by then that its client left is cancelled."""
MAX_HELD_BYTES = 1 << 20
"""An answer with more before its first token is let go, and not given up any more."""
_LEFT: Message = {"type": "http.disconnect"}


class TimeToLive:
    """One request's; ``receive`` and ``send`` stand between the server and the app."""

    def __init__(self, ttl_s: float, is_waiting: Callable[[], bool], receive: Receive, send: Send) -> None:
        """is_waiting: whether it has no token yet."""
        self._ttl_s = ttl_s
        self._is_waiting = is_waiting
        self._receive = receive
        self._send = send
        self._over = asyncio.Event()
        self._held: list[Message] = []
        self._held_bytes = 0
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
        if self._begun:
            await self._send(message)
            return
        self._held.append(message)
        self._held_bytes += len(message.get("body", b""))
        if message["type"] == "http.response.start" or (message.get("more_body", False) and self._may_hold()):
            return
        self._begun = True
        for held in self._held:
            await self._send(held)
        self._held.clear()

    def _may_hold(self) -> bool:
        return not self._held_bytes or (self._held_bytes <= MAX_HELD_BYTES and self._is_waiting())

    async def run(self, app: Awaitable[None], expired: Callable[[], Awaitable[None]]) -> None:
        """Runs ``app``, which serves the request, and ``expired``, which answers, once its time is over."""
        serving = asyncio.ensure_future(app)
        try:
            await asyncio.wait({serving}, timeout=self._ttl_s)
            if serving.done() or self._begun or not self._is_waiting():
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
                serving.exception()  # of an app whose client left: it is not told
