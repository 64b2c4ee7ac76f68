"""Collect the events of an engine, and write them from a thread of their own.

An event costs the engine the time to make a small object. Once a second the thread takes what has come, encodes,
compresses and writes it, whether or not the engine makes steps, and at once where nothing more may come for a while:
vLLM kills engines that are to stop. If the disk is full the recording ends; if it is slow
events are lost, counted, and noted in the recording where they are missing; serving goes on.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from sloserve.core.clock import Clock, SystemClock
from sloserve.engine.recording.events import Event, Lost, SegmentHead, weight
from sloserve.engine.recording.segments import SegmentWriter

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
"""Most seconds between frames: what a process loses that is killed while it has requests."""
LEAST_EVERY_S: Final = 0.1
"""Least seconds between frames, however often a process asks for one."""
MOST_EVENTS: Final = 1 << 16
"""Most events that may wait for the thread."""
MOST_WAITING_BYTES: Final = 1 << 26
"""Most bytes of columns, see :func:`~sloserve.engine.recording.events.weight`, that may wait for the thread."""
MOST_FRAME_WEIGHT: Final = 1 << 21
"""Bytes of columns from which on a frame ends."""
MOST_FRAME_EVENTS: Final = 256
"""Most events of a frame, so that frames of the longest prompts are shorter than a reader accepts."""
CLOSE_S: Final = 5.0
"""Seconds for which the end of a recording waits for the disk."""


class Recorder:
    """Takes the events of one engine until it is closed, or until they cannot be written.

    Attributes:
        lost: Number of events that were lost because the disk was too slow or a segment has no room for their frame.
    """

    def __init__(
        self,
        folder: Path,
        stem: str,
        most_bytes: int,
        head: Callable[[], SegmentHead],
        clock: Clock | None = None,
        report: Callable[[int, bool], None] = lambda lost, failed: None,
    ) -> None:
        """Create the first segment.

        Args:
            folder: Folder of the segments.
            stem: Beginning of the names of the files.
            most_bytes: Most bytes of all segments together.
            head: Function that returns the facts with which a segment begins, as of now; the thread calls it.
            clock: Clock of the events; ``None`` for the host's.
            report: Called by the thread when events were lost, with their number so far, and when the recording ends
                because it cannot be written.

        Raises: OSError if the segment cannot be created.
        """
        self._writer = SegmentWriter(folder, stem, most_bytes)
        self._head, self._clock, self._report = head, clock or SystemClock(), report
        self._events: deque[Event] = deque()  # its methods are safe to call from two threads
        self._added = self._taken = 0  # bytes of columns; each is counted by one of the two threads
        self.lost = self._noted = 0  # noted in the recording, of the lost events
        self._closed, self._asked, self._failed = threading.Event(), threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="sloserve-recorder", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether the recording has ended because it could not be written."""
        return self._failed

    def add(self, event: Event, size: int = 0) -> None:
        """Record an event.

        Args:
            event: The event.
            size: Bytes of its columns, see :func:`~sloserve.engine.recording.events.weight`.
        """
        if self._failed:
            return
        if len(self._events) >= MOST_EVENTS or self._added - self._taken + size > MOST_WAITING_BYTES:
            self.lost += 1
            return
        self._added += size
        self._events.append(event)

    def write_soon(self) -> None:
        """Have the thread write what there is, since nothing more may come for a while."""
        self._asked.set()

    def close(self) -> None:
        """Write what there is, and end the recording; a second call has no effect.

        A disk that hangs does not keep the engine from stopping.
        """
        self._closed.set()
        self._asked.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            while not self._closed.wait(LEAST_EVERY_S):
                self._asked.wait(EVERY_S - LEAST_EVERY_S)
                self._asked.clear()
                self._write()
            self._write()
        except Exception as error:
            self._failed = True
            self._events.clear()
            logger.warning("the recording ends, and serving goes on: %s", error)
            self._report(self.lost, True)
        finally:
            self._writer.close()

    def _write(self) -> None:
        left = len(self._events)
        while left > 0:
            events, size = list[Event](), 0
            while len(events) < min(left, MOST_FRAME_EVENTS) and size < MOST_FRAME_WEIGHT:
                events.append(self._events.popleft())
                size += weight(events[-1])
            left -= len(events)
            self._taken += size
            if not self._writer.write(events, self._begins):
                self.lost += len(events)
        lost = self.lost
        if lost > self._noted and self._writer.write([Lost(self._clock.now_s(), lost - self._noted)], self._begins):
            self._noted = lost
            self._report(lost, False)

    def _begins(self) -> SegmentHead:
        return msgspec.structs.replace(self._head(), lost=self._noted)
