"""Requests that share a prefix share its KV blocks: preemptions are counted by what vLLM really frees."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.core.tasks import TaskCall
from sloserve.lso.preemption import freed_blocks
from sloserve.scheduler.policy import Plan, Policy, Snapshot

pytestmark = pytest.mark.vllm

Build = Callable[..., Any]
RequestOf = Callable[..., Any]


class PreemptAll(Policy):
    """Preempts all that run, once three decode and one waits; notes what it was told they free, and what was free."""

    needs = frozenset({"prompt_tokens", "computed_tokens"})

    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []
        self.free: list[int] = []

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, running = snapshot.rows, snapshot.running
        decode = (rows.computed_tokens[running] >= rows.prompt_tokens[running]).sum()
        if self.told or decode < 3 or not snapshot.waiting.size:
            return Plan.IDENTITY
        self.told = list(freed_blocks(map(snapshot.holding, running.tolist())))
        self.free.append(snapshot.engine.free_blocks)
        return Plan(preempt=running)


@pytest.mark.parametrize(("caching", "expected"), [(True, [1, 1, 10]), (False, [10, 10, 10])])
def test_a_snapshot_says_what_preemptions_free(
    build: Build, request_of: RequestOf, caching: bool, expected: list[int]
) -> None:
    """Three requests of ten blocks, nine of them a common prefix, which comes free with the last."""
    policy = PreemptAll()
    engine = build(policy, enable_prefix_caching=caching, max_num_seqs=3, max_num_batched_tokens=512)
    scheduler = engine.scheduler
    preempt = scheduler._preempt_request

    def counted(*args: Any, **kwargs: Any) -> None:
        preempt(*args, **kwargs)
        policy.free.append(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    scheduler._preempt_request = counted
    arrivals_s = {"a": 0.0, "b": 0.03, "c": 0.03, "d": 0.03}
    engine.run([request_of(name, at_s, 146, 12, prefix_ids=(1,)) for name, at_s in arrivals_s.items()])
    assert policy.told == np.diff(policy.free[:4]).tolist() == expected


def test_an_urgent_request_costs_one_that_shares_nothing_not_five_that_do(build: Build, request_of: RequestOf) -> None:
    """The five are due last. Each holds a block of its own beside the prefix; the urgent request needs eight more."""
    jobs = [request_of(f"job{i}", 0.0 if i < 1 else 0.02, 146, 12, e2e_s=999.0, prefix_ids=(1,)) for i in range(5)]
    alone = request_of("alone", 0.02, 146, 12, e2e_s=998.5)
    urgent = request_of("urgent", 0.06, 146, 5, e2e_s=1.0)
    size = {"kv_blocks": 27, "max_num_seqs": 8, "max_num_batched_tokens": 512}
    log = build("edf:preempt_margin_s=1", enable_prefix_caching=True, **size).run([*jobs, alone, urgent])
    preempted = {r.request.request_id: r.num_preemptions for r in log.requests if r.num_preemptions}
    assert (preempted, log.counters["evictions"]) == ({"alone": 1}, 1)


class Looking(Policy):
    """Serves as vLLM does; notes what rows say that waiting requests find in the prefix cache, and what vLLM finds."""

    needs = frozenset({"hit_tokens"})

    def __init__(self) -> None:
        super().__init__()
        self.finds: Callable[[int], int] = int
        self.told: list[int] = []
        self.found: list[int] = []

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        self.told += snapshot.rows.hit_tokens[snapshot.waiting].tolist()
        self.found += map(self.finds, snapshot.waiting.tolist())
        return Plan(waiting=snapshot.waiting)


def test_a_row_says_what_vllm_will_find_in_its_prefix_cache(build: Build, request_of: RequestOf) -> None:
    """Chats of two rounds on blocks for three requests, so that beginnings are forgotten while requests wait."""
    policy = Looking()
    engine = build(policy, enable_prefix_caching=True, max_num_seqs=2, kv_blocks=30, max_num_batched_tokens=64)
    scheduler = engine.scheduler

    def finds(slot: int) -> int:
        request = scheduler.planner.table.request_at[slot]
        return int(scheduler.kv_cache_manager.get_computed_blocks(request)[1])

    policy.finds = finds
    engine.run([request_of(f"r{i}", 0.02 * i, 100 + 40 * (i % 2), 8, prefix_ids=(i // 2 % 3,)) for i in range(16)])
    assert policy.told == policy.found
    assert len(set(policy.found)) > 2 and any(np.diff(policy.found) < 0)


class Counting(Policy):
    """Serves as vLLM does; notes by how much the rows' blocks exceed those in use, and by how much they do."""

    needs = frozenset({"kv_blocks", "hit_tokens", "prompt_tokens"})

    def __init__(self) -> None:
        super().__init__()
        self.said: list[int] = []
        self.held: list[int] = []
        self.awaited: list[float] = []
        self.together: Callable[[], int] = int

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        blocks = int(snapshot.rows.kv_blocks[snapshot.running].sum())
        self.said.append(snapshot.shared_blocks)
        self.held.append(blocks - self.together())
        self.awaited.append(snapshot.awaited_blocks)
        return Plan(waiting=snapshot.waiting)


