"""A short-lived process that replays the traffic of a fleet, beside the planner and behind everything else.

``python -m sloserve.fleet.planning.replay_process`` reads a :class:`Job` from its input, and writes the replicas needed
by each model to its output. It has the lowest priority and may use ``Job.cpu_s`` seconds of one core: a replay that is
not over by then is left out, and the kernel ends a process that uses more.
"""

import os
import pickle
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import ClassTable
from sloserve.fleet.contract.traffic import RecentTraffic
from sloserve.fleet.planning.counterfactual import Needed, replay_of, replicas_needed
from sloserve.fleet.planning.replayed_model import ReplayedModel

_START_S: Final = 15.0
"""CPU seconds that the process may take beyond the ones of its replays, to start and to end."""
_LOWEST: Final = 19
_PARTS: Final = (0.25, 0.5, 1.0)
"""Part of the seconds that are left which each try may take."""
_SPARE: Final = 0.8
"""Part of a try's seconds that its traffic is chosen for."""
_USUAL_REPLAYS: Final = 3.0
_LEAST: Final = 20
"""Fewest requests that are worth a replay."""


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    """The traffic of one model.

    Args:
        model: Model as replicas.
        traffic: Requests of the last minutes that ask for it.
        there: Number of its replicas.
        most: Most replicas that it may have.
    """

    model: ReplayedModel
    traffic: RecentTraffic
    there: int
    most: int


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be replayed.

    Args:
        models: Traffic by model.
        classes: Classes of the fleet.
        objective: Share of the requests that shall meet their targets, in each class.
        lead_s: Seconds after which a replica that is asked for now could serve.
        cpu_s: CPU seconds for all replays.
        seed: Seed of the drawn lengths and intervals.
    """

    models: Mapping[str, ModelTraffic]
    classes: ClassTable
    objective: float
    lead_s: float
    cpu_s: float
    seed: int = 0


class _OutOfTimeError(Exception):
    """A replay has used its CPU seconds."""


def replayed(job: Job) -> dict[str, Needed]:
    """Return the replicas needed by each model; models for which the CPU seconds did not suffice are left out.

    Each model has an equal part of the seconds that are left when its turn comes.
    """
    found: dict[str, Needed] = {}
    until_s = time.process_time() + job.cpu_s
    for left, (name, one) in zip(range(len(job.models), 0, -1), sorted(job.models.items()), strict=True):
        now_s = time.process_time()
        of_model = _within(job, one, now_s + (until_s - now_s) / left)
        if of_model is not None:
            found[name] = of_model
    return found


def _within(job: Job, one: ModelTraffic, until_s: float) -> Needed | None:
    """Return the replicas needed by one model.

    If all of its traffic takes too long, the newest part of it is replayed that fits the seconds that are left.
    """
    traffic = one.traffic
    for part in _PARTS:
        now_s = time.process_time()
        end_s = now_s + (until_s - now_s) * part
        timed = _TimedServe(one.model, end_s)
        replay = replay_of(traffic, job.classes, lead_s=job.lead_s, seed=job.seed)
        try:
            return replicas_needed(replay, timed.serve, one.there, one.most, job.objective, seed=job.seed)
        except _OutOfTimeError:
            more = _SPARE * (until_s - end_s) / max(end_s - now_s, 1e-3)
            kept = int(len(traffic.requests) * min(more * timed.done / _USUAL_REPLAYS, 0.5))
            if kept < _LEAST:
                return None
            newest = traffic.requests[-kept:]
            traffic = RecentTraffic(newest[0].age_s, newest)
    return None


class _TimedServe:
    """Serves requests until a CPU time; ``done`` counts replays and the part of the one that was not ended."""

    def __init__(self, model: ReplayedModel, until_s: float) -> None:
        self._model, self._until_s = model, until_s
        self._replays, self._part = 0, 0.0

    @property
    def done(self) -> float:
        return self._replays + self._part

    def serve(self, requests: Sequence[WorkloadRequest], count: int) -> RunLog:
        def check(ended: int) -> None:
            self._part = ended / max(len(requests), 1)
            if time.process_time() > self._until_s:
                raise _OutOfTimeError

        check(0)
        log = self._model.serve(requests, count, check)
        self._replays, self._part = self._replays + 1, 0.0
        return log


def main() -> None:
    """Run the process."""
    os.nice(_LOWEST)
    job: Job = pickle.load(sys.stdin.buffer)  # its parent writes it, over a pipe
    limit_s = int(job.cpu_s + _START_S)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    sys.stdout.buffer.write(msgspec.json.encode(replayed(job)))


if __name__ == "__main__":
    main()
