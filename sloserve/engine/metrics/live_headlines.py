"""Sentences on the classes of a server that are not fine: how each fares, what holds its requests up, what to do.

A cause is what keeps most of the class's late requests from being served. Where none of them is drawn, because they are
served or have ended, the cause is the target that most of the latest requests missed, and what the first of the queue
waits for.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sloserve.core.tenants import NONE, OTHER
from sloserve.engine.metrics.live_page import ROW, Frame
from sloserve.engine.metrics.live_state import BAD, FINE, how_it_fares
from sloserve.engine.why import NEXT_STEP, PHASE_IN_WORDS, SAYS, Cause, RequestPhase, Why, sentence, told_with_head

_DUE, _PHASE, _CLASS, _WHY, _MISSED = (ROW.index(name) for name in ("due_s", "phase", "class_id", "why", "missed"))
_TARGET_IN_WORDS: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "e2e", "tds": "TDS"}
_FOR_OTHERS: Final = frozenset({Why.PLAN, Why.PLAN_LATER, Why.PLAN_OTHER, Why.PLAN_ALONE})
_GAVE_WAY: Final = "the plan gave their places to others"
_BEFORE: Final = "they were preempted before anyone watched"
_PACES: Final = frozenset({"tpot", "tds"})
"""Targets of the pace of running requests, which no place in the queue would help."""
_TOO_SLOW: Final = "Steps take too long: give the policy the option step_budget=true, or lower --max-num-seqs."
_OVER: Final = (
    "See Queue and Refused/s of the last ten minutes: if that load comes back, add a replica, or refuse requests early "
    "with --admission predict."
)
_CROWD: Final = 10
"""Waiting requests below which no tenant is named as the one that sent most of them."""


@dataclass(frozen=True, slots=True)
class _Headline:
    """One class that is not fine.

    Args:
        how: How it fares.
        cause: What holds its requests up; ``None`` if that is not known.
        advice: What an operator can do about it, if anything.
    """

    how: str
    cause: str | None = None
    advice: str | None = None


def headlines(
    frames: Sequence[Frame],
    by_class: Mapping[str, Mapping[str, Any]],
    missed_targets: Mapping[str, Mapping[str, int]],
    tenants: Sequence[Mapping[str, Any]],
    at_s: float,
) -> dict[str, Any]:
    """Return the sentences about the classes that are not fine, the class with the highest burn rate first.

    ``headlines`` holds the sentences, ``causes`` what each ends with behind a colon, or ``None``, ``alarms`` whether
    each class is bad, and ``advice`` what an operator can do about each, if anything.

    Args:
        frames: Frames of the engines.
        by_class: Figures of the classes, in the order of the class table.
        missed_targets: Number of latest requests that missed each target, for each class.
        tenants: Rows of the tenants, see :mod:`sloserve.engine.metrics.tenant_view`.
        at_s: The present time, in epoch seconds.
    """
    wrong = [(i, name, one) for i, (name, one) in enumerate(by_class.items()) if one["state"] != FINE]
    wrong.sort(key=lambda one: (one[2]["state"] != BAD, -(one[2]["burn"][0] or 0.0), one[0]))
    told = [_headline(frames, i, name, one, missed_targets[name], tenants, at_s) for i, name, one in wrong]
    return {
        "headlines": [one.how if one.cause is None else f"{one.how}: {one.cause}" for one in told],
        "causes": [one.cause for one in told],
        "alarms": [one["state"] == BAD for _, _, one in wrong],
        "advice": [one.advice for one in told],
    }


def is_late(frame: Frame, class_id: int, at_s: float) -> NDArray[np.bool_]:
    """Return which drawn requests of a class are late at ``at_s``, or were when the frame was made."""
    found: NDArray[np.bool_] = (frame.rows[:, _CLASS] == class_id) & (frame.rows[:, _DUE] < max(at_s, frame.at_s))
    return found


def _headline(
    frames: Sequence[Frame],
    class_id: int,
    name: str,
    figures: Mapping[str, Any],
    missed_targets: Mapping[str, int],
    tenants: Sequence[Mapping[str, Any]],
    at_s: float,
) -> _Headline:
    parts = [how_it_fares(figures)]
    cause, advice = None, None
    count = max(figures["late"], figures["missed"])
    if count:
        said = f"{count:,} {'with a missed deadline' if figures['missed'] else 'late'}"
        mostly = _mostly(frames, class_id, at_s)
        if mostly is not None:  # none of them is drawn otherwise
            phase, of_phase, (cause, advice) = mostly
            all_drawn = all(frame.live == len(frame.rows) for frame in frames)
            said += f", {of_phase if all_drawn else 'most'} of them {PHASE_IN_WORDS[phase]}"
        parts.append(said)
    if not cause and figures["state"] == BAD:
        cause, advice = _of_ended(frames, missed_targets)
    if cause and advice and (crowd := _crowd(tenants)):
        cause, advice = f"{cause}; {crowd}", f"{advice} Or limit the tenant: quota in the file of --keys."
    return _Headline(f"{name}: {'; '.join(filter(None, parts))}", cause or None, advice)


def _mostly(
    frames: Sequence[Frame], class_id: int, at_s: float
) -> tuple[RequestPhase, int, tuple[str, str | None]] | None:
    """Return the phase of most drawn requests of a class that are late, their number, and why the latest is held up.

    The reason comes with what an operator can do about it. If no request is late now, requests that have missed a
    deadline are taken. The result is ``None`` if no such request is drawn.
    """
    late_rows = [is_late(frame, class_id, at_s) for frame in frames]
    if not any(one.any() for one in late_rows):
        late_rows = [(frame.rows[:, _CLASS] == class_id) & (frame.rows[:, _MISSED] > 0.0) for frame in frames]
    late = [(row, frame) for frame, of in zip(frames, late_rows, strict=True) for row in frame.rows[of]]
    if not late:
        return None
    ((phase, count),) = Counter(int(row[_PHASE]) for row, _ in late).most_common(1)
    row, frame = min((one for one in late if one[0][_PHASE] == phase), key=lambda one: float(one[0][_DUE]))
    own = Cause(Why(int(row[_WHY])), float(row[_WHY + 1]), float(row[_WHY + 2]))
    if own.why in (*_FOR_OTHERS, Why.UNSEEN):
        said, advice = _of_head(frames)
        lost = _GAVE_WAY if own.why in _FOR_OTHERS else _BEFORE
        return RequestPhase(phase), count, ("; ".join(filter(None, (lost, said))), advice)
    head = frame.head if phase == RequestPhase.WAITING else Cause()
    return RequestPhase(phase), count, told_with_head(own, head)


def _of_ended(frames: Sequence[Frame], missed_targets: Mapping[str, int]) -> tuple[str | None, str | None]:
    """Return the target that most of the latest requests of a class missed, and what the first of the queue waits for.

    It comes with what an operator can do about it: where the pace was missed, about the steps and not about the queue.
    """
    if not missed_targets:
        return None, None
    target, count = max(missed_targets.items(), key=lambda one: one[1])
    missed = f"{count:,} missed {_TARGET_IN_WORDS[target]}"
    if target in _PACES:
        return missed, _TOO_SLOW
    said, advice = _of_head(frames)
    return (f"{missed}; no request waits now", _OVER) if said is None else (f"{missed}; {said}", advice)


def _of_head(frames: Sequence[Frame]) -> tuple[str | None, str | None]:
    """Return what the first of the queue waits for, and what an operator can do about it."""
    heads = [frame.head for frame in frames if frame.head.why]
    if not heads:
        return None, None
    head = heads[0]
    return f"the first of the queue waits: {sentence(SAYS[head.why], head.figure, head.of)}", NEXT_STEP.get(head.why)


def _crowd(tenants: Sequence[Mapping[str, Any]]) -> str | None:
    """Return which tenant sent more than half of the waiting requests; ``None`` if no tenant did."""
    waiting = sum(one["waiting"] for one in tenants)
    if waiting < _CROWD:
        return None
    first = max(tenants, key=lambda one: one["waiting"])
    if first["name"] in (NONE, OTHER) or 2 * first["waiting"] <= waiting:
        return None
    part = "all" if first["waiting"] == waiting else f"{first['waiting']:,} of the"
    return f"tenant {first['name']} sent {part} {waiting:,} waiting requests"
