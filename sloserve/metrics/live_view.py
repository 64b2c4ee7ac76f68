"""What one API process shows of its server now: its engines' pages, and how the requests of each class fared lately.

All ranks of the server whose engines run on this host are shown, whichever API process is asked; requests that ended
count over all API processes.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sloserve.core.attainment_window import SHOWN_SPANS_S, shown
from sloserve.core.clock import Clock
from sloserve.core.latency_window import quantiles_s
from sloserve.engine.why import SAYS, Cause, Phase, Why, sentence
from sloserve.metrics.engine_page import PageSnapshot, find_pages
from sloserve.metrics.live_page import MOST_ROWS, NEAR, ROW, Frame, LiveReader, find_live_pages
from sloserve.metrics.process_page import LATENCIES, Board

COLUMNS: Final = tuple(name for name in ROW if name != "number")
"""Of a row; its key is the rank and the number."""
_DUE, _PHASE, _CLASS, _WHY = (ROW.index(name) for name in ("due_s", "phase", "class_id", "why"))
_NUMBER = ROW.index("number")


class LiveView:
    """Reads the view of :mod:`sloserve.wire.live_feed` for a server."""

    def __init__(
        self,
        model: Callable[[], str],
        classes: Sequence[str],
        boards: Callable[[], Iterable[Board]],
        clock: Clock,
        folder: Path | None = None,
    ) -> None:
        """model: its name for clients. boards: of each API process, see :class:`ClassMetrics`. folder: of the pages."""
        self._model, self._classes, self._boards, self._clock = model, tuple(classes), boards, clock
        self._folder = folder
        self._pages: dict[Path, LiveReader] = {}
        self._planned: dict[int, _Planned] = {}

    def read(self) -> dict[str, Any]:
        """As of now; asks the engines for frames by the way. Raises: OSError where pages cannot be looked for."""
        now_s = self._clock.monotonic_s()
        frames = self._frames(now_s)
        figures = [page.snapshot() for page in find_pages(self._folder)]
        pairs = [(page, frames.get(page.pid)) for page in figures if page.alive]
        self._planned = {page.pid: _Planned.of(page, self._planned.get(page.pid)) for page, _ in pairs}
        each = MOST_ROWS // max(len(pairs), 1)
        rows: dict[str, list[Any]] = {}
        for page, frame in pairs:
            if frame is not None:
                rows |= _rows(page.rank, frame, each)
        return {
            "at_s": round(self._clock.now_s(), 3),
            "model": self._model(),
            "classes": list(self._classes),
            "columns": list(COLUMNS),
            "phases": [phase.name.lower() for phase in Phase],
            "reasons": [why.name.lower() for why in Why],
            "says": [SAYS[why] for why in Why],
            "near": NEAR.tolist(),
            "spans_s": list(SHOWN_SPANS_S),
            "headlines": self._headlines([frame for _, frame in pairs if frame is not None]),
            "engines": [self._engine(page, frame, each) for page, frame in pairs],
            "by_class": self._by_class(pairs, now_s),
            "rows": rows,
        }

    def _frames(self, now_s: float) -> dict[int, Frame | None]:
        """The last frame of each engine, by its process."""
        found = find_live_pages(self._folder)
        self._pages = {page.file.path: self._pages.get(page.file.path, page) for page in found}
        for page in self._pages.values():
            page.watch(now_s)
        return {page.file.pid: page.frame() for page in self._pages.values()}

    def _engine(self, page: PageSnapshot, frame: Frame | None, each: int) -> dict[str, Any]:
        return {
            "rank": page.rank,
            "policy": page.policy,
            "shadow_policy": page.shadow_policy,
            "plans_off": page.plans_off,
            "steps": int(page.steps),
            "plan_s": self._planned[page.pid].each_s,
            "shadow": _shadow(page),
            "live": 0 if frame is None else frame.live,
            "drawn": 0 if frame is None else min(len(frame.rows), each),
            "frame_s": None if frame is None else round(frame.at_s, 3),
            "held_up": _cause(Cause() if frame is None else frame.head),
            "kv": None if frame is None else _kv(frame),
        }

    def _headlines(self, frames: Sequence[Frame]) -> list[str]:
        """Of each class with late requests what most of those do, and why the one that is late for the longest does."""
        found = []
        for i, name in enumerate(self._classes):
            mostly = _mostly(frames, i)
            if mostly is not None:
                phase, count, cause = mostly
                late = _sum(frame.late[i] for frame in frames)
                why = f": {sentence(SAYS[cause.why], cause.figure, cause.of)}" if cause.why else ""
                found.append(f"{name}: {late:,} late, {count} of them {phase.name.lower()}{why}")
        return found

    def _by_class(self, pairs: Sequence[tuple[PageSnapshot, Frame | None]], now_s: float) -> dict[str, dict[str, Any]]:
        boards, frames = list(self._boards()), [frame for _, frame in pairs if frame is not None]
        return {
            name: {
                **{phase.name.lower(): _sum(frame.counts[i, phase] for frame in frames) for phase in Phase},
                "late": _sum(frame.late[i] for frame in frames),
                "next_due_s": _known(np.nanmin([math.inf, *(frame.next_due_s[i] for frame in frames)])),
                "latency_s": {
                    figure: quantiles_s((board.latency[i, at] for board in boards), now_s)
                    for at, figure in enumerate(LATENCIES)
                },
                "attained": shown((board.ended[i] for board in boards), now_s),
            }
            for i, name in enumerate(self._classes)
        }


@dataclass(frozen=True, slots=True)
class _Planned:
    """What an engine's plans took up to the last reading. each_s: of those that came with it, or the last that did."""

    plans: float = 0.0
    seconds: float = 0.0
    each_s: float | None = None

    @staticmethod
    def of(page: PageSnapshot, before: "_Planned | None") -> "_Planned":
        before = before or _Planned()
        plans, seconds = page.plans - before.plans, page.plan_seconds_sum - before.seconds
        each_s = round(seconds / plans, 6) if plans else before.each_s
        return _Planned(page.plans, page.plan_seconds_sum, each_s)


