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
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import ClassTable
from sloserve.fleet.contract.traffic import Traffic
from sloserve.fleet.planning.counterfactual import Needed, replay_of, replicas_needed
from sloserve.fleet.planning.replayed_model import ReplayedModel

_START_S: Final = 15.0
"""CPU seconds that the process may take beyond the ones of its replays, to start and to end."""
_LOWEST: Final = 19


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
    traffic: Traffic
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
    """The replays have used their CPU seconds."""


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
    """Return the replicas needed by one model, from the last half of its traffic if the whole takes too long."""
    half_s = (time.process_time() + until_s) / 2.0
    for traffic, end_s in ((one.traffic, half_s), (_newer_half(one.traffic), until_s)):
        serve = partial(_serve, one.model, end_s)
        replay = replay_of(traffic, job.classes, lead_s=job.lead_s, seed=job.seed)
        try:
            return replicas_needed(replay, serve, one.there, one.most, job.objective, seed=job.seed)
        except _OutOfTimeError:
            continue
    return None


def _serve(model: ReplayedModel, until_s: float, requests: Sequence[WorkloadRequest], count: int) -> RunLog:
    def check(ended: int) -> None:
        if time.process_time() > until_s:
            raise _OutOfTimeError

    return model.serve(requests, count, check)


def _newer_half(traffic: Traffic) -> Traffic:
    covers_s = traffic.covers_s / 2.0
    return replace(traffic, covers_s=covers_s, requests=tuple(one for one in traffic.requests if one.age_s <= covers_s))


def main() -> None:
    """Run the process."""
    os.nice(_LOWEST)
    job: Job = pickle.load(sys.stdin.buffer)  # its parent writes it, over a pipe
    limit_s = int(job.cpu_s + _START_S)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    sys.stdout.buffer.write(msgspec.json.encode(replayed(job)))


if __name__ == "__main__":
    main()
