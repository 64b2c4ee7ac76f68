"""The board that one API process publishes to the others, so that a server with several of them counts as one.

Each has a board, which it alone writes: how many of its requests wait, for how long its calls keep the engine's core
busy, the requests that ended recently, and which tenants have a label of their own. The process that is scraped reads
all boards, and so do a cap on waiting requests and the check that the core answers. Counters and histograms are not
here: prometheus' multiprocess mode adds those up, and keeps what a process counted that is no more.

A server of one API process has a board in its own memory; a server of several has the boards with a page of this host.
"""

import math
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.attainment_window import MAX_REQUESTS
from sloserve.core.clock import Clock
from sloserve.core.judged_window import MAX_PREDICTIONS
from sloserve.core.latency_window import MAX_LATENCIES
from sloserve.core.predicted import PREDICTED
from sloserve.core.promise_window import MAX_PROMISES
from sloserve.core.stamps import Stamps
from sloserve.engine.metrics import load_history
from sloserve.engine.metrics.page_folder import API, PageFile
from sloserve.engine.metrics.page_memory import PageMemory, found

_CONTROL: Final = 3
LATENCIES: Final = ("ttft", "tpot", "e2e")

TENANT_WINDOW: Final = 128
"""Latest requests of each tenant that are remembered for watchers."""
MOST_TENANT_WINDOWS: Final = 64
"""Tenants with remembered requests in one process: the first tenants with labels."""

REFRESH_S: Final = 1.0
"""Seconds after which a process that admits requests notices a started or ended API process."""


class Board:
    """One API process' part. The arrays are the memory itself: what is stored there is published.

    ``waiting`` holds the waiting requests by class, float64. ``control`` holds the seconds that its calls which keep
    the core busy have taken, since when such a call runs, on the host's monotonic clock, 0 for none, and the version
    of the settings that the process follows. ``ended`` holds stamps of an attainment window by class, ``predicted``
    stamps of judged predictions by class and figure of :data:`~sloserve.core.predicted.PREDICTED`, ``promises``
    stamps of ended promises by class, ``latency`` stamps of latency windows by class and figure of :data:`LATENCIES`.
    ``tenants`` holds keys of tenants with a label, 0 for none yet. ``tenant_ended`` holds stamps of attainment
    windows: of requests that name no tenant, then of the first of ``tenants``. ``history`` holds samples of the load,
    see :mod:`sloserve.engine.metrics.load_history`.
    """

    def __init__(self, classes: int, tenants: int, memory: PageMemory | None = None) -> None:
        """Create a board in memory.

        Args:
            classes: Number of service classes.
            tenants: Most tenants with a label of their own.
            memory: Memory of the size that :func:`sizes` returns; ``None`` for memory of this process alone.
        """
        floats, words = sizes(classes, tenants)
        self.memory = memory
        numbers = np.zeros(floats) if memory is None else memory.floats
        self.waiting: FloatArray = numbers[:classes]
        self.control: FloatArray = numbers[classes : classes + _CONTROL]
        history = numbers[classes + _CONTROL :]
        self.history: FloatArray = history.reshape(load_history.SLOTS, load_history.width(classes))
        parts = np.zeros(words, np.uint64) if memory is None else memory.words
        parts, stamps = _cut(parts, (classes, MAX_REQUESTS))
        self.ended: Stamps = stamps
        parts, stamps = _cut(parts, (classes, len(PREDICTED), MAX_PREDICTIONS))
        self.predicted: Stamps = stamps
        parts, stamps = _cut(parts, (classes, MAX_PROMISES))
        self.promises: Stamps = stamps
        parts, stamps = _cut(parts, (classes, len(LATENCIES), MAX_LATENCIES))
        self.latency: Stamps = stamps
        parts, self.tenants = _cut(parts, (tenants,))
        self.tenant_ended: Stamps = parts.reshape(-1, TENANT_WINDOW)

    @staticmethod
    def published(classes: Sequence[str], tenants: int, rank: int, folder: Path | None = None) -> "Board":
        """Create a board that other processes read.

        Args:
            classes: Names of the service classes.
            tenants: Most tenants with a label of their own.
            rank: Rank of this API process.
            folder: Folder of the pages; ``None`` for the usual one.

        Raises: OSError when no page can be made.
        """
        floats, words = sizes(len(classes), tenants)
        facts = {"classes": list(classes), "tenants": tenants}
        memory = PageMemory.create(API, rank, facts, floats=floats, words=words, scratch=0, folder=folder)
        return Board(len(classes), tenants, memory)

    @staticmethod
    def read(file: PageFile) -> "Board":
        """Read the board in a file.

        Raises: OSError, or ValueError for a file that is no page of this version.
        """
        memory = PageMemory.open(file)
        return Board(len(memory.facts["classes"]), memory.facts["tenants"], memory)

    def controls_since(self, now_s: float) -> None:
        """Record that a call begins that keeps the core busy; none runs yet."""
        self.control[1] = now_s

    def controlled(self, now_s: float) -> None:
        """Record that the call has ended.

        A reader between the two writes may count it twice, which is safer than missing it.
        """
        self.control[0] += now_s - self.control[1]
        self.control[1] = 0.0

    def controlled_s(self, now_s: float) -> float:
        """Return the seconds that its calls have kept the core busy until now."""
        ended_s, since_s = float(self.control[0]), float(self.control[1])
        return ended_s + (max(now_s - since_s, 0.0) if since_s else 0.0)

    def follows(self, version: int) -> None:
        """Record the version of the settings that the process follows."""
        self.control[2] = version

    @property
    def version(self) -> int:
        """Version of the settings that the process follows."""
        return int(self.control[2])

    def close(self) -> None:
        """Withdraw the board from the other processes; a second call has no effect."""
        if self.memory is not None:
            self.memory.close()


