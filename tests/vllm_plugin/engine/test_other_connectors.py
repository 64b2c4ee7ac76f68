"""Requests whose KV a connector loads that is not ours: they neither wait nor run, and hold their blocks."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.core.rows import State
from sloserve.scheduler.policy import Plan, Policy, Snapshot
from tests.vllm_plugin.engine.test_scheduler_hooks import Scripted
from tests.vllm_plugin.engine.test_staying_alive import step

pytestmark = pytest.mark.vllm


class LoadsPrompts:
    """Stands for a KV connector: it loads the first 16 tokens of each prompt until the test says that they came."""

    requires_kv_delivery = False
    supports_divergent_local_hybrid_hits = False

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        return (16, True) if computed == 0 else (0, False)

    def request_finished(self, *args: Any) -> tuple[bool, None]:
        return False, None

    def has_pending_block_frees(self) -> bool:
        return False

    def get_loaded_kv_cache_group_ids(self, *args: Any) -> tuple[int, ...]:
        return ()

    def take_events(self) -> tuple[Any, ...]:
        return ()

    request_finished_all_groups = request_finished

    def __getattr__(self, hook: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class LoadsNothing(LoadsPrompts):
    """Stands for a KV connector that has KV of nobody."""

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        return 0, False


class PreemptsAll(Policy):
    """Preempts whatever runs, before each step, and lets everything in again."""

    needs = frozenset({"prompt_tokens"})

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        return Plan(preempt=snapshot.running)


class AdmitsNone(Policy):
    """Keeps what it saw, and admits none that waits."""

    needs = frozenset({"prompt_tokens"})

    def __init__(self) -> None:
        super().__init__()
        self.saw: list[Snapshot] = []

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        self.saw.append(snapshot)
        return Plan(max_running=max(int(snapshot.running.size), 1))


def states(scheduler: Any, names: Sequence[str]) -> list[State]:
    table = scheduler.planner.table
    return [State(table.rows.state[table.slot_of[name]]) for name in names]


def test_who_loads_is_blocked_holds_blocks_and_runs_when_the_load_ends(
    build: Callable[..., Any], request_of: Callable[..., Any]
) -> None:
    policy = AdmitsNone()
    engine = build(policy)
    scheduler = engine.scheduler
    scheduler.connector, scheduler._others_load = LoadsPrompts(), True
    engine._add([request_of(name, prompt_tokens=40, output_tokens=9) for name in "abc"], engine._clock.now_s())
    step(engine)
    assert states(scheduler, "abc") == [State.BLOCKED] * 3
    before = policy.saw[-1].engine.total_blocks
    step(engine)
    assert not policy.saw[-1].waiting.size
    assert policy.saw[-1].engine.total_blocks == before - 3, "each holds the block that is loaded"
    scheduler.finished_recving_kv_req_ids |= {"a", "b"}
    assert step(engine).num_scheduled_tokens == {"a": 24, "b": 24}, "although the plan lets in one"
    assert states(scheduler, "abc") == [State.RUNNING, State.RUNNING, State.BLOCKED]
    scheduler.finished_recving_kv_req_ids.add("c")
    assert "c" in step(engine).num_scheduled_tokens
    assert "internal_errors" not in scheduler.slo_counters


def test_who_is_preempted_by_a_plan_does_not_come_back_in_the_same_step(
    build: Callable[..., Any], request_of: Callable[..., Any]
) -> None:
    """vLLM admits nobody in a step in which it preempts, and its connectors forget who is preempted in the step."""
    from sloserve.vllm_plugin.engine.other_connectors import hold_back_preempted

    engine = build(PreemptsAll())
    scheduler = engine.scheduler
    scheduler.connector, scheduler._others_load = LoadsNothing(), True
    hold_back_preempted(scheduler)
    engine._add([request_of(name, prompt_tokens=40, output_tokens=9) for name in "abc"], engine._clock.now_s())
    preempted = 0
    for _ in range(12):
        output = step(engine)
        now = output.preempted_req_ids or set()
        assert not now & output.num_scheduled_tokens.keys()
        preempted += len(now)
    assert preempted >= 6 and "internal_errors" not in scheduler.slo_counters


def test_a_victim_that_vllm_skipped_comes_back_in_the_order_of_the_plan(
    build: Callable[..., Any], request_of: Callable[..., Any]
) -> None:
    """vLLM 0.30 admits the requests that it skipped before all others."""
    from sloserve.vllm_plugin.engine.other_connectors import hold_back_preempted

    policy = Scripted()
    engine = build(policy, max_num_seqs=2)
    scheduler = engine.scheduler
    scheduler.connector, scheduler._others_load = LoadsNothing(), True
    hold_back_preempted(scheduler)
    engine._add([request_of(name, prompt_tokens=9, output_tokens=50) for name in "ab"], engine._clock.now_s())
    for _ in range(4):
        step(engine)
    policy.script = lambda at: Plan(preempt=at.running[:1], waiting=at.running[:1])
    assert set(step(engine).num_scheduled_tokens) == {"b"}
    policy.script = lambda at: Plan(waiting=at.waiting[np.argsort(-at.rows.seq[at.waiting])])
    engine._add([request_of("c", prompt_tokens=9, output_tokens=50)], engine._clock.now_s())
    assert set(step(engine).num_scheduled_tokens) == {"b", "c"}
    assert "internal_errors" not in scheduler.slo_counters


def test_requests_without_kv_that_vllm_skipped_wait_in_front_of_the_others() -> None:
    """Only those that hold KV stay apart, as in the versions after 0.30."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.core.sched.request_queue import FCFSRequestQueue
    from vllm.v1.request import Request

    from sloserve.vllm_plugin.engine import compat

    names = ("skipped", "loaded", "pending", "loading", "new")
    requests = {name: Request(name, [2], SamplingParams(), None) for name in names}
    blocks = {"loaded": [SimpleNamespace(is_null=False)], "loading": [SimpleNamespace(is_null=False)]}
    scheduler = SimpleNamespace(
        skipped_waiting=FCFSRequestQueue(requests[name] for name in ("skipped", "loaded", "pending", "loading")),
        waiting=FCFSRequestQueue([requests["new"]]),
        kv_cache_manager=SimpleNamespace(get_blocks=lambda name: SimpleNamespace(blocks=[blocks.get(name, [])])),
    )
    for _ in range(2):
        compat.requeue_skipped(scheduler)
        assert [request.request_id for request in scheduler.skipped_waiting] == ["loaded", "loading"]
        assert [request.request_id for request in scheduler.waiting] == ["skipped", "pending", "new"]
    compat.requeue_skipped(SimpleNamespace(kv_holding_waiting=FCFSRequestQueue()))  # a later version