@pytest.mark.parametrize("caching", [True, False])
def test_a_snapshot_says_how_many_blocks_count_more_than_once(
    build: Build, request_of: RequestOf, caching: bool
) -> None:
    policy = Counting()
    engine = build(policy, enable_prefix_caching=caching, max_num_seqs=3, kv_blocks=60, max_num_batched_tokens=64)
    scheduler = engine.scheduler

    def together() -> int:
        manager = scheduler.kv_cache_manager
        groups = (manager.get_blocks(request.request_id).blocks for request in scheduler.running)
        return len({block.block_id for blocks in groups for group in blocks for block in group})

    policy.together = together
    engine.run([request_of(f"r{i}", 0.02 * i, 100 + 40 * (i % 2), 8, prefix_ids=(i // 3 % 2,)) for i in range(16)])
    assert policy.said == policy.held
    assert (max(policy.said) > 5) == caching
    assert not any(policy.awaited)  # no prompt is as long as a stretch


class Freeing(Policy):
    """Serves as vLLM does; notes how many blocks are said to come free once the steps in flight are over."""

    needs = frozenset({"prompt_tokens"})

    def __init__(self) -> None:
        super().__init__()
        self.said: set[int] = set()

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        self.said.add(snapshot.engine.freeing_blocks)
        return Plan(waiting=snapshot.waiting)


def test_of_deferred_frees_only_blocks_that_nobody_else_holds_come_free(build: Build, request_of: RequestOf) -> None:
    """Of a request that ended, one block is its own, one is shared, and one is the null block."""
    policy = Freeing()
    engine = build(policy, max_num_seqs=2, kv_blocks=60)
    blocks = [SimpleNamespace(ref_cnt=holders) for holders in (1, 2, 0)]
    engine.scheduler.deferred_frees.append((10**9, blocks))  # of a step that is never over
    engine.run([request_of(f"r{i}", 0.02 * i, 100, 8) for i in range(4)])
    assert policy.said == {1}


@pytest.mark.parametrize(("caching", "says_last"), [(True, False), (False, False), (True, True)])
def test_kv_of_a_conversation_is_awaited_between_two_turns(
    build: Build, request_of: RequestOf, caching: bool, says_last: bool
) -> None:
    """Each conversation has two turns, one after the other has ended; the prompt of the last begins like the first.

    KV of calls that their clients say are the last of their tasks is not awaited.
    """
    policy = Counting()
    size = {"kv_blocks": 900, "max_model_len": 4096, "max_num_batched_tokens": 2048, "max_num_seqs": 4}
    turns = []
    for i in range(6):
        first = (100 + i, 200 + i)
        turns.append(request_of(f"r{i}.0", 3.0 * i, 1024, 4, prefix_ids=first))
        turns.append(request_of(f"r{i}.1", 3.0 * i + 1.0, 1536, 4, prefix_ids=(*first, 300 + i)))
    beside = [request_of(f"beside{i}", 0.5 * i, 40, 60) for i in range(36)]
    if says_last:
        turns = [replace(turn, call=TaskCall(turn.request_id, last=True)) for turn in turns]
    turns = sorted([*turns, *beside], key=lambda request: request.arrival_s)
    build(policy, enable_prefix_caching=caching, **size).run(turns)
    assert (max(policy.awaited) > 10) == (caching and not says_last)
    assert max(policy.awaited) <= 2 * 96
