"""What takes an engine down, and does not: hostile numbers, faults of ours, clocks that step, slow plans, adapters."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.rows import Rows, State
from sloserve.core.tasks import TaskCall
from sloserve.engine.policy_maker import PolicyMaker
from sloserve.scheduler.policy import Plan, Policy, Snapshot
from sloserve.wire.xargs import with_call
from tests import bounded

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
RequestOf = Callable[..., Any]


class Scripted(Policy):
    """Plans what the test says, and counts how often."""

    needs = frozenset({"prompt_tokens"})

    def __init__(self, script: Callable[[Snapshot], Plan]) -> None:
        super().__init__()
        self.script = script
        self.plans = 0

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        self.plans += 1
        return self.script(snapshot)


def step(engine: Any, duration_s: float = 0.01) -> Any:
    """One step, scheduled and applied; returns vLLM's SchedulerOutput."""
    batch = engine._dispatch(0.0, 0.0)
    engine._clock.advance_to(engine._clock.now_s() + duration_s)
    engine._apply(batch, 0.0)
    return batch.output


@pytest.mark.parametrize("policy", ["priority", "edf", "chaos"])
def test_priorities_beyond_the_column_are_served(build: Build, request_of: RequestOf, policy: str) -> None:
    numbers = [2**63, 2**63 - 1, 0, -(2**63), -(2**63) - 1, 10**30, -(10**30)]
    workload = [request_of(f"r{i}", priority=number) for i, number in enumerate(numbers)]
    log = build(policy).run(workload)
    assert {r.outcome for r in log.requests} == {Outcome.COMPLETED}
    assert "internal_errors" not in log.counters


