"""The live requests of one engine, on a page of their own beside its figures, written only while there is a watcher.

A watcher is an API process: it writes on the page how long it watches, and extends that time before it is over. The
engine compares that with its clock once a step and, while it lies ahead, writes a frame at most twice a second: what
its requests do by class, its KV cache now and foreseen, and at most :data:`MOST_ROWS` requests. A frame is numbers
alone. No prompt, output or id of a request is among them: requests have numbers that the engine hands out as they are
first drawn.

Two frames have room, and the one not in use is written; a reader that was interrupted for longer than that reads again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.engine.metrics.page_folder import LIVE, PageFile
from sloserve.engine.metrics.page_memory import PageMemory, found
from sloserve.engine.why import Cause, RequestPhase, Why

MOST_ROWS: Final = 200
"""Requests drawn of one engine; the others are counted."""
FRAME_EVERY_S: Final = 0.5
WATCH_S: Final = 2.0
"""Seconds without a sign after which a watcher counts as gone."""

NEAR: Final[IntArray] = np.arange(0, 65, 8)
"""Steps ahead at which the KV cache is foreseen, ``[t]``."""

ROW: Final = (
    "number", "class_id", "phase", "since_s", "arrival_s", "due_s", "prompt_tokens", "computed_tokens", "output_tokens",
    "preemptions", "ahead", "missed", "why", "figure", "of",
)  # fmt: skip
"""Columns of a drawn request; times are epoch seconds.

- ``number``: its number, unique in this engine.
- ``since_s``: when its phase began.
- ``due_s``: its next deadline, nan for none.
- ``ahead``: waiting requests before it in the order of admission, -1 if it runs.
- ``missed``: 1 if it will not be in time: it has missed the deadline of its first token or of its whole output, or more
  time has passed since its first token than its TPOT or TDS target allows for the longest output that it may have.
- ``why``, ``figure``, ``of``: its :class:`~sloserve.engine.why.Cause`.
"""

_SAVABLE_SHARE: Final = 0.75
"""Part of the drawn requests that is kept for the ones that can still be in time."""

_WATCHED_UNTIL, _WRITTEN = 0, 1
_SLOTS = 2
_HEAD = ("at_s", "at_monotonic_s", "live", "drawn", "free_blocks", "total_blocks", "why", "figure", "of", "foreseen")


@dataclass(frozen=True)
class Frame:
    """What one engine does, as of a step.

    Args:
        at_s: Time of the step in epoch seconds.
        at_monotonic_s: Time of the step by the host's monotonic clock, in seconds.
        live: Number of unfinished requests, of which ``rows`` has some.
        head: Why the first of the waiting requests was not admitted.
        counts: Requests by class and phase, ``[classes, len(Phase)]``.
        late: Requests with a missed next deadline by class, ``[classes]``.
        missed: Requests that will not be in time, as ``missed`` of a row says, by class, ``[classes]``; a request that
            had its first token too late counts until it ends.
        next_due_s: Earliest deadline by class, nan for none, ``[classes]``.
        foreseen: Mean and standard deviation of the KV blocks that the running requests will hold NEAR, ``[2, t]``;
            ``None`` if nothing is known of the lengths of outputs.
        rows: Rows of the requests that are drawn, ``[drawn, len(ROW)]``.
    """

    at_s: float
    at_monotonic_s: float
    live: int
    free_blocks: int
    total_blocks: int
    head: Cause
    counts: IntArray
    late: IntArray
    missed: IntArray
    next_due_s: FloatArray
    foreseen: FloatArray | None
    rows: FloatArray


class _Layout:
    """Places of the parts of a frame within its slots."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.counts = len(_HEAD)
        self.late = self.counts + classes * len(RequestPhase)
        self.missed = self.late + classes
        self.next_due = self.missed + classes
        self.foreseen = self.next_due + classes
        self.rows = self.foreseen + 2 * NEAR.size
        self.size = self.rows + MOST_ROWS * len(ROW)


class LiveWriter:
    """The engine's side of a page.

    Raises: OSError when no file can be made.
    """

    def __init__(self, classes: int, rank: int, folder: Path | None = None) -> None:
        self._layout = _Layout(classes)
        self._memory = PageMemory.create(
            LIVE,
            rank,
            {"classes": classes},
            floats=_SLOTS + 2 * self._layout.size,
            words=0,
            scratch=0,
            folder=folder,
        )
        self._flags = self._memory.floats[:_SLOTS]

    def is_watched(self, monotonic_s: float) -> bool:
        """Return whether there is a watcher. A step costs no more than this while there is none."""
        return monotonic_s < self._flags.item(_WATCHED_UNTIL)

    def write(self, frame: Frame) -> None:
        """Show ``frame``, with the first :data:`MOST_ROWS` of its rows, in place of the last one."""
        layout, written = self._layout, int(self._flags[_WRITTEN])
        rows = frame.rows[:MOST_ROWS]
        first = _SLOTS + (written + 1) % 2 * layout.size
        slots = self._memory.floats[first : first + layout.size]
        head, foreseen = frame.head, frame.foreseen
        slots[: len(_HEAD)] = (
            frame.at_s, frame.at_monotonic_s, frame.live, len(rows), frame.free_blocks, frame.total_blocks,
            head.why, head.figure, head.of, foreseen is not None,
        )  # fmt: skip
        slots[layout.counts : layout.late] = frame.counts.ravel()
        slots[layout.late : layout.missed] = frame.late
        slots[layout.missed : layout.next_due] = frame.missed
        slots[layout.next_due : layout.foreseen] = frame.next_due_s
        if foreseen is not None:
            slots[layout.foreseen : layout.rows] = foreseen.ravel()
        slots[layout.rows : layout.rows + rows.size] = rows.ravel()
        self._flags[_WRITTEN] = written + 1.0

    def close(self) -> None:
        self._memory.close()


