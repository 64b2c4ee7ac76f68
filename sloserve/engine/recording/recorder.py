"""Collect the events of an engine, and write them from a thread of their own.

An event costs the engine the time to make a small object. Batches go to the thread once a second; it encodes,
compresses and writes them. If the disk is full or slow the recording ends or loses batches, and serving goes on.
"""

import hashlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Final

from sloserve.engine.recording.events import HASH_BYTES, Event, Head
from sloserve.engine.recording.segments import SegmentWriter

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
"""Seconds between batches: what a killed process loses."""
MOST_EVENTS: Final = 1 << 16
"""Events of a batch at which it goes to the thread whatever the time."""
MOST_BATCHES: Final = 16
"""Batches that may wait for the thread; further ones are lost and counted."""


CLOSE_S: Final = 5.0
"""Seconds for which the end of a recording waits for the disk."""


class Salt:
    """Hashes names and contents with a key that is never written."""

    def __init__(self, key: bytes | None = None) -> None:
        """Take a key of 16 random bytes, unless tests give one."""
        self._key = os.urandom(16) if key is None else key

    def name(self, name: object) -> int:
        """Return a hash of a name; 0 for no name."""
        if name in (None, "", 0):
            return 0
        return int.from_bytes(self._digest(repr(name).encode(errors="surrogatepass"))) or 1

    def contents(self, contents: Sequence[Hashable]) -> bytes:
        """Return a hash of each entry, one after another."""
        return b"".join(self._digest(one if isinstance(one, bytes) else repr(one).encode()) for one in contents)

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=HASH_BYTES, key=self._key).digest()


class Recorder:
    """Takes the events of one engine until it is closed, or until they cannot be written.

    Attributes:
        lost: Number of events that were lost because the disk was too slow.
    """

    def __init__(self, folder: Path, stem: str, most_bytes: int, head: Callable[[], Head]) -> None:
        """Create the first segment.

        Args:
            folder: Folder of the segments.
            stem: Beginning of the names of the files.
            most_bytes: Most bytes of all segments together.
            head: Function that returns the facts with which a segment begins, as of now.

        Raises: OSError if the segment cannot be created.
        """
        self._writer = SegmentWriter(folder, stem, most_bytes)
        self._head = head
        self._events: list[Event] = []
        self._again_s = 0.0
        self.lost = 0
        self._batches: queue.Queue[tuple[list[Event], Head] | None] = queue.Queue(MOST_BATCHES)
        self._thread = threading.Thread(target=self._write, name="sloserve-recorder", daemon=True)
        self._failed = False
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether the recording has ended because it could not be written."""
        return self._failed

    def add(self, event: Event) -> None:
        """Record an event."""
        self._events.append(event)

    def tick(self, monotonic_s: float) -> None:
        """Hand the events to the thread if it is time; called once a step.

        Args:
            monotonic_s: The present time of the monotonic clock, in seconds.
        """
        if monotonic_s >= self._again_s or len(self._events) >= MOST_EVENTS:
            self._again_s = monotonic_s + EVERY_S
            self.flush()

    def flush(self) -> None:
        """Hand the events to the thread now."""
        events, self._events = self._events, []
        if not events or self._failed:
            return
        try:
            self._batches.put_nowait((events, self._head()))
        except queue.Full:
            self.lost += len(events)

    def close(self) -> None:
        """Write what there is, and end the recording; a second call has no effect."""
        self.flush()
        try:
            self._batches.put(None, timeout=CLOSE_S)
        except queue.Full:  # a disk that hangs does not keep the engine from stopping
            return
        self._thread.join(CLOSE_S)

    def _write(self) -> None:
        try:
            while (batch := self._batches.get()) is not None:
                if not self._failed:
                    self._write_batch(*batch)
        finally:
            self._writer.close()

    def _write_batch(self, events: list[Event], head: Head) -> None:
        try:
            self._writer.write(events, head)
        except OSError as error:
            self._failed = True
            logger.warning("the recording ends, and serving goes on: %s", error)