@pytest.mark.parametrize("name", ["add_request", "_preempt_request", "_free_request", "update_from_output", "schedule"])
def test_what_vllm_raises_is_for_vllm_to_see(
    build: Build, request_of: RequestOf, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    def fail(*args: Any, **kwargs: Any) -> None:
        raise MemoryError("vLLM's own")

    monkeypatch.setattr(AsyncScheduler, name, fail)
    engine = build("chaos:preempt=1:illegal=0:pause=0", kv_blocks=24)
    with pytest.raises(MemoryError, match="vLLM's own"):
        engine.run([request_of(f"r{i}") for i in range(4)])
    assert "internal_errors" not in engine.scheduler.slo_counters


def test_planning_begins_again_after_a_fault_with_everybody_s_row(build: Build, request_of: RequestOf) -> None:
    policy = Scripted(lambda at: Plan.IDENTITY)
    engine = build(policy)
    scheduler = engine.scheduler
    for name in "abcdef":
        engine._add([request_of(name, output_tokens=200)], engine._clock.now_s())
    step(engine)
    pauses_s = []
    for _ in range(3):
        scheduler.planner.budget = None  # whatever asks for the next plan fails
        began_s, plans = engine._clock.now_s(), policy.plans
        step(engine)
        assert scheduler.planner is None and policy.plans == plans
        with bounded.within("another planner"):
            while scheduler.planner is None:
                step(engine, 0.5)
        pauses_s.append(engine._clock.now_s() - began_s)
    assert pauses_s == pytest.approx([1.5, 2.5, 4.5], abs=0.02)
    assert scheduler.slo_counters["internal_errors"] == 3 and policy.plans > plans
    table = scheduler.planner.table
    states = {name: State(table.rows.state[slot]) for name, slot in table.slot_of.items()}
    running = {r.request_id for r in scheduler.running}
    assert states == {name: State.RUNNING if name in running else State.WAITING for name in "abcdef"}
    scheduler.set_policies("edf")
    scheduler.planner.budget = None
    step(engine)
    step(engine, 1.0)
    step(engine)
    assert scheduler.planner is not None, "another policy begins with the shortest pause"


def test_a_wall_clock_that_steps_back_does_not_stop_planning(build: Build, request_of: RequestOf) -> None:
    """A plan that costs 1 ms is due again after 20 ms, whatever the wall clock does meanwhile; a shadow's too."""
    engine = build("edf", section={"shadow_policy": "sjf"}, plan_cost_us=1000.0)
    scheduler = engine.scheduler
    engine._add([request_of("a", output_tokens=200)], engine._clock.now_s())
    for i, change_s in enumerate((0.0, -3600.0, 7200.0)):
        engine._clock.set_wall(engine._clock.now_s() + change_s)
        for _ in range(20):
            step(engine)
        plans = scheduler.slo_counters["plans"], scheduler.policies.shadow.figures["plans"]
        assert plans == pytest.approx((10 * (i + 1),) * 2, abs=2)


@pytest.mark.parametrize("set_by_s", [0.0, -3600.0, 3600.0])
def test_the_deadline_of_a_task_is_a_time_of_the_clock_on_which_the_scheduler_compares_times(
    build: Build, set_by_s: float
) -> None:
    """The front end states deadlines by the host's clock as it stands then."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    engine = build("edf")
    scheduler, clock = engine.scheduler, engine._clock
    clock.set_wall(clock.now_s() + set_by_s)
    params = SamplingParams(max_tokens=1, extra_args=with_call(None, TaskCall("t", clock.now_s() + 30.0)))
    scheduler.add_request(Request("a", [2], params, None, arrival_time=clock.now_s()))
    rows, slot = scheduler.planner.table.rows, scheduler.planner.table.slot_of["a"]
    assert rows.e2e_s[slot] == pytest.approx(30.0, abs=1e-3)


class LastLength(Scripted):
    """Learns how long the last reply was."""

    learned = ("length",)
    needs = frozenset({"prompt_tokens", "output_tokens"})
    length = 0

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        self.length = int(rows.output_tokens[slot])


def test_what_was_learned_outlives_a_first_fault_and_not_one_that_comes_back(
    build: Build, request_of: RequestOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build("edf:step_budget=true", section={"shadow_policy": "sjf"})
    scheduler = engine.scheduler
    monkeypatch.setattr(PolicyMaker, "policy", lambda *args, **kwargs: LastLength(lambda at: Plan.IDENTITY))
    scheduler.set_policies("edf")
    engine._add([request_of("a", output_tokens=7), request_of("b", output_tokens=200)], engine._clock.now_s())
    for _ in range(12):
        step(engine)
    assert scheduler.policies.policy.length == 7
    shadow = scheduler.policies.shadow.policy._lengths
    for kept in (7, 0):
        before = scheduler.policies.policy
        scheduler.planner.budget = None  # whatever asks for the next plan fails
        with bounded.within("another planner"):
            while scheduler.planner is None or scheduler.policies.policy is before:
                step(engine, 0.5)
        assert scheduler.policies.policy.length == kept
        assert (scheduler.policies.shadow.policy._lengths is shadow) == (kept > 0)
    assert scheduler.policies._dropped is None


def served(engine: Any, request_of: RequestOf, set_by_s: tuple[float, ...]) -> list[dict[str, int]]:
    """The tokens of each step, while the host's clock is set again and again as more requests arrive."""
    steps = []
    for round_, change_s in enumerate(set_by_s):
        engine._clock.set_wall(engine._clock.now_s() + change_s)
        for i, (ttft_s, tds, e2e_s) in enumerate(
            [(0.3, 50.0, None), (None, None, 1.5), (4.0, None, None), (None,) * 3]
        ):
            slo = {"ttft_s": ttft_s, "e2e_s": e2e_s}
            request = request_of(f"{round_}-{i}", output_tokens=30 + 11 * i, prompt_tokens=20 + 7 * i, **slo)
            targets = dataclasses.replace(request.slo.targets, tds=tds)
            request = dataclasses.replace(request, slo=dataclasses.replace(request.slo, targets=targets))
            engine._add([request], engine._clock.now_s())
        steps += [dict(step(engine, 0.02).num_scheduled_tokens) for _ in range(15)]
    return steps


@pytest.mark.parametrize("policy", ["auto", "edf:step_budget=true", "econo", "andes", "sa", "qlm"])
def test_a_host_s_clock_that_is_set_changes_no_decision(build: Build, request_of: RequestOf, policy: str) -> None:
    """What came before the change is after it as old as time has passed, and deadlines stay where they are."""
    undisturbed = served(build(policy), request_of, (0.0,) * 5)
    disturbed = served(build(policy), request_of, (0.0, -3600.0, 60.0, -0.4, 86400.0))
    assert disturbed == undisturbed


def test_what_a_slow_plan_wants_ends_long_before_the_next(build: Build, request_of: RequestOf) -> None:
    """A plan of 200 ms serves 4 s at a share of 5 %: its pause ends after 0.25 s, its limits after 1 s."""
    policy = Scripted(lambda at: Plan(pause=at.running[:1], max_running=3, prefill_chunk_tokens=1))
    engine = build(policy, plan_cost_us=200_000.0)
    scheduler = engine.scheduler
    for name in "abc":
        engine._add([request_of(name, output_tokens=230)], engine._clock.now_s())
    step(engine)
    engine._clock.advance_to(engine._clock.now_s() + 4.0)
    for name in "de":
        engine._add([request_of(name, output_tokens=200)], engine._clock.now_s())
    running, without_a = [], 0
    for _ in range(130):
        output = step(engine)
        running.append(len(scheduler.running))
        without_a += "a" not in output.num_scheduled_tokens
    assert policy.plans == 2
    assert 25 <= without_a <= 26
    assert running.index(4) in (100, 101)
    assert scheduler.slo_counters["stale_plans"] in (28, 29, 30)


def adapters(engine: Any, adapter_of: dict[str, int]) -> None:
    """Two adapters at a time; requests get theirs by id."""
    from vllm.lora.request import LoRARequest

    engine.scheduler.lora_config = SimpleNamespace(max_loras=2)
    stock = engine.scheduler.add_request

    def add_request(request: Any) -> None:
        number = adapter_of[request.request_id]
        request.lora_request = LoRARequest(f"l{number}", number, "/nowhere")
        stock(request)

    engine.scheduler.add_request = add_request


def test_a_reused_plan_pauses_nobody_with_an_adapter_once_these_are_short(build: Build, request_of: RequestOf) -> None:
    """Two run with an adapter each, one of them is paused, and while that plan holds a third adapter comes."""
    engine = build(Scripted(lambda at: Plan(pause=at.running[1:2])), plan_cost_us=3000.0)
    adapters(engine, {"a": 1, "b": 2, "c": 3})
    for name in "ab":
        engine._add([request_of(name, output_tokens=60)], engine._clock.now_s())
    step(engine)
    engine._clock.advance_to(engine._clock.now_s() + 0.1)
    assert set(step(engine).num_scheduled_tokens) == {"a"}
    engine._add([request_of("c", output_tokens=60)], engine._clock.now_s())
    for _ in range(10):
        assert set(step(engine).num_scheduled_tokens) == {"a", "b"}
    assert engine.scheduler.slo_counters["reused_plans"] > 0


def test_who_ageing_admitted_is_not_paused_either_while_adapters_are_short(build: Build, request_of: RequestOf) -> None:
    turn = iter(range(1000))
    policy = Scripted(lambda at: Plan(pause=at.running[1:2]) if next(turn) % 2 else Plan.IDENTITY)
    classes = {"interactive": {"rank": 0, "aged_after_s": 0.001}}
    engine = build(policy, section={"aged_share": 1.0, "classes": classes})
    adapters(engine, {"a": 1, "b": 2, "c": 3})
    scheduler = engine.scheduler
    for name in "ab":
        engine._add([request_of(name, output_tokens=60)], engine._clock.now_s())
    engine._clock.advance_to(engine._clock.now_s() + 1.0)
    step(engine)
    assert not scheduler.planner.table.rows.preemptable[[0, 1]].any()
    engine._add([request_of("c", output_tokens=60)], engine._clock.now_s())
    for _ in range(10):
        assert set(step(engine).num_scheduled_tokens) == {"a", "b"}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("plan_cost_us", [0.0, 2000.0])
def test_adapters_of_random_plans_fit(build: Build, request_of: RequestOf, seed: int, plan_cost_us: float) -> None:
    """Random pauses and preemptions, more adapters than fit now and then, everybody aged soon."""
    rng = np.random.default_rng([seed, 3])
    classes = {"interactive": {"rank": 0, "aged_after_s": 0.05}}
    section = {"seed": seed, "classes": classes, "aged_share": 0.5}
    engine = build("chaos:pause=0.6:illegal=0", section=section, kv_blocks=24, plan_cost_us=plan_cost_us)
    arrivals_s = np.sort(rng.uniform(0.0, 3.0, 40)).tolist()
    workload = [
        request_of(f"r{i}", arrival_s, int(rng.integers(1, 60)), int(rng.integers(1, 40)))
        for i, arrival_s in enumerate(arrivals_s)
    ]
    adapters(engine, {request.request_id: int(rng.integers(1, 4)) for request in workload})
    log = engine.run(workload)
    assert [r.token_times_s.size for r in log.requests] == [r.output_tokens for r in workload]
    assert log.counters["paused_steps"] and log.counters["evictions"] and "internal_errors" not in log.counters
