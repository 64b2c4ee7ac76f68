"""The client-side token buffer: a stream of tokens at its reader's pace (Andes, Sec. 5 and Fig. 8).

    with TokenBuffer(client.chat.completions.create(..., stream=True), tds=4.8) as stream:
        for chunk in stream:
            ...
    print(stream.report())

The server may send as fast as it likes, pause the request to serve others, and go on: the reader sees tokens at
``tds``, for as long as the buffer holds any. A late token is never kept (:mod:`~sloserve.client.pacing`). The source is
read ahead (:mod:`~sloserve.client.read_ahead`) from the making of the buffer on.

Guarantees: every piece comes out, unchanged and in order; an error of the source is raised after all that came before
it; closing the buffer closes the source and drops what is still held.
"""

import asyncio
import time
import weakref
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Generic, Self, TypeVar

from sloserve.client.pacing import BufferReport, ReaderPace
from sloserve.client.pieces import TextCounter
from sloserve.client.read_ahead import Arrival, End, ReadAheadTask, ReadAheadThread
from sloserve.core.clock import Clock, SteadyClock, SystemClock
from sloserve.core.qoe import DEFAULT_TDS, DEFAULT_TTFT_S

T = TypeVar("T")


class TokenBuffer(Generic[T]):
    """An iterator over an iterator, or an async iterator over an async one; for one consumer.

    Close it (``with``, ``async with``, ``close()``, ``aclose()``) to stop early; dropping it does so too. ``close()``
    does not wait: a source that is no stream of the OpenAI SDK over HTTP/1.1 is closed once the piece that it is about
    to give has come. As with async generators, cancelling what awaits the next piece closes the buffer.

    Args:
        source: Gives chunks or events of the SDK, dicts of the same form, or strings.
        tds: Tokens per second at which the reader digests (:mod:`sloserve.core.speeds`).
        ttft_s: Seconds in which the reader expects the first token; only the report uses it.
        sent_s: When the request was sent, in epoch seconds of ``clock``; by default now.
        clock: Gives the time; setting the host's clock while the response comes changes nothing.
        sleep: Waits a number of seconds; for an async source it returns an awaitable.

    Raises: ValueError for an expectation out of range, or a request sent in the future. RuntimeError for an async
    source without a running event loop.
    """

    def __init__(
        self,
        source: Iterable[T] | AsyncIterable[T],
        *,
        tds: float = DEFAULT_TDS,
        ttft_s: float = DEFAULT_TTFT_S,
        sent_s: float | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None] | None] | None = None,
    ) -> None:
        self._pace = ReaderPace(ttft_s=ttft_s, tds=tds)
        self._clock = SteadyClock(SystemClock() if clock is None else clock)
        now_s = self._clock.now_s()
        self._sent_s = now_s if sent_s is None else sent_s
        if self._sent_s > now_s:
            raise ValueError(f"sent_s: {sent_s!r} is after now, {now_s!r}; it is a time of the buffer's clock")
        self._counter = TextCounter()
        self._over = self._failed = False
        self._ahead: ReadAheadThread[T] | ReadAheadTask[T]
        if isinstance(source, AsyncIterable):
            self._sleep = sleep or asyncio.sleep
            self._ahead = ReadAheadTask(source, self._clock)
            self._drop = weakref.finalize(self, self._ahead.abandon)
        else:
            self._sleep = sleep or time.sleep
            self._ahead = ReadAheadThread(source, self._clock)
            self._drop = weakref.finalize(self, self._ahead.stop)
        self._drop.atexit = False

    def report(self) -> BufferReport:
        """Return how the response went for its reader, up to the piece handed on last."""
        return self._pace.report(failed=self._failed)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        ahead = self._thread()
        if self._over:
            raise StopIteration
        came = ahead.get()
        if self._over or isinstance(came, End):
            self._end(came)
            raise StopIteration
        if wait_s := self._arrive(came):
            self._sleep(wait_s)
        return self._release(came)

    def close(self) -> None:
        """End the iteration and close the source."""
        ahead = self._thread()
        if not self._over:
            self._over = True
            self._drop.detach()
            ahead.stop()

    def __enter__(self) -> Self:
        self._thread()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        ahead = self._task()
        if self._over:
            raise StopAsyncIteration
        try:
            came = await ahead.get()
            if self._over or isinstance(came, End):
                self._end(came)
                raise StopAsyncIteration
            if (wait_s := self._arrive(came)) and (waiting := self._sleep(wait_s)) is not None:
                await waiting
        except asyncio.CancelledError:
            await self.aclose()
            raise
        return self._release(came)

    async def aclose(self) -> None:
        """End the iteration and close the source; return when that is done."""
        ahead = self._task()
        if not self._over:
            self._over = True
            self._drop.detach()
            await ahead.stop()

    async def __aenter__(self) -> Self:
        self._task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    def _thread(self) -> ReadAheadThread[T]:
        if isinstance(self._ahead, ReadAheadTask):
            raise TypeError("the source is asynchronous: use 'async for', 'async with' and aclose()")
        return self._ahead

    def _task(self) -> ReadAheadTask[T]:
        if isinstance(self._ahead, ReadAheadThread):
            raise TypeError("the source is synchronous: use 'for', 'with' and close()")
        return self._ahead

    def _arrive(self, came: Arrival[T]) -> float:
        """Return the seconds for which the piece is kept from its reader."""
        self._pace.arrive(came.at_s - self._sent_s, self._counter.text_tokens(came.piece))
        return self._pace.wait_s(self._clock.now_s() - self._sent_s)

    def _release(self, came: Arrival[T]) -> T:
        self._pace.release(self._clock.now_s() - self._sent_s)
        return came.piece

    def _end(self, came: Arrival[T] | End) -> None:
        """Raise the error that the source raised, unless the buffer was closed."""
        if self._over or isinstance(came, Arrival):
            return
        self._over = True
        self._drop.detach()
        if came.error is not None:
            self._failed = True
            raise came.error