class LiveReader:
    """The reader's side of a page.

    Raises: OSError, or ValueError for a file that is no page of this version.
    """

    def __init__(self, file: PageFile) -> None:
        self.file = file
        self._memory = PageMemory.open(file, writes=True)
        self._layout = _Layout(int(self._memory.facts["classes"]))
        self._since_s: float | None = None

    def watch(self, monotonic_s: float) -> None:
        """Have the engine write frames for the next :data:`WATCH_S`, or as long as any other watcher wants them.

        Args:
            monotonic_s: The present time of the host's monotonic clock, in seconds.
        """
        if self._since_s is None or monotonic_s >= self._memory.floats[_WATCHED_UNTIL]:
            self._since_s = monotonic_s
        self._memory.floats[_WATCHED_UNTIL] = monotonic_s + WATCH_S

    def frame(self) -> Frame | None:
        """Return the last frame; ``None`` if none was written since this watch began: the engine makes no steps."""
        values = self._memory.floats
        while True:
            written = int(values[_WRITTEN])
            first = _SLOTS + written % 2 * self._layout.size
            slots = values[first : first + self._layout.size].copy()
            if values[_WRITTEN] == written:
                break
        if not written or self._since_s is None or slots[_HEAD.index("at_monotonic_s")] < self._since_s:
            return None
        return self._read(slots)

    def _read(self, slots: FloatArray) -> Frame:
        layout, head = self._layout, dict(zip(_HEAD, slots[: len(_HEAD)].tolist(), strict=True))
        drawn = int(head["drawn"])
        foreseen = slots[layout.foreseen : layout.rows].reshape(2, NEAR.size) if head["foreseen"] else None
        return Frame(
            at_s=head["at_s"],
            at_monotonic_s=head["at_monotonic_s"],
            live=int(head["live"]),
            free_blocks=int(head["free_blocks"]),
            total_blocks=int(head["total_blocks"]),
            head=Cause(Why(int(head["why"])), head["figure"], head["of"]),
            counts=slots[layout.counts : layout.late].astype(np.int64).reshape(layout.classes, len(RequestPhase)),
            late=slots[layout.late : layout.missed].astype(np.int64),
            missed=slots[layout.missed : layout.next_due].astype(np.int64),
            next_due_s=slots[layout.next_due : layout.foreseen],
            foreseen=foreseen,
            rows=slots[layout.rows : layout.rows + drawn * len(ROW)].reshape(drawn, len(ROW)),
        )


def drawn_first(due_s: FloatArray, class_id: IntArray, missed: BoolArray, most: int) -> IntArray:
    """Return the places of the requests to draw where there are more than ``most``, ``[at most most]``.

    Requests that can still be in time get three quarters of the room, the nearest deadline first: an operator can do
    something for them. Of the others each class gets the same number, the longest past first, so that none hides the
    causes of another. What one part leaves goes to the other one.

    Args:
        due_s: Next deadline of each request, nan for none, ``[n]``.
        class_id: Class of each request, ``[n]``.
        missed: Whether each request has missed a deadline, ``[n]``.
        most: Most requests to draw.
    """
    order = np.argsort(due_s, kind="stable")
    savable, lost = order[~missed[order]], order[missed[order]]
    lost = lost[np.argsort(_rank_in_class(class_id[lost]), kind="stable")]
    room = max(min(lost.size, most - savable.size), min(lost.size, round((1.0 - _SAVABLE_SHARE) * most)))
    found: IntArray = np.concatenate((savable[: most - room], lost[:room]))
    return found


def _rank_in_class(class_id: IntArray) -> IntArray:
    """Return for each place how many places before it are of the same class, ``[n]``."""
    found = np.zeros(class_id.size, np.int64)
    for one in np.unique(class_id).tolist():
        here = class_id == one
        found[here] = np.arange(np.count_nonzero(here))
    return found


def find_live_pages(folder: Path | None = None) -> list[LiveReader]:
    """Return the pages of this server's engines, see :func:`~sloserve.engine.metrics.page_memory.found`.

    Raises: OSError.
    """
    return found(LIVE, LiveReader, folder)
