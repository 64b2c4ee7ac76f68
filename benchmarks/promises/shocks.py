"""Runs of an engine in virtual time with four shocks: load, mix of requests, policy and speed change.

A run has five parts with the same number of requests. Loads are multiples of what the engine completes a second of the
mix of that part, as it is measured beforehand with all requests there at once. Each request is predicted at its arrival
by the product's own admission, which refuses none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.finished import Latency
from sloserve.core.predicted import LEVELS, PREDICTED
from sloserve.core.request import WorkloadRequest
from sloserve.core.rows import Rows
from sloserve.core.runlog import RunLog
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.planning_cost import planning_costs
from sloserve.estimator.step_time.noise import StepNoise
from sloserve.estimator.step_time.profile import Profile
from sloserve.lso.plan import EngineFacts, Plan, Snapshot
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest, Forecast
from sloserve.scheduler.admission.ticket import Ticket
from sloserve.scheduler.policy import Policy
from sloserve.scheduler.registry import make_policy, parse_policy
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.workloads.length_models import TokenLengths, bookcorpus, sharegpt
from sloserve.sim.workloads.seeding import stream
from sloserve.sim.workloads.slo_assignment import DEFAULT_ASSIGNMENT
from sloserve.sim.workloads.trace import make_trace
from sloserve.sim.workloads.workload_registry import to_requests

PARTS = ("base", "load doubles", "mix changes", "policy changes", "engine slows to half")
LOADS = (0.5, 1.0, 0.7, 0.7, 0.7)
"""The load of each part, in multiples of the capacity of its mix on the engine as it was before it slowed."""
SLOW = 2.0
RELIEF, RELIEVED = 0.1, 0.45
"""From this share of the last part on, the load is this: clients of a service that has become so slow turn away.

Before, 1.4 times as many requests come as the slowed engine completes; afterwards 0.9 times as many.
"""
CHUNKS = 0.5
"""Share of requests with a chunk of a book as their prompt, of class batch, once the mix has changed."""
ARRIVES, STARTS, ENDS = range(3)
"""Kinds of events."""
THEN = {"auto": "edf", "edf": "fcfs", "fcfs": "auto"}
"""Which policy follows on which."""
NOISE = 0.1


@dataclass(frozen=True, slots=True)
class Shocks:
    """When each part of the run begins, in seconds from its start."""

    starts_s: tuple[float, ...]

    @property
    def policy_s(self) -> float:
        return self.starts_s[3]

    @property
    def slow_s(self) -> float:
        return self.starts_s[4]


class SlowedSteps:
    """Noise of step times, which take twice as long from a moment on."""

    def __init__(self, seed: int, slow_s: float) -> None:
        self._noise, self._slow_s = StepNoise(seed, NOISE), slow_s

    def factor(self, step: int, now_s: float) -> float:
        return self._noise.factor(step) * (SLOW if now_s >= self._slow_s else 1.0)


class SwitchedPolicy(Policy):
    """A policy that another follows; both know of every request, and one of them plans."""

    def __init__(self, first: Policy, then: Policy, at_s: float) -> None:
        super().__init__()
        self._first, self._then, self._at_s = first, then, at_s
        self._began_s: float | None = None
        self.needs = first.reads | then.reads  # type: ignore[misc]
        self.wants_progress = first.wants_progress or then.wants_progress  # type: ignore[misc]

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        self._began_s = now_s if self._began_s is None else self._began_s
        for policy in (self._first, self._then):
            policy.arrived(rows, slot, now_s)

    def progressed(self, rows: Rows, slots: IntArray, tokens: IntArray, now_s: float) -> None:
        for policy in (self._first, self._then):
            if policy.wants_progress:
                policy.progressed(rows, slots, tokens, now_s)

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        for policy in (self._first, self._then):
            policy.finished(rows, slot, now_s)

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        switched = self._began_s is not None and now_s - self._began_s >= self._at_s
        policy = self._then if switched else self._first
        self.solver_cells = 0
        plan = policy.plan(snapshot, now_s)
        self.solver_cells = policy.solver_cells
        return plan

    def is_idle(self, waiting: int, running: int, engine: EngineFacts) -> bool:
        return False


class RecordingAdmission(Admission):
    """Admission that notes what it is notified of, in order, so that rivals can be given the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.events: list[tuple[float, int, str]] = []

    def admit(self, new: ArrivingRequest, forecast: Forecast, request: Any, now_s: float, *more: Any) -> Ticket:
        self.events.append((now_s, ARRIVES, request))
        ticket = super().admit(new, forecast, request, now_s, *more)
        return cast(Ticket, _RecordingTicket(ticket, request, self.events))


