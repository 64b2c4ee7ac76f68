"""Watch on the client of a request: the request goes on only while the client is there."""

import asyncio
from types import TracebackType
from typing import Self

from sloserve.wire.asgi import ClientLeft, Receive


class WhileClientWaits:
    """Ends its block with :class:`ClientLeft` when the client leaves; the body must have been read before."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watch = asyncio.create_task(self._watching())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.answered()
        if self._left and kind is asyncio.CancelledError and self._task.uncancel() == 0:
            raise ClientLeft from None

    def give_up(self) -> None:
        """End the block as if the client had left, since it does not read."""
        if not self._left:  # a second cancellation, before the block runs again, would be left over
            self._left = True
            self._task.cancel()

    def answered(self) -> None:
        """Stop watching the client: the response is complete except for its last message.

        After that message servers report that the client has left.
        """
        self._watch.cancel()

    async def _watching(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.give_up()
