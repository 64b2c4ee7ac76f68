"""Bodies of requests that are answered already: what still comes of them is read and discarded, within bounds.

A browser looks at the response once its upload has ended. If the upload is stopped instead (STOP_SENDING, whatever its
error code, and also after the response), Chromium's ``fetch()`` never returns. So any body that a server takes by
default may come to its end, and what is stopped is longer, or never ends.
"""

import asyncio
from collections.abc import Callable

MAX_BYTES = 32 * 2**20
"""Most bytes discarded of one body: the default of ``max_body_bytes``."""
MAX_S = 30.0
"""Longest that one body is discarded: nginx waits as long (``lingering_time``)."""


class Leftovers:
    """The unread bodies of one connection.

    Args:
        stop: Function that asks the client to send no more of a stream.
    """

    def __init__(self, stop: Callable[[int], None]) -> None:
        self._stop = stop
        self._left: dict[int, tuple[int, asyncio.TimerHandle]] = {}

    def begin(self, stream_id: int) -> None:
        """Begin to discard the body of a request that is answered before its body has ended."""
        timer = asyncio.get_running_loop().call_later(MAX_S, self._too_much, stream_id)
        self._left[stream_id] = MAX_BYTES, timer

    def came(self, stream_id: int, size_bytes: int) -> None:
        """Count a part of a body; for a request that is not answered yet it changes nothing."""
        if stream_id in self._left:
            left_bytes, timer = self._left[stream_id]
            self._left[stream_id] = left_bytes - size_bytes, timer
            if left_bytes < size_bytes:
                self._too_much(stream_id)

    def ended(self, stream_id: int) -> None:
        """Record that nothing more of the stream comes."""
        if stream_id in self._left:
            self._left.pop(stream_id)[1].cancel()

    def clear(self) -> None:
        """Forget all bodies, since the connection is over."""
        for stream_id in [*self._left]:
            self.ended(stream_id)

    def _too_much(self, stream_id: int) -> None:
        self.ended(stream_id)
        self._stop(stream_id)