def _rows(rank: int, frame: Frame, most: int) -> dict[str, list[Any]]:
    rows = frame.rows
    if len(rows) > most:
        rows = rows[np.sort(np.argsort(rows[:, _DUE], kind="stable")[:most])]
    columns = [i for i in range(len(ROW)) if i != _NUMBER]
    return {f"{rank}-{int(row[_NUMBER])}": [_known(row[i]) for i in columns] for row in rows.tolist()}


def _mostly(frames: Sequence[Frame], class_id: int) -> tuple[Phase, int, Cause] | None:
    """Which phase most of the drawn late requests of a class are in, how many those are, and what holds up the one that
    is late for the longest; ``None`` where none is late.

    A request in the queue that has no cause of its own waits for the first of it.
    """
    late = [(row, frame) for frame in frames for row in frame.rows[_is_late(frame, class_id)]]
    if not late:
        return None
    ((phase, count),) = Counter(int(row[_PHASE]) for row, _ in late).most_common(1)
    row, frame = min((one for one in late if one[0][_PHASE] == phase), key=lambda one: float(one[0][_DUE]))
    own = Cause(Why(int(row[_WHY])), float(row[_WHY + 1]), float(row[_WHY + 2]))
    return Phase(phase), count, frame.head if phase == Phase.WAITING and own.why is Why.NOTHING else own


def _is_late(frame: Frame, class_id: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (frame.rows[:, _CLASS] == class_id) & (frame.rows[:, _DUE] < frame.at_s)
    return found


def _known(value: float) -> float | int | None:
    """For JSON: whole numbers as such, others to the millisecond, ``None`` for what is not known."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else round(float(value), 3)


def _sum(counts: Iterable[Any]) -> int:
    return int(sum(counts))


def _cause(cause: Cause) -> list[Any]:
    return [int(cause.why), _known(cause.figure), _known(cause.of)]


def _kv(frame: Frame) -> Mapping[str, Any]:
    foreseen = None
    if frame.foreseen is not None:
        mean, sigma = (np.round(part, 1).tolist() for part in frame.foreseen)
        foreseen = {"mean": mean, "sigma": sigma}
    return {"used": frame.total_blocks - frame.free_blocks, "total": frame.total_blocks, "foreseen": foreseen}


def _shadow(page: PageSnapshot) -> dict[str, Any] | None:
    """How often the shadow policy agrees, and its gain, as :mod:`sloserve.engine.plan_score` has them."""
    if page.shadow_policy is None:
        return None
    agreement, gain = page.shadow_agreement_count, page.shadow_gain_count
    return {
        "plans": int(page.shadow_plans),
        "errors": int(page.shadow_errors),
        "agreement": round(page.shadow_agreement_sum / agreement, 3) if agreement else None,
        "gain": round(page.shadow_gain_sum / gain, 3) if gain else None,
    }
