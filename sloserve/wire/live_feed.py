"""A feed of what a server does now: server-sent events, a snapshot first and then changes, twice a second.

A *view* is one object. It is read again for each event while there are watchers, and not at all without them. Its part
``rows`` is an object of arrays by key; in a change it holds the rows that are new or different, and ``null`` for rows
that are gone. Every other part of a change replaces the one before; a part that is missing has not changed. A snapshot
may have one part more, ``history``, which no change repeats.

A watcher that does not read as fast as frames come is dropped, and never waited for. Any number may ask, but only
:data:`MOST_WATCHERS` are served by one process, and no frame is longer than :data:`MOST_BYTES`.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from sloserve.wire.asgi import CLOSE, ClientLeft, Receive, Send, refuse
from sloserve.wire.client import WhileClientWaits

logger = logging.getLogger(__name__)

EVERY_S: Final = 0.5
MOST_WATCHERS: Final = 8
MOST_BYTES: Final = 64 * 1024
ROWS: Final = "rows"
_MOST_MORE_BYTES = 12 * 1024
_MOST_VIEW_BYTES = MOST_BYTES - _MOST_MORE_BYTES
"""Most bytes of a view: a change may name each old row as gone, beside all rows of the new view, and a snapshot has the
history.
"""
HISTORY: Final = "history"
_BEHIND = 4
"""Most frames that a watcher may be behind: two seconds."""
_HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-store"),
    ("x-accel-buffering", "no"),
    ("x-content-type-options", "nosniff"),
)

View = dict[str, Any]


def changes(before: View, now: View) -> View:
    """Return the change that turns the view ``before`` into ``now``; both have the same parts."""
    found = {name: part for name, part in now.items() if name != ROWS and part != before[name]}
    rows, old = now[ROWS], before[ROWS]
    changed = {key: row for key, row in rows.items() if row != old.get(key)}
    changed |= {key: None for key in old if key not in rows}
    return found | {ROWS: changed} if changed else found


def fitted(view: View) -> View:
    """Return ``view`` with only as many of its rows, from the first, as fit into a frame.

    Raises: ValueError if it is too long even without rows.
    """
    spare = _MOST_VIEW_BYTES - len(_json({**view, ROWS: {}}))
    if spare < 0:
        raise ValueError(f"the feed's view takes {_MOST_VIEW_BYTES - spare} bytes without rows, above {MOST_BYTES}")
    kept = {}
    for key, row in view[ROWS].items():
        spare -= len(_json({key: row}))
        if spare < 0:
            break
        kept[key] = row
    return {**view, ROWS: kept}


def recent(history: View) -> View:
    """Return ``history`` with only as many of its latest rows as a snapshot has room for."""
    spare, kept = _MOST_MORE_BYTES - len(_json({HISTORY: {**history, ROWS: []}})), 0
    for row in reversed(history[ROWS]):
        spare -= len(_json(row)) + 1
        if spare < 0:
            break
        kept += 1
    return {**history, ROWS: history[ROWS][len(history[ROWS]) - kept :]}


def frame(kind: str, value: View) -> bytes:
    """Return one event as bytes of the stream.

    Args:
        kind: Type of the event, ``snapshot`` or ``change``.
        value: The view, or the change of it.
    """
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _json(value))


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


class LiveFeed:
    """The watchers of one process."""

    def __init__(
        self, read: Callable[[], View], *, in_loop: bool = False, history: Callable[[], View] | None = None
    ) -> None:
        """Create a feed without watchers.

        Args:
            read: Returns the present view; called by one caller at a time, in a thread.
            in_loop: Whether ``read`` is called in the event loop instead, because its facts change there.
            history: Returns what came before, with ``columns`` and ``rows``, the oldest first; called in the event loop
                when a watcher comes. ``None`` for a feed without history.
        """
        self._read, self._in_loop, self._history = read, in_loop, history
        self._watchers: set[_Watcher] = set()
        self._reading: asyncio.Task[None] | None = None
        self._view: View | None = None
        self._closed = False

    async def serve(self, receive: Receive, send: Send) -> None:
        """Serve a watcher until its client leaves or reads too slowly, or the feed is closed.

        The body of the request was read before.
        """
        if self._closed:
            message = "the server is stopping and no longer shows its requests; retry once it is back"
            await refuse(send, HTTPStatus.SERVICE_UNAVAILABLE, message, headers=[("retry-after", "5"), CLOSE])
            return
        if len(self._watchers) >= MOST_WATCHERS:
            message = f"{MOST_WATCHERS} of {MOST_WATCHERS} watchers are served; close another, or retry later"
            await refuse(send, HTTPStatus.TOO_MANY_REQUESTS, message, headers=[("retry-after", "5"), CLOSE])
            return
        watcher = _Watcher()
        self._watchers.add(watcher)
        if self._view is not None:
            watcher.offer(self._snapshot(self._view))
        if self._reading is None:
            self._reading = asyncio.create_task(self._keep_reading())
        try:
            async with WhileClientWaits(receive) as client:
                watcher.too_slow = client.give_up
                head = [(name.encode(), value.encode()) for name, value in _HEADERS]
                await send({"type": "http.response.start", "status": HTTPStatus.OK.value, "headers": head})
                while (part := await watcher.frames.get()) is not None:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                client.answered()
                await send({"type": "http.response.body", "body": b""})
        except ClientLeft:
            pass
        finally:
            self._watchers.discard(watcher)

    def close(self) -> None:
        """End the responses to all watchers, which would delay a server that stops, and accept no more."""
        self._closed = True
        self._send_away()

    def _send_away(self) -> None:
        for watcher in list(self._watchers):
            watcher.offer(None)

    async def _keep_reading(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        try:
            while self._watchers:
                try:
                    view = self._read() if self._in_loop else await asyncio.to_thread(self._read)
                    self._show(await asyncio.to_thread(fitted, view))
                except Exception:
                    logger.exception("the live feed could not be read: disconnecting its watchers")
                    self._send_away()
                    return
                next_s = max(next_s + EVERY_S, loop.time())
                await asyncio.sleep(next_s - loop.time())
        finally:
            self._reading = self._view = None

    def _show(self, view: View) -> None:
        change = None if self._view is None else frame("change", changes(self._view, view))
        self._view = view
        for watcher in list(self._watchers):
            watcher.offer(change if change is not None and watcher.begun else self._snapshot(view))

    def _snapshot(self, view: View) -> bytes:
        """Return the first event of a watcher, with the history, which no change repeats."""
        return frame("snapshot", view if self._history is None else {**view, HISTORY: recent(self._history())})


class _Watcher:
    """One client that watches; ``too_slow`` is called when it does not read, ``begun`` says if it got a frame."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue(_BEHIND)
        self.too_slow: Callable[[], None] = self._not_yet
        self.begun = False

    def offer(self, part: bytes | None) -> None:
        """Queue the next frame.

        Args:
            part: The frame; ``None`` for the end.
        """
        self.begun = True
        try:
            self.frames.put_nowait(part)
        except asyncio.QueueFull:
            self.too_slow()

    def _not_yet(self) -> None:
        """Do nothing: this stands for the end of a response that has not begun."""
