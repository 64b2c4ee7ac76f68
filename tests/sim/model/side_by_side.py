"""The same run on vLLM's real scheduler and on the model, and where they first part."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from sloserve.core.runlog import RequestLog, RunLog
from tests.sim.model.cases import Case
from tests.sim.stepping import stepped


@dataclass(frozen=True)
class Step:
    """What one step did. tokens: by request, in the order of the batch. preempted: in order. free_blocks: after it."""

    tokens: tuple[tuple[str, int], ...]
    admitted: tuple[str, ...]
    preempted: tuple[str, ...]
    free_blocks: int


MOST_STEPS = 10_000
"""Several times what the largest case takes; one that takes more makes no progress."""


@dataclass
class Record:
    """One engine's steps."""

    steps: list[Step] = field(default_factory=list)
    log: RunLog | None = None

    def add(self, step: Step) -> None:
        self.steps.append(step)
        assert len(self.steps) < MOST_STEPS, f"no end after {MOST_STEPS} steps; the last ones: {self.steps[-8:]}"


def run_real(case: Case) -> Record:
    """vLLM's scheduler."""
    from sloserve.vllm_plugin.engine import compat
    from sloserve.vllm_plugin.engine.vllm_port import admitted_ids
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    engine = VirtualEngine(case.settings, case.profile, case.config, **case.virtual_time)
    record = Record()
    preempted: list[str] = []
    compat.on_preemption(engine.scheduler, preempted.append)

    def note(output: Any) -> None:
        tokens = tuple(output.num_scheduled_tokens.items())
        free = compat.free_blocks(engine.scheduler)
        record.add(Step(tokens, tuple(admitted_ids(output)), tuple(preempted), free))
        preempted.clear()

    engine.on_step = note
    record.log = engine.run(case.requests) if case.aborts is None else stepped(engine, case.requests, case.aborts)
    return record


def run_model(case: Case) -> Record:
    """The model."""
    from sloserve.sim.model.engine import ModelEngine

    engine = ModelEngine(case.settings, case.profile, case.config, **case.virtual_time)
    scheduler = engine.scheduler
    record = Record()
    preempted: list[str] = []
    preempt: Callable[[int], None] = scheduler.preempt

    def telling(index: int) -> None:
        preempt(index)
        preempted.append(scheduler.requests.handles[index].request_id)

    scheduler.preempt = telling  # type: ignore[method-assign]

    def note(batch: Any) -> None:
        ids = [handle.request_id for handle in scheduler.requests.handles]
        tokens = tuple((ids[i], n) for i, n in zip(batch.requests.tolist(), batch.tokens.tolist(), strict=True))
        admitted = tuple(ids[i] for i in batch.admitted)
        record.add(Step(tokens, admitted, tuple(preempted), scheduler.kv.free))
        preempted.clear()

    engine.on_step = note
    record.log = engine.run(case.requests) if case.aborts is None else stepped(engine, case.requests, case.aborts)
    return record


def difference(real: Record, model: Record) -> str | None:
    """Which step and request differ first, in words; ``None`` where nothing does, neither in the logs of the runs."""
    for number, (theirs, ours) in enumerate(zip(real.steps, model.steps, strict=False), 1):
        if theirs != ours:
            return f"step {number}: {_of_step(theirs, ours)}"
    if len(real.steps) != len(model.steps):
        return f"vLLM makes {len(real.steps)} steps, the model {len(model.steps)}"
    assert real.log is not None and model.log is not None
    for mine, other in zip(real.log.requests, model.log.requests, strict=True):
        if not np.array_equal(mine.token_times_s, other.token_times_s) or _plain(mine) != _plain(other):
            return f"log of {mine.request.request_id}: vLLM {_plain(mine)}, model {_plain(other)}"
    for name in ("end_s", "duration_s", "scheduled_tokens", "running", "waiting", "kv_utilization"):
        if not np.array_equal(getattr(real.log.steps, name), getattr(model.log.steps, name)):
            return f"{name} of the steps"
    counters = [{name: n for name, n in log.counters.items() if n} for log in (real.log, model.log)]
    return None if counters[0] == counters[1] else f"counters: vLLM {counters[0]}, model {counters[1]}"


def _of_step(theirs: Step, ours: Step) -> str:
    if theirs.free_blocks != ours.free_blocks and replace(theirs, free_blocks=0) == replace(ours, free_blocks=0):
        return f"free blocks: vLLM {theirs.free_blocks}, model {ours.free_blocks}"
    found = ""
    for what in ("tokens", "admitted", "preempted"):  # the cause last: it replaces what follows from it
        for place, (a, b) in enumerate(zip_longest(getattr(theirs, what), getattr(ours, what), fillvalue="none")):
            if a != b:
                found = f"{what}, place {place}: vLLM {a}, model {b}"
                break
    return found


def _plain(log: RequestLog) -> tuple[Any, ...]:
    figures = log.num_preemptions, log.recomputed_tokens, log.cached_tokens
    return log.outcome, *figures, log.predicted, log.stages
