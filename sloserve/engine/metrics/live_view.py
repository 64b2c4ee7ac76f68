"""The view of its server that one API process shows: its engines' pages, and how each class has fared recently.

All ranks of the server with engines on this host are shown, whichever API process is asked; requests that ended count
over all API processes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sloserve.core.attainment_window import SHOWN_SPANS_S, missed_targets, not_served, shown
from sloserve.core.clock import Clock
from sloserve.core.latency_window import quantiles_s
from sloserve.core.predicted import LEVELS
from sloserve.engine.metrics.engine_page import PageSnapshot, find_pages
from sloserve.engine.metrics.live_headlines import headlines, is_late
from sloserve.engine.metrics.live_page import MOST_ROWS, NEAR, ROW, Frame, LiveReader, drawn_first, find_live_pages
from sloserve.engine.metrics.live_state import burn_rates, calm, state_of
from sloserve.engine.metrics.prediction_view import predictions_now, promises_now
from sloserve.engine.metrics.process_page import LATENCIES, Board
from sloserve.engine.metrics.task_page import OpenTasks
from sloserve.engine.metrics.task_view import MOST_SHOWN as MOST_TASKS_SHOWN
from sloserve.engine.metrics.task_view import tasks_now
from sloserve.engine.metrics.tenant_view import tenants_now
from sloserve.engine.why import PHASE_IN_WORDS, SAYS, Cause, RequestPhase, Why

COLUMNS: Final = tuple(name for name in ROW if name != "number")
"""Columns of a row; its key is the rank and the number."""
_DUE, _CLASS, _MISSED, _NUMBER = (ROW.index(name) for name in ("due_s", "class_id", "missed", "number"))


class LiveView:
    """Reads the view of :mod:`sloserve.wire.live_feed` for a server."""

    def __init__(
        self,
        model: Callable[[], str],
        classes: Sequence[str],
        boards: Callable[[], Iterable[Board]],
        clock: Clock,
        *,
        folder: Path | None = None,
        tasks: Callable[[int], OpenTasks] = lambda most: OpenTasks([], {}),
        parts: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Create the view of one API process.

        Args:
            model: Function that returns the model's name for clients.
            classes: Names of the service classes.
            boards: Function that returns the boards of each API process, see :class:`ClassMetrics`.
            clock: Clock of this process.
            folder: Folder of the pages; ``None`` for the usual one.
            tasks: Function that returns the tasks that have not ended, at most the given number of them one by one.
            parts: Function that returns further parts of the view, by name.
        """
        self._parts = parts
        self._tasks = tasks
        self._model, self._classes, self._boards, self._clock = model, tuple(classes), boards, clock
        self._folder = folder
        self._pages: dict[Path, LiveReader] = {}
        self._planned: dict[int, _Planned] = {}

    def read(self) -> dict[str, Any]:
        """Return the view as of now; the engines are asked for frames in passing.

        Raises: OSError if pages cannot be looked for.
        """
        now_s = self._clock.monotonic_s()
        frames = self._frames(now_s)
        at_s = self._clock.now_s()
        figures = [page.snapshot() for page in find_pages(self._folder)]
        pairs = [(page, frames.get(page.pid)) for page in figures if page.alive]
        self._planned = {page.pid: _Planned.of(page, self._planned.get(page.pid)) for page, _ in pairs}
        each = MOST_ROWS // max(len(pairs), 1)
        tenants = tenants_now([page for page, _ in pairs], self._boards(), now_s)
        rows: dict[str, list[Any]] = {}
        for page, frame in pairs:
            if frame is not None:
                rows |= _rows(page.rank, frame, each)
        return {
            "at_s": round(at_s, 3),
            "model": self._model(),
            "classes": list(self._classes),
            "columns": list(COLUMNS),
            "phases": [phase.name.lower() for phase in RequestPhase],
            "phases_say": list(PHASE_IN_WORDS),
            "reasons": [why.name.lower() for why in Why],
            "says": [SAYS[why] for why in Why],
            "near": NEAR.tolist(),
            "spans_s": list(SHOWN_SPANS_S),
            "levels": list(LEVELS),
            "engines": [self._engine(page, frame, each) for page, frame in pairs],
            "rows": rows,
            **self._parts(),
            **tenants,
            **tasks_now(self._tasks(MOST_TASKS_SHOWN), self._classes, at_s, now_s),
            **self._classes_now([frame for _, frame in pairs if frame is not None], tenants["tenants"], at_s, now_s),
        }

    def _frames(self, now_s: float) -> dict[int, Frame | None]:
        """Return the last frame of each engine, by its process."""
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
            "policy_change": None if page.policy_change is None else page.policy_change.brief().plain(),
            "steps": int(page.steps),
            "plan_s": self._planned[page.pid].each_s,
            "shadow": _shadow(page),
            "live": 0 if frame is None else frame.live,
            "drawn": 0 if frame is None else min(len(frame.rows), each),
            "frame_s": None if frame is None else round(frame.at_s, 3),
            "held_up": _cause(Cause() if frame is None else frame.head),
            "kv": None if frame is None else _kv(frame),
        }

    def _classes_now(
        self, frames: Sequence[Frame], tenants: Sequence[Mapping[str, Any]], at_s: float, now_s: float
    ) -> dict[str, Any]:
        """Return figures of the classes as ``by_class``, and sentences about the classes that are not fine.

        Args:
            frames: Frames of the engines.
            tenants: Rows of the tenants.
            at_s: The present time, in epoch seconds.
            now_s: The present time by the monotonic clock, in seconds.
        """
        by_class = self._by_class(frames, at_s, now_s)
        boards = list(self._boards())
        missed = {
            name: missed_targets((board.ended[i] for board in boards), now_s, SHOWN_SPANS_S[0])
            for i, name in enumerate(self._classes)
        }
        return {"by_class": by_class, "calm": calm(by_class), **headlines(frames, by_class, missed, tenants, at_s)}

    def _by_class(self, frames: Sequence[Frame], at_s: float, now_s: float) -> dict[str, dict[str, Any]]:
        boards = list(self._boards())
        found = {}
        for i, name in enumerate(self._classes):
            late = _sum(frame.late[i] + _is_newly_late(frame, i, at_s).sum() for frame in frames)
            missed = _sum(frame.missed[i] for frame in frames)
            ended = [board.ended[i] for board in boards]
            attained, lost = shown(ended, now_s), not_served(ended, now_s)
            burning = burn_rates(attained, missed)
            found[name] = {
                **{phase.name.lower(): _sum(frame.counts[i, phase] for frame in frames) for phase in RequestPhase},
                "late": late,
                "missed": missed,
                "next_due_s": _known(np.nanmin([math.inf, *(frame.next_due_s[i] for frame in frames)])),
                "latency_s": {
                    figure: quantiles_s((board.latency[i, at] for board in boards), now_s)
                    for at, figure in enumerate(LATENCIES)
                },
                "predicted": predictions_now(boards, i),
                "promises": promises_now(boards, i),
                "attained": attained,
                "not_served": lost,
                "burn": burning,
                "state": state_of(late, burning, lost, missed),
            }
        return found


