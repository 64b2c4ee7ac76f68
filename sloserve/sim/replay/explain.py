"""Why was a request late: what the recording says, and which fact, had it alone been other, would have saved it.

A cause is claimed only if replays confirm it: the traffic around the request is replayed as it was, and again with one
fact changed. Both are replays, so that what a replay gets wrong is in both. Nothing is claimed if the request is not
late in the replay of what ran.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.core.finished import Latency
from sloserve.engine.recording.reading import Recording
from sloserve.sim.recorded_run import in_time
from sloserve.sim.replay.engine_of import FittedSteps, fitted_steps
from sloserve.sim.replay.explain_changes import Change, alone, changes, long_steps
from sloserve.sim.replay.explain_course import Ahead, Course, ahead_of, course_of
from sloserve.sim.replay.judged import TRUSTED_POINTS, ended_ids, recorded_fates, replay_error, replayed_fates
from sloserve.sim.replay.replay import Replayed
from sloserve.sim.replay.traffic import Span, traffic

SEEDS: Final = 3
"""Replays of what ran, and of each change, which differ in how step times vary."""
BEFORE_S: Final = 120.0
"""Seconds before the arrival of a request from which a replay is judged, and at which it begins if it was idle then."""
MOST_BEFORE_S: Final = 600.0
"""Most seconds before its arrival at which a replay begins."""
_AFTER_S: Final = 5.0
"""Seconds after its end in which requests still come: a replay may serve it later."""
_APART: Final = 2
"""Requests of a short window that may fare otherwise than recorded."""


@dataclass(frozen=True, slots=True)
class Fate:
    """How a request fared in replays with the same facts.

    Args:
        in_time: Number of the replays in which it was in time.
        of: Number of the replays.
        ttft_s: Mean time to first token; ``None`` where it had none.
        e2e_s: Mean time to its last token; ``None`` where it did not end.
    """

    in_time: int
    of: int
    ttft_s: float | None
    e2e_s: float | None

    @property
    def always(self) -> bool:
        """Whether it was in time in every replay."""
        return self.in_time == self.of

    @property
    def never(self) -> bool:
        """Whether it was late in every replay."""
        return not self.in_time

    def figures(self) -> dict[str, Any]:
        """Return plain values for a report."""
        return {"in_time": self.in_time, "of": self.of, "ttft_s": self.ttft_s, "e2e_s": self.e2e_s}


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """Why a request was late.

    Args:
        course: What happened to it.
        policy: The policy that ran.
        ahead: Requests that were served while it was held up.
        long_steps: How many steps were far longer than usual while it was there, and the seconds lost by them.
        points: Requests in time in the replay of what ran less the recorded ones, in points; ``None`` without targets.
        compared: Number of the requests that were compared.
        base: How it fared in the replay of what ran.
        alone: How it fared with the engine to itself; ``None`` if nothing was tried.
        tried: Changes, and how it fared with each; empty if the replay is not to be trusted.
    """

    course: Course
    policy: str
    ahead: Ahead
    long_steps: tuple[int, float]
    points: float | None
    compared: int
    base: Fate
    alone: Fate | None
    tried: Sequence[tuple[Change, Fate]]

    @property
    def mistrust(self) -> str | None:
        """Reason why nothing may be claimed; ``None`` for none."""
        most = max(TRUSTED_POINTS, 100.0 * _APART / max(self.compared, 1))
        if not self.base.never:
            return f"the replay of what ran has the request in time in {self.base.in_time} of {self.base.of} runs"
        if self.points is not None and abs(self.points) > most:
            return f"the replay of what ran is {self.points:+.1f} points from the recording, more than {most:.1f}"
        return None

    @property
    def causes(self) -> list[Change]:
        """Changes with which it was in time in every replay."""
        return [change for change, fate in self.tried if fate.always]

    def figures(self) -> dict[str, Any]:
        """Return plain values for a report."""
        count, lost_s = self.long_steps
        return {
            **self.course.figures(),
            "policy": self.policy,
            "served_beside_it": self.ahead.by_class(),
            "long_steps": {"steps": count, "lost_s": lost_s},
            "replay": {**self.base.figures(), "points": self.points, "compared": self.compared},
            "mistrust": self.mistrust,
            "alone": None if self.alone is None else self.alone.figures(),
            "tried": [
                {"kind": change.kind, "change": change.says, "saves": fate.always, **fate.figures()}
                for change, fate in self.tried
            ],
        }


def explain(
    recording: Recording,
    number: int,
    *,
    seeds: int = SEEDS,
    fitted: FittedSteps | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Explanation:
    """Return why a request was late.

    Args:
        recording: The recording.
        number: Number of the request.
        seeds: Number of replays of what ran, and of each change.
        fitted: Step times of the recording, if they are known already.
        on_progress: Called with the number of replays that have ended, and of all.

    Raises: ConfigError for a request that is not known, has not ended or was not late, and for a recording that says
        too little.
    """
    course = course_of(recording, number)
    if not course.late:
        why = "was in time" if course.targets else "has no targets, so that nothing makes it late"
        raise ConfigError(f"request {number}: {why}; --late lists the late ones")
    fitted = fitted or fitted_steps(recording)
    replays = [_replayed(recording, fitted, course, seed) for seed in range(seeds)]
    asked, ahead = replays[0].traffic, ahead_of(recording, course)
    candidates = [alone(asked, course), *changes(recording, fitted, asked, course, ahead)]
    done = 0

    def fate(change: Change | None) -> Fate:
        nonlocal done
        found = [_fate_of(replayed, course, change, seed) for seed, replayed in enumerate(replays)]
        done += seeds
        if on_progress is not None:
            on_progress(done, seeds * (len(candidates) + 2))
        return _mean(found)

    base = fate(None)
    points, compared = _error(recording, replays, course)
    first = Explanation(course, asked.policy, ahead, long_steps(fitted, course), points, compared, base, None, ())
    if first.mistrust is not None:
        return first
    by_itself = fate(candidates[0])
    # What is late with the engine to itself, other orders and fewer requests cannot save.
    rest = [one for one in candidates[1:] if by_itself.in_time or one.usual_steps]
    return replace(first, alone=by_itself, tried=[(one, fate(one)) for one in rest])


def _replayed(recording: Recording, fitted: FittedSteps, course: Course, seed: int) -> Replayed:
    """Return what is replayed: the traffic from an idle moment before a request to a while after its end."""
    arrived_s, ended_s = course.request.at_s, course.ended_s
    changed_s = [change.at_s for change in recording.policies if change.at_s < ended_s]
    if changed_s and changed_s[-1] > arrived_s:
        raise ConfigError(
            f"request {course.request.number}: the policy changed while it was there, which no replay shows; choose "
            "another request"
        )
    start_s = max([_start_s(recording, arrived_s), *changed_s])
    after_s = max(_AFTER_S, 0.25 * (ended_s - arrived_s))
    span = Span(max(start_s, arrived_s - BEFORE_S), ended_s + after_s)
    asked = traffic(recording, span, seed=seed, start_s=start_s)
    own = f"r{course.request.number}"  # a client that gave up is served in a replay: when, is what is asked
    return Replayed(recording, fitted, replace(asked, left_s={k: v for k, v in asked.left_s.items() if k != own}))


def _start_s(recording: Recording, arrived_s: float) -> float:
    """Return the last idle moment :data:`BEFORE_S` before a request, or else :data:`MOST_BEFORE_S` before it."""
    at_s = sorted(one.at_s for one in recording.arrived.values())
    last_s = at_s[bisect_left(at_s, arrived_s - MOST_BEFORE_S)]
    busy_s = float("-inf")
    found = [last_s]
    for number, one in sorted(recording.arrived.items(), key=lambda item: item[1].at_s):
        if one.at_s > arrived_s - BEFORE_S:
            break
        if one.at_s > busy_s and one.at_s >= last_s:
            found.append(one.at_s)
        end = recording.ended.get(number)
        busy_s = max(busy_s, float("inf") if end is None else end.at_s)
    return found[-1]


def _fate_of(replayed: Replayed, course: Course, change: Change | None, seed: int) -> tuple[bool, Latency | None]:
    changed = replayed if change is None else change.made(replayed, course)
    ran = replayed.traffic.policy
    name = ran if change is None else change.run_name(ran)
    (log,) = changed.run(name, seed=seed, until=f"r{course.request.number}").requests
    return in_time(course.targets, log.latency), log.latency


def _mean(found: Sequence[tuple[bool, Latency | None]]) -> Fate:
    known = [one for _, one in found if one is not None]
    ttft_s = float(np.mean([one.ttft_s for one in known])) if known else None
    e2e_s = float(np.mean([one.e2e_s for one in known])) if known else None
    return Fate(sum(met for met, _ in found), len(found), ttft_s, e2e_s)


def _error(recording: Recording, replays: Sequence[Replayed], course: Course) -> tuple[float | None, int]:
    """Return how far replays of what ran are from the recording, in points of requests in time, and their number.

    Compared are the requests around it that had ended when it did: the later ones are beside others in a replay.
    """
    asked = replays[0].traffic
    ended = {number: one for number, one in recording.ended.items() if one.at_s <= course.ended_s}
    cut = replace(recording, ended=ended)
    real, ids = recorded_fates(cut, asked), ended_ids(cut, asked)
    logs = [one.run(asked.policy, seed=seed) for seed, one in enumerate(replays)]
    found = [replayed_fates(log, one.traffic, ids) for log, one in zip(logs, replays, strict=True)]
    return replay_error(real, found).points, real.met.size
