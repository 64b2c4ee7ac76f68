"""Enforce a request's time to live, ``x-request-ttl-ms``: without a first token by then it gets a 429 and is aborted.

The response is held back until the first token, since a stream's head, and on some routes the first events, leave
before anything is computed, and a status cannot be taken back. When the time is over, the app is notified that its
client has left, upon which vLLM aborts what it began. A response in one piece is not given up if its first token came
in time.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Message, Receive, Send

GRACE_S = 5.0
"""Seconds after which an app that has not noticed that its client left is cancelled."""
MAX_HELD_BYTES = 1 << 20
"""Bytes of a response held before its first token; a longer one is released and no longer given up."""
_LEFT: Message = {"type": "http.disconnect"}


class TimeToLive:
    """The limit of one request; ``receive`` and ``send`` stand between the server and the app."""

    def __init__(self, ttl_s: float, is_waiting: Callable[[], bool], receive: Receive, send: Send) -> None:
        """Build the limit of one request.

        Args:
            ttl_s: Time to live, in seconds from now.
            is_waiting: Returns whether the request has no token yet.
            receive: Receives the server's messages.
            send: Sends messages to the client.
        """
        self._ttl_s = ttl_s
        self._is_waiting = is_waiting
        self._receive = receive
        self._send = send
        self._over = asyncio.Event()
        self._held: list[Message] = []
        self._held_bytes = 0
        self._begun = False

    async def receive(self) -> Message:
        """Return the server's next message, or a disconnect once the time is over."""
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
        """Run ``app``, which serves the request, and once its time is over ``expired``, which sends the refusal."""
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
                serving.exception()  # of an app with a client that left: nothing is sent
