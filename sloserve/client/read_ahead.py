"""Read a stream to its end as fast as it comes, and record the times; a thread reads an iterator, a task an async one.

The connection is thus never throttled and arrival times are the server's, whatever pace the pieces are taken at. Pieces
that are not taken yet are kept in memory, at most the whole response. The stream is closed when it ends, fails or is
stopped.
"""

import asyncio
import contextvars
import inspect
import socket
import threading
from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from sloserve.core.clock import Clock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Arrival(Generic[T]):
    """A piece of the stream, and when it came, by the reader's clock."""

    at_s: float
    piece: T


@dataclass(frozen=True, slots=True)
class End:
    """End of the stream.

    Args:
        error: The error that the stream raised; ``None`` without one.
    """

    error: BaseException | None


class ReadAheadThread(Generic[T]):
    """Reads an iterator. The thread is a daemon: a stalled stream does not keep the program from ending."""

    def __init__(self, source: Iterable[T], clock: Clock) -> None:
        self._source, self._clock = source, clock
        self._came: SimpleQueue[Arrival[T] | End] = SimpleQueue()
        self._stopped = threading.Event()
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(self._read,), name="sloserve-token-buffer", daemon=True).start()

    def get(self) -> Arrival[T] | End:
        """Return the next piece, once it is there."""
        return self._came.get()

    def stop(self) -> None:
        """Stop reading after the piece that is awaited, without waiting for it."""
        self._stopped.set()
        self._came.put(End(None))
        _hang_up(self._source)

    def _read(self) -> None:
        error: BaseException | None = None
        try:
            try:
                for piece in self._source:
                    self._came.put(Arrival(self._clock.now_s(), piece))
                    if self._stopped.is_set():
                        break
            finally:
                close = getattr(self._source, "close", None)
                if close is not None:
                    close()
        except BaseException as raised:  # whatever it is, the reader of the pieces gets it
            error = raised
        self._came.put(End(error))


class ReadAheadTask(Generic[T]):
    """Reads an async iterator in a task of the running event loop.

    Raises: RuntimeError without a running event loop.
    """

    def __init__(self, source: AsyncIterable[T], clock: Clock) -> None:
        self._source, self._clock = source, clock
        self._came: asyncio.Queue[Arrival[T] | End] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._read(), name="sloserve-token-buffer")

    async def get(self) -> Arrival[T] | End:
        """Return the next piece, once it is there."""
        return await self._came.get()

    async def stop(self) -> None:
        """Cancel the reading and wait until the stream is closed."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def abandon(self) -> None:
        """Cancel the reading from anywhere, also from a garbage collection in another thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _read(self) -> None:
        error: BaseException | None = None
        try:
            try:
                async for piece in self._source:
                    self._came.put_nowait(Arrival(self._clock.now_s(), piece))
            finally:
                await _close(self._source)
        except (Exception, asyncio.CancelledError) as raised:
            error = raised
        self._came.put_nowait(End(error))


async def _close(source: object) -> None:
    close = getattr(source, "aclose", None) or getattr(source, "close", None)
    closing = close() if close is not None else None
    if inspect.isawaitable(closing):
        await closing


def _hang_up(source: object) -> None:
    """End the connection under an SDK's stream, to wake a thread that waits for its next piece.

    To close a socket does not wake the thread that reads from it, and a server that has paused the request may send
    nothing for long. HTTP/2 shares its connection among requests, so there the awaited piece must come first.
    """
    response: Any = getattr(source, "response", None)
    if getattr(response, "is_closed", True) or getattr(response, "http_version", None) != "HTTP/1.1":
        return
    network = response.extensions.get("network_stream")
    connection = network.get_extra_info("socket") if network is not None else None
    if isinstance(connection, socket.socket):
        with suppress(OSError):  # the server was faster
            # This is the method of the plain socket: the method of TLS would also drop its state under the thread that
            # reads.
            socket.socket.shutdown(connection, socket.SHUT_RDWR)
