"""SLOScheduler inside vLLM: pauses, preemptions, policies that misbehave, aborts, and ageing."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sloserve.core.arrays import IntArray
from sloserve.core.outcome import Outcome
from sloserve.core.rows import Rows, State
from sloserve.core.runlog import RunLog
from sloserve.engine.virtual.drafts import Drafts
from sloserve.scheduler.policy import Plan, Policy, Snapshot

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
RequestOf = Callable[..., Any]


def same_decisions(one: RunLog, other: RunLog) -> None:
    for mine, theirs in zip(one.requests, other.requests, strict=True):
        assert mine.outcome is theirs.outcome and mine.token_times_s.tolist() == theirs.token_times_s.tolist()


class Scripted(Policy):
    """Plans what the test says; notes what it is told."""

    needs = frozenset({"prompt_tokens", "kv_blocks", "output_tokens"})
    wants_progress = True

    def __init__(self, script: Callable[[Snapshot], Plan] = lambda at: Plan.IDENTITY) -> None:
        super().__init__()
        self.script = script
        self.plans = 0
        self.told: list[tuple[str, Any]] = []

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        self.told.append(("arrived", slot))

    def progressed(self, rows: Rows, slots: IntArray, tokens: IntArray, now_s: float) -> None:
        self.told.append(("progressed", slots.tolist()))

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        self.told.append(("finished", (slot, int(rows.output_tokens[slot]))))

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        self.plans += 1
        return self.script(snapshot)


def test_a_policy_is_told_of_arrival_each_token_and_the_end(build: Build, request_of: RequestOf) -> None:
    policy = Scripted()
    build(policy).run([request_of("a", output_tokens=3)])
    # The last token ends the request, so it is reported with the end.
    assert policy.told == [("arrived", 0), ("progressed", [0]), ("progressed", [0]), ("finished", (0, 3))]


def test_a_paused_request_gets_no_token_and_keeps_its_blocks(build: Build, request_of: RequestOf) -> None:
    paused_at: list[int] = []

    def pause_the_first(at: Snapshot) -> Plan:
        decoding = at.running.size == 2 and at.rows.output_tokens[0] > 2
        if not decoding or len(paused_at) >= 5:
            return Plan.IDENTITY
        paused_at.append(int(at.rows.kv_blocks[0]))
        return Plan(pause=np.array([0]))

    policy = Scripted(pause_the_first)
    engine = build(policy)
    steps: list[dict[str, int]] = []
    engine.on_step = lambda output: steps.append(dict(output.num_scheduled_tokens))
    log = engine.run([request_of("a", output_tokens=20), request_of("b", output_tokens=20)])

    without = [i for i, step in enumerate(steps) if "b" in step and "a" not in step and i < len(steps) - 10]
    assert len(without) == 5 and without == list(range(without[0], without[0] + 5))
    assert len(set(paused_at)) == 1 and paused_at[0] > 0
    assert log.counters["paused_steps"] == 5
    assert [r.num_preemptions for r in log.requests] == [0, 0]
    assert [r.token_times_s.size for r in log.requests] == [20, 20]


def test_everything_paused_is_nothing_paused(build: Build, request_of: RequestOf) -> None:
    log = build(Scripted(lambda at: Plan(pause=at.running))).run([request_of("a"), request_of("b")])
    same_decisions(log, build(None).run([request_of("a"), request_of("b")]))
    assert log.counters.get("paused_steps", 0) == 0


@pytest.mark.parametrize("policy", ["edf", "priority"])
def test_an_urgent_request_gets_in_although_every_slot_is_taken(
    build: Build, request_of: RequestOf, policy: str
) -> None:
    long = [request_of(f"long{i}", 0.0, 20, 150, slo_class="batch", priority=1) for i in range(4)]
    workload = [*long, request_of("urgent", 0.3, 20, 5, e2e_s=0.2)]
    log = build(policy, kv_blocks=60).run(workload)
    stock = build(None, kv_blocks=60).run(workload)
    assert log.requests[-1].finish_s is not None and log.requests[-1].finish_s < 0.5
    assert stock.requests[-1].finish_s is not None and stock.requests[-1].finish_s > 1.0
    assert sorted(r.num_preemptions for r in log.requests) == [0, 0, 0, 0, 1]
    assert log.requests[3].num_preemptions == 1  # the last to arrive gives way
    assert log.counters["evictions"] == 1
    assert {r.outcome for r in log.requests} == {Outcome.COMPLETED}


ILLEGAL: dict[str, Callable[[Snapshot], Any]] = {
    "raises": lambda at: 1 / 0,
    "no plan": lambda at: None,
    "unknown slot": lambda at: Plan(running=np.array([10**9])),
    "twice": lambda at: Plan(running=np.repeat(at.running, 2), waiting=np.repeat(at.waiting, 2), max_running=0),
    "preempts who waits": lambda at: Plan(preempt=at.rows.slots_in(State.FREE)),
    "no budget": lambda at: Plan(token_budget=0),
    "half a token": lambda at: Plan(token_budget=0.5),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("script", ILLEGAL.values(), ids=ILLEGAL)
def test_an_illegal_plan_is_the_identity_and_a_count(build: Build, request_of: RequestOf, script: Any) -> None:
    workload = [request_of(f"r{i}", 0.01 * i, 30 + i, 8) for i in range(8)]
    policy = Scripted(script)
    log = build(policy).run(workload)
    same_decisions(log, build(None).run(workload))
    assert log.counters["plan_errors"] == policy.plans > 0
    assert "plans" not in log.counters


@pytest.mark.parametrize("event", ["arrived", "progressed", "finished"])
def test_a_policy_that_fails_on_an_event_does_not_stop_the_engine(
    build: Build, request_of: RequestOf, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Scripted()
    monkeypatch.setattr(policy, event, lambda *args: 1 / 0)
    workload = [request_of(f"r{i}", output_tokens=3) for i in range(6)]
    log = build(policy).run(workload)
    same_decisions(log, build(None).run(workload))
    assert log.counters["plan_errors"] > 0 and log.counters["plans"] == policy.plans


def test_a_malformed_slo_is_served_without_it(
    build: Build, request_of: RequestOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    args: list[dict[str, Any]] = [{"slo_ttft_ms": "soon"}, {"slo_ttft_ms": 1e-323}, {"slo_colour": 1}, {}]
    monkeypatch.setattr("sloserve.vllm_plugin.virtual.engine.to_xargs", lambda slo, tokens: args.pop())
    log = build("edf").run([request_of(f"r{i}") for i in range(4)])
    assert log.counters["malformed_slo"] == 3
    assert [r.token_times_s.size for r in log.requests] == [10] * 4


def test_aborts_in_every_state_leave_neither_rows_nor_blocks(build: Build, request_of: RequestOf) -> None:
    from vllm.v1.request import RequestStatus

    engine = build("edf", kv_blocks=16)
    scheduler = engine.scheduler
    for i in range(6):
        engine._add([request_of(f"r{i}", prompt_tokens=30, output_tokens=90)], engine._clock.now_s())
    for _ in range(3):
        engine._apply(engine._dispatch(0.0, 0.0), 0.0)
    scheduler._preempt_request(scheduler.running.pop(), None)
    engine._apply(engine._dispatch(0.0, 0.0), 0.0)
    rows = scheduler.planner.table.rows
    states = {State(s) for s in rows.state.tolist()}
    assert len(rows) == 6 and states == {State.FREE, State.WAITING, State.RUNNING} | (states & {State.PREEMPTED})
    in_flight = engine._dispatch(0.0, 0.0)
    scheduler.finish_requests([f"r{i}" for i in range(5)], RequestStatus.FINISHED_ABORTED)
    engine._live = {"r5": engine._live["r5"]}
    engine._apply(in_flight, 0.0)
    assert len(rows) == len(scheduler.planner.table.slot_of) == 1
    scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    scheduler.schedule()
    assert len(rows) == 0 and not scheduler.has_unfinished_requests()
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 16


def test_no_plan_while_the_engine_is_being_paused(build: Build, request_of: RequestOf) -> None:
    from vllm.v1.core.sched.interface import PauseState

    policy = Scripted()
    engine = build(policy)
    engine._add([request_of("a")], engine._clock.now_s())
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    engine.scheduler.schedule()
    assert policy.plans == 0
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.scheduler.schedule()
    assert policy.plans == 1


def test_a_reused_plan_does_not_pause_the_next_request_in_a_freed_slot(build: Build, request_of: RequestOf) -> None:
    """The plan's pause names slot 0; its request ends, and the slot goes to one that was never meant."""
    engine = build(Scripted(lambda at: Plan(pause=at.running[:1]) if at.running.size > 1 else Plan.IDENTITY))
    scheduler = engine.scheduler
    for name in "abc":
        engine._add([request_of(name, output_tokens=40)], engine._clock.now_s())
    engine._apply(engine._dispatch(0.0, 0.0), 0.0)
    engine._apply(engine._dispatch(0.0, 0.0), 0.0)
    assert scheduler.planner.held.plan.pause.tolist() == [0]
    from vllm.v1.request import RequestStatus

    scheduler.planner.budget.allows = lambda now_s: False
    scheduler.finish_requests(["a"], RequestStatus.FINISHED_ABORTED)
    engine._live.pop("a")
    engine._add([request_of("d", output_tokens=40)], engine._clock.now_s())
    assert scheduler.planner.table.slot_of["d"] == 0
    engine._apply(engine._dispatch(0.0, 0.0), 0.0)
    batch = engine._dispatch(0.0, 0.0)
    assert set(batch.output.num_scheduled_tokens) == {"b", "c", "d"}