def sizes(classes: int, tenants: int) -> tuple[int, int]:
    """Return the slots of float64 and of uint64 that a board needs.

    That is 18 KiB, 77 KiB more for each class, and 1 KiB for each tenant with a window.
    """
    stamps = MAX_REQUESTS + len(PREDICTED) * MAX_PREDICTIONS + MAX_PROMISES + len(LATENCIES) * MAX_LATENCIES
    windows = 1 + min(tenants, MOST_TENANT_WINDOWS)
    floats = classes + _CONTROL + load_history.SLOTS * load_history.width(classes)
    return floats, classes * stamps + tenants + windows * TENANT_WINDOW


def _cut(words: Stamps, shape: tuple[int, ...]) -> tuple[Stamps, Stamps]:
    """Return the words behind an array of ``shape`` at their beginning, and the array."""
    size = math.prod(shape)
    return words[size:], words[:size].reshape(shape)


def tenant_key(tenant: str) -> int:
    """Return a key of the tenant that is never 0, which stands for no tenant."""
    return int.from_bytes(blake2b(tenant.encode(errors="surrogatepass"), digest_size=8).digest()) or 1


def tenant_windows(boards: Iterable[Board], tenant: str | None) -> list[Stamps]:
    """Return the attainment windows of a tenant, one of each process that remembers requests of it.

    Args:
        boards: The boards of all processes.
        tenant: Name of the tenant; ``None`` for requests that name none.
    """
    if tenant is None:
        return [board.tenant_ended[0] for board in boards]
    key = np.uint64(tenant_key(tenant))
    return [
        board.tenant_ended[1 + place]
        for board in boards
        for place in np.flatnonzero(board.tenants[: len(board.tenant_ended) - 1] == key)[:1].tolist()
    ]


class Boards:
    """The boards of all API processes of this server, as one of them sees them.

    It is also the :class:`~sloserve.scheduler.admission.backlog.Elsewhere` of its backlog.
    """

    def __init__(self, own: Board, clock: Clock, folder: Path | None = None) -> None:
        """Create the boards as this process sees them.

        Args:
            own: Board of this process; if it is not published, it is the only one.
            clock: Clock of this process.
            folder: Folder of the pages; ``None`` for the usual one.
        """
        self.own = own
        self._clock = clock
        self._folder = folder
        self._others: list[Board] = []
        self._looked_s: float | None = None

    def look(self) -> list[Board]:
        """Look for the boards of other processes; return this process' own and the others."""
        self._looked_s = self._clock.monotonic_s()
        self._others = [] if self.own.memory is None else self._found()
        return [self.own, *self._others]

    @property
    def others(self) -> Sequence[Board]:
        """Boards of the other processes, as of up to :data:`REFRESH_S` ago; their contents are of now."""
        if self.own.memory is None:
            return ()
        if self._looked_s is None or self._clock.monotonic_s() - self._looked_s >= REFRESH_S:
            self.look()
        return self._others

    @property
    def processes(self) -> int:
        """How many API processes there are, this one counted."""
        return 1 + len(self.others)

    def set_waiting(self, class_id: int, waiting: int) -> None:
        """Set how many requests of the class wait in this process."""
        self.own.waiting[class_id] = waiting

    def waiting(self, class_id: int) -> int:
        """Return how many requests of the class wait in the other processes."""
        return sum(int(board.waiting[class_id]) for board in self.others)

    def controlled_s(self, now_s: float) -> float:
        """Return the seconds until now for which calls of all processes have kept the core busy.

        Each of several calls at the same time counts.

        Args:
            now_s: The present time of the host's monotonic clock, as event loops read it, in seconds.
        """
        return sum(board.controlled_s(now_s) for board in (self.own, *self.others))

    def _found(self) -> list[Board]:
        assert self.own.memory is not None
        own = self.own.memory.path
        known = {board.memory.path: board for board in self._others if board.memory is not None}

        def read(file: PageFile) -> Board | None:
            return (known.get(file.path) or Board.read(file)) if file.path != own and file.is_alive else None

        try:
            boards = found(API, read, self._folder)
        except OSError:
            return []
        return [board for board in boards if board is not None and board.waiting.size == self.own.waiting.size]