@dataclass(slots=True)
class _RecordingTicket:
    ticket: Ticket
    request: str
    events: list[tuple[float, int, str]]
    promised: None = None

    @property
    def forecast(self) -> Forecast:
        return self.ticket.forecast

    def started(self, now_s: float) -> None:
        self.events.append((now_s, STARTS, self.request))
        self.ticket.started(now_s)

    def ended(self, latency: Latency | None, output_tokens: int, now_s: float) -> None:
        self.events.append((now_s, ENDS, self.request))
        self.ticket.ended(latency, output_tokens, now_s)


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """One run: its requests in order of arrival, and the events that the front end saw, in order.

    Args:
        event: What happens, ``[events, 2]``: its kind and the index of its request.
        at_s: When it happens by the clock of the front end, ``[events]``.
        prompt_tokens: Prompt tokens, ``[requests]``.
        output_tokens: Output tokens, ``[requests]``.
        class_id: Index in the table of classes, ``[requests]``.
        latency_s: TTFT, TPOT and e2e, ``[requests, 3]``; not a number for what did not happen, as the TPOT of a single
            token.
        predicted_s: Predictions by figure and level, ``[requests, 3, levels]``; not a number where there is none.
        starts_s: When each part begins, ``[parts]``, in seconds from the start of the run.
    """

    event: IntArray
    at_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    class_id: IntArray
    latency_s: FloatArray
    predicted_s: FloatArray
    starts_s: FloatArray

    @classmethod
    def of(cls, log: RunLog, recorder: RecordingAdmission, shocks: Shocks) -> "Recorded":
        """Return what is needed of a run."""
        index = {r.request.request_id: i for i, r in enumerate(log.requests)}
        names = list(DEFAULT_ASSIGNMENT.table.names)
        latency, predicted = np.full((len(index), 3), np.nan), np.full((len(index), 3, len(LEVELS)), np.nan)
        for i, r in enumerate(log.requests):
            found = r.latency
            if found is not None:
                tpot_s = found.tpot_s if r.request.output_tokens > 1 else math.nan
                latency[i] = found.ttft_s, tpot_s, found.e2e_s
            if r.predicted is not None:
                for name, quantiles in r.predicted.figures():
                    predicted[i, PREDICTED.index(name)] = quantiles.each
        requests = [r.request for r in log.requests]
        return cls(
            np.array([(kind, index[request_id]) for _, kind, request_id in recorder.events]),
            np.array([at_s for at_s, _, _ in recorder.events]),
            np.array([r.prompt_tokens for r in requests]),
            np.array([r.output_tokens for r in requests]),
            np.array([names.index(r.slo.slo_class.name) for r in requests]),
            latency,
            predicted,
            np.array(shocks.starts_s),
        )

    def save(self, path: Path) -> None:
        """Write the run to a file of numpy."""
        np.savez_compressed(path, **{name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def load(cls, path: Path) -> "Recorded":
        """Return the run that :meth:`save` wrote."""
        with np.load(path) as found:
            return cls(**{name: found[name] for name in cls.__slots__})


def requests(count: int, seed: int, capacity: Sequence[float]) -> tuple[list[WorkloadRequest], Shocks]:
    """Return the requests of a run and when its shocks come.

    Args:
        count: Number of requests.
        seed: Seed of arrivals, lengths and classes.
        capacity: Requests per second that the engine completes of the first mix and of the second.
    """
    part = np.arange(count) * len(PARTS) // count
    loads = np.array(LOADS)[part]
    loads[int(count * (len(PARTS) - 1 + RELIEF) / len(PARTS)) :] = RELIEVED
    rates = loads * np.array(capacity)[(part >= 2).astype(int)]
    arrival_s = np.cumsum(stream(seed, "promises/arrivals").exponential(1.0, count) / rates)
    made = _drawn(seed, arrival_s, part >= 2)
    return made, Shocks(tuple(made[int(np.argmax(part == k))].arrival_s for k in range(len(PARTS))))


def _drawn(seed: int, arrival_s: np.ndarray, is_second: np.ndarray) -> list[WorkloadRequest]:
    count = arrival_s.size
    lengths: dict[str, TokenLengths] = {"chat": sharegpt(), "chunk": bookcorpus()}
    prompt, output = lengths["chat"].draw(count, stream(seed, "promises/chat"))
    longer, replies = lengths["chunk"].draw(count, stream(seed, "promises/chunk"))
    chunk = is_second & (stream(seed, "promises/mix").random(count) < CHUNKS)
    prompt, output = np.where(chunk, longer, prompt), np.where(chunk, replies, output)
    tasks = ["chunk" if one else "chat" for one in chunk.tolist()]
    slos = replace(DEFAULT_ASSIGNMENT, by_task={"chunk": "batch"})
    return to_requests(make_trace("promises", "generator", arrival_s, prompt, output, tasks), slos, seed)


def capacity_of(profile: Profile, settings: EngineSettings, seed: int, count: int = 2000) -> tuple[float, float]:
    """Return the requests per second that an engine completes of each mix, first come, first served."""
    found = []
    for second in (False, True):
        made = _drawn(seed, np.arange(count) * 1e-6, np.full(count, second))
        finish_s = np.sort([r.finish_s for r in ModelEngine(settings, profile, None).run(made).requests])
        low, high = int(0.1 * count), int(0.9 * count)
        found.append((high - low) / float(finish_s[high] - finish_s[low]))
    return found[0], found[1]


def served(
    profile: Profile,
    settings: EngineSettings,
    made: list[WorkloadRequest],
    shocks: Shocks,
    policy: str,
    seed: int,
    leaves_s: Mapping[str, float] | None = None,
) -> Recorded:
    """Serve a run with shocks, and return what its front end saw.

    Args:
        profile: Step times of the engine before it slows.
        settings: Settings of the engine.
        made: The requests.
        shocks: When policy and speed change.
        policy: The first of its policies.
        seed: Seed of the noise of step times.
        leaves_s: When clients leave, in seconds from the start of the run, by id; ``None`` if none leaves.
    """
    section: dict[str, Any] = {"policy": policy, "seed": seed}
    first, then = (make_policy(*parse_policy(name), seed=seed) for name in (policy, THEN[policy]))
    table = DEFAULT_ASSIGNMENT.table
    recorder = RecordingAdmission(table.names, lambda place: True)
    engine = ModelEngine(
        settings,
        profile,
        {"sloserve": section | table.as_config()},
        recorder,
        planning_costs=planning_costs(),
        noise=SlowedSteps(seed, shocks.slow_s),
        policy=SwitchedPolicy(first, then, shocks.policy_s - made[0].arrival_s),
    )
    engine.give(*made)
    for leaves, request_id in sorted((at_s, request_id) for request_id, at_s in (leaves_s or {}).items()):
        while engine.at <= leaves:
            engine.advance()
        engine.abort(request_id, leaves)
    while engine.at < math.inf:
        engine.advance()
    return Recorded.of(engine.log(made), recorder, shocks)