@pytest.mark.parametrize("aged_share", [0.0, 0.1, 0.5])
def test_an_old_request_gets_in_within_the_bound_under_a_flood(
    build: Build, request_of: RequestOf, aged_share: float
) -> None:
    """One background request of worst priority, and urgent ones that never stop coming."""
    flood = [request_of(f"u{i:03d}", 0.02 * i, 20, 60, slo_class="priority", priority=0) for i in range(120)]
    old = request_of("old", 0.05, 20, 10, slo_class="background", priority=9)
    workload = sorted([*flood, old], key=lambda r: r.arrival_s)
    section = {
        "aged_share": aged_share,
        "classes": {"priority": {"rank": 0}, "background": {"rank": 3, "aged_after_s": 1.0}},
    }
    engine = build("priority", section=section)
    admissions: list[tuple[float, str]] = []

    def note(output: Any) -> None:
        now_s = engine._clock.now_s() - 1_000_000.0
        admissions.extend((now_s, new.req_id) for new in output.scheduled_new_reqs)
        admissions.extend((now_s, i) for i in output.scheduled_cached_reqs.resumed_req_ids)

    engine.on_step = note
    log = engine.run(workload)
    assert {r.outcome for r in log.requests} == {Outcome.COMPLETED}
    since_aged = [name for now_s, name in admissions if now_s > 0.05 + 1.0]
    overtaken = since_aged.index("old")
    if aged_share:
        assert overtaken <= 1.0 / aged_share
    else:
        assert overtaken > 80


