"""Comments in the stream of a response before its first token: the place of the request, and the rest of its wait.

They stand between whole events alone, and none follows the first token. One comment at most is on its way, however
slowly the client reads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sloserve.wire.asgi import Message, Send
from sloserve.wire.event_stream import EVENT_STREAM
from sloserve.wire.progress import RequestProgress, comment

logger = logging.getLogger(__name__)


class WaitingComments:
    """A response on its way to the client, with comments while the request waits.

    The owner must call :meth:`stop` when the response has ended, or its client has left.
    """

    def __init__(
        self, send: Send, progress: Callable[[], RequestProgress | None], every_s: float, head: Message | None = None
    ) -> None:
        """Build the comments of one response.

        Args:
            send: Sends messages to the client.
            progress: Returns how far the request has come; ``None`` while there is nothing to say.
            every_s: Seconds from one comment to the next.
            head: Begin of the response to send before the first comment if the response has not begun by then; ``None``
                to begin with the response.
        """
        self._send, self._progress, self._every_s = send, progress, every_s
        self._head = head
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_over = self._is_sending = False
        self._is_between_events = True
        self.has_begun = False
        """Whether the begin of a response was sent."""

    def start(self) -> None:
        """Begin to send comments."""
        if self._task is None and not self._is_over:
            self._task = asyncio.create_task(self._comment())

    def stop(self) -> None:
        """Send no more comments; one that is on its way is sent whole, since a part of it could spoil what follows."""
        self._is_over = True
        if self._task is not None and not self._is_sending:
            self._task.cancel()
        self._task = None

    def send(self, message: Message) -> Awaitable[None]:
        """Send a message of the response, after a comment that is on its way."""
        return self._send(message) if self._is_over and not self._is_sending else self._send_in_order(message)

    async def _send_in_order(self, message: Message) -> None:
        async with self._lock:
            if message["type"] == "http.response.start":
                await self._begin(message)
                self.start()
                return
            await self._send(message)
            part = message.get("body", b"")
            self._is_between_events = part.endswith(b"\n\n") if part else self._is_between_events
            if not message.get("more_body", False) or not self._waits():
                self.stop()

    async def _begin(self, head: Message) -> None:
        if not self.has_begun:
            self.has_begun = True
            await self._send(head)

    def _waits(self) -> bool:
        progress = self._progress()
        return progress is None or progress.is_waiting

    async def _comment(self) -> None:
        try:
            while not self._is_over:
                await asyncio.sleep(self._every_s)
                async with self._lock:
                    progress = self._progress()
                    if progress is not None and not progress.is_waiting:
                        return
                    if progress is not None and self._is_between_events:
                        await self._send_comment(progress)
        except OSError:  # the client has left
            pass
        except Exception:
            logger.exception("comments of a waiting request ended; the response goes on without them")

    async def _send_comment(self, progress: RequestProgress) -> None:
        self._is_sending = True
        try:
            if self._head is not None:
                await self._begin(self._head)
            await self._send({"type": "http.response.body", "body": comment(progress), "more_body": True})
        finally:
            self._is_sending = False


def may_have_comments(message: Message) -> bool:
    """Return whether comments may stand in the response that ``message`` begins: an event stream as it is written."""
    headers = {name.lower(): value for name, value in message["headers"]}
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip()
    plain = headers.get(b"content-encoding", b"identity").strip() == b"identity"
    return message["status"] == 200 and kind == EVENT_STREAM and plain and b"content-length" not in headers