@dataclass(frozen=True, slots=True)
class _Planned:
    """What an engine's plans took up to the last reading.

    Args:
        each_s: Seconds of each plan that came with it, or with the last reading that had one.
    """

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
        missed = rows[:, _MISSED] > 0.0
        rows = rows[np.sort(drawn_first(rows[:, _DUE], rows[:, _CLASS].astype(np.int64), missed, most))]
    columns = [i for i in range(len(ROW)) if i != _NUMBER]
    return {f"{rank}-{int(row[_NUMBER])}": [_known(row[i]) for i in columns] for row in rows.tolist()}


def _is_newly_late(frame: Frame, class_id: int, at_s: float) -> NDArray[np.bool_]:
    """Return which drawn requests of a class became late since the frame was made, which its own count leaves out."""
    return is_late(frame, class_id, at_s) & (frame.rows[:, _DUE] >= frame.at_s)


def _known(value: float) -> float | int | None:
    """Return a number for JSON: whole numbers as such, others to the millisecond, ``None`` if it is not known."""
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
    """Return how often the shadow policy agrees, and its gain, as :mod:`sloserve.engine.plan_score` has them."""
    if page.shadow_policy is None:
        return None
    agreement, gain = page.shadow_agreement_count, page.shadow_gain_count
    return {
        "plans": int(page.shadow_plans),
        "errors": int(page.shadow_errors),
        "agreement": round(page.shadow_agreement_sum / agreement, 3) if agreement else None,
        "gain": round(page.shadow_gain_sum / gain, 3) if gain else None,
    }