def test_an_aged_prompt_leaves_those_who_decode_their_tokens(build: Build, request_of: RequestOf) -> None:
    """It stands before them, so that it is the last that vLLM preempts, and took whole steps."""
    section = {"aged_share": 0.5, "classes": {"interactive": {"rank": 0, "aged_after_s": 0.05}}}
    engine = build("priority", section=section, max_num_seqs=3)
    steps: list[dict[str, int]] = []
    engine.on_step = lambda output: steps.append(dict(output.num_scheduled_tokens))
    chats = [request_of(f"chat{i}", 0.0, 10, 60, max_tokens=60) for i in range(2)]
    engine.run([*chats, request_of("first", 0.0, 10, 20, max_tokens=20), request_of("old", 0.01, 200, 5)])
    assert engine.scheduler.requests == {}
    prefill = [tokens for tokens in steps if tokens.get("old", 0) > 1]
    assert [tokens.pop("old") for tokens in prefill] == [62, 62, 62, 14]
    assert prefill == [{"chat0": 1, "chat1": 1}] * 4


def test_the_configuration_is_not_changed_by_two_engines_of_one_size(build: Build, request_of: RequestOf) -> None:
    """Limits are narrowed on the scheduler's configuration; engines built alike do not share it."""
    one, other = build(Scripted(lambda at: Plan(prefill_chunk_tokens=3))), build(None)
    one.run([request_of("a"), request_of("b")])
    assert one.scheduler.scheduler_config is not other.scheduler.scheduler_config
    before = dataclasses.asdict(other.scheduler.scheduler_config)
    one.run([request_of("c"), request_of("d")])
    assert dataclasses.asdict(other.scheduler.scheduler_config) == before


@pytest.mark.parametrize("limits", [{"prefill_chunk_tokens": 1}, {"token_budget": 2}], ids=str)
def test_a_prompt_ends_where_drafts_look_further_ahead_than_its_chunks_are_long(
    build: Build, request_of: RequestOf, limits: dict[str, int]
) -> None:
    engine = build(Scripted(lambda at: Plan(**limits)))
    scheduler = engine.scheduler
    scheduler.num_prefill_lookahead = 4  # as with drafts of four MTP modules
    engine._add([request_of(name, prompt_tokens=20) for name in "ab"], 0.0)
    computed = 0
    for _ in range(40):
        computed += scheduler.schedule().total_num_scheduled_tokens
    assert computed >= 40


def test_no_chunk_cuts_the_drafts_of_a_padded_prompt(build: Build, request_of: RequestOf) -> None:
    """vLLM pads the last token of a prompt beside decodes, and asserts that no threshold cuts it."""
    engine = build(Scripted(lambda at: Plan(prefill_chunk_tokens=1)), drafts=Drafts(3, 0.7))
    log = engine.run([request_of(f"r{i}", 0.03 * i, 1 if i else 20, 30) for i in range(4)])
    assert [r.token_times_s.size for r in log.requests] == [30] * 4


def test_a_step_budget_counts_no_prompt_whose_grammar_is_pending(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a fresh plan the prompts are those of vLLM's own queue, in which such requests stand first."""
    from types import SimpleNamespace

    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request, RequestStatus

    from sloserve.lso.step_budget import StepBudget

    seen: list[list[int]] = []
    monkeypatch.setattr(
        StepBudget, "tokens", lambda self, rows, running, waiting, *rest, admits: seen.append(waiting.tolist())
    )
    scheduler = build("fcfs:step_budget=true").scheduler
    made = [Request(str(i), [2], SamplingParams(max_tokens=9), None, arrival_time=0.0) for i in range(3)]
    for pending in made[:2]:
        pending.structured_output_request = SimpleNamespace(grammar=None)
        pending.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    for request in made:
        scheduler.add_request(request)
    slots = [scheduler.planner.table.slot_of[request.request_id] for request in made]
    scheduler._next_step(0.0, 0.0)
    made[1].structured_output_request.grammar = object()
    scheduler._next_step(0.0, 0.0)
    assert seen == [slots[2:], slots[1:]]
