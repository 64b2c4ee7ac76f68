"""Round robin: the cycle, turns that end, and how many make room for how many."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.rr import RR
from sloserve.core.request import WorkloadRequest
from sloserve.scheduler.policy import Plan, Snapshot, check_plan

Make = Callable[..., Snapshot]


class Turns:
    """RR with turns of ``interval`` steps at work on a snapshot, told of every arrival in order of ``seq``."""

    def __init__(self, at: Snapshot, interval: int = 3) -> None:
        self.at = at
        self.policy = RR(RR.Settings(interval_steps=interval))
        for slot in range(at.waiting.size + at.running.size):
            self.policy.arrived(at.rows, slot, 0.0)

    def serve(self, *slots: int, steps: int = 1) -> None:
        for _ in range(steps):
            self.policy.progressed(self.at.rows, np.array(slots), np.ones(len(slots), np.int64), 0.0)

    def plan(self) -> Plan:
        made = self.policy.plan(self.at, 0.0)
        check_plan(made, self.at)
        return made


def order(slots: Any) -> list[int]:
    return [int(s) for s in slots]


def test_admits_whom_it_has_served_least_recently_and_ties_by_arrival(snapshot: Make) -> None:
    turns = Turns(snapshot([{}] * 4))
    turns.serve(0)
    turns.serve(3)
    assert order(turns.plan().waiting) == [1, 2, 0, 3]


def test_a_new_request_joins_at_the_end_of_the_cycle(snapshot: Make) -> None:
    turns = Turns(snapshot([{}, {}]))
    turns.serve(1, steps=2)
    turns.serve(0)
    new = turns.at.rows.add(prompt_tokens=16)
    turns.policy.arrived(turns.at.rows, new, 0.0)
    turns.at = Snapshot(turns.at.rows, np.array([0, 1, new]), turns.at.running, turns.at.engine)
    # Served in the very step before it came, the first two are ahead by their earlier arrival or service.
    assert order(turns.plan().waiting) == [1, 0, new]


def test_a_slot_used_again_begins_anew(snapshot: Make) -> None:
    turns = Turns(snapshot([{}], [{}, {}], max_num_seqs=2))
    turns.serve(0, 1, steps=3)
    turns.policy.arrived(turns.at.rows, 1, 0.0)
    assert order(turns.plan().preempt) == [0]


@pytest.mark.parametrize(("waiting", "preempted"), [(1, [1]), (2, [1, 0]), (3, [1, 0]), (4, [1, 0])])
def test_as_many_make_room_as_wait_and_only_those_whose_turn_is_over(
    waiting: int, preempted: list[int], snapshot: Make
) -> None:
    turns = Turns(snapshot([{}] * waiting, [{}] * 3, max_num_seqs=3))
    turns.serve(1)
    turns.serve(0, 1, steps=3)
    turns.serve(2, steps=2)
    made = turns.plan()
    assert order(made.preempt) == preempted
    assert order(made.waiting) == [3, 4, 5][:waiting]


def test_preempts_as_many_as_the_missing_blocks_take(snapshot: Make) -> None:
    # 161 tokens take 11 blocks of 16; 3 are free beside the 1 % kept free, and each victim brings 4.
    at = snapshot([{"prompt_tokens": 160}], [{"kv_blocks": 4}] * 4, free_blocks=4, total_blocks=100)
    turns = Turns(at)
    turns.serve(0, 1, 2, 3, steps=3)
    assert order(turns.plan().preempt) == [3, 2]


@pytest.mark.parametrize(
    ("waiting", "running", "engine"),
    [
        ([], [{}] * 2, {"max_num_seqs": 2}),
        ([{}], [{}] * 2, {"max_num_seqs": 3}),
        ([{}], [{"preemptable": False}] * 2, {"max_num_seqs": 2}),
        ([{"prompt_tokens": 1000}], [{}] * 2, {"max_num_seqs": 2, "free_blocks": 20}),
    ],
    ids=["nobody waits", "a slot is free", "the guards forbid it", "all victims hold too few blocks"],
)
def test_preempts_nobody_when(waiting: list[Any], running: list[Any], engine: dict[str, int], snapshot: Make) -> None:
    turns = Turns(snapshot(waiting, running, **engine))
    turns.serve(0, 1, steps=9)
    assert not turns.plan().preempt.size


def test_preempts_however_often_it_was_preempted(snapshot: Make) -> None:
    turns = Turns(snapshot([{}], [{"num_preemptions": 1000}], max_num_seqs=1))
    turns.serve(0, steps=3)
    assert order(turns.plan().preempt) == [0]


def test_a_turn_begins_anew_at_admission(snapshot: Make) -> None:
    turns = Turns(snapshot([{}], [{}], max_num_seqs=1))
    turns.serve(0, steps=3)
    assert order(turns.plan().preempt) == [0]
    rows, engine = turns.at.rows, turns.at.engine
    rows.state[[0, 1]] = rows.state[[1, 0]]
    turns.at = Snapshot(rows, np.array([0]), np.array([1]), engine)
    turns.serve(0)  # was in flight when it was preempted
    turns.plan()
    rows.state[[0, 1]] = rows.state[[1, 0]]
    turns.at = Snapshot(rows, np.array([1]), np.array([0]), engine)
    turns.serve(0, steps=2)
    assert not turns.plan().preempt.size
    turns.serve(0)
    assert order(turns.plan().preempt) == [0]


def test_kv_shortage_takes_the_longest_served(snapshot: Make) -> None:
    turns = Turns(snapshot(running=[{}] * 3))
    turns.serve(0, steps=2)
    turns.serve(1)
    assert order(turns.plan().running) == [2, 1, 0]


def test_rows_may_grow(snapshot: Make) -> None:
    turns = Turns(snapshot())
    for _ in range(200):
        turns.policy.arrived(turns.at.rows, turns.at.rows.add(prompt_tokens=16), 0.0)
    turns.serve(150)
    turns.at = Snapshot(turns.at.rows, np.arange(200), turns.at.running, turns.at.engine)
    assert order(turns.plan().waiting) == list(range(8))


@pytest.mark.vllm
def test_everybody_is_served_in_turns_of_the_interval() -> None:
    from sloserve.core.slo import DEFAULT_CLASSES, Targets
    from sloserve.engine.virtual.engine_settings import EngineSettings
    from sloserve.estimator.step_time.profile import load_profile
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    interval, most = 10, 40
    settings = EngineSettings(kv_blocks=100, max_num_seqs=2, max_num_batched_tokens=64, max_model_len=256)
    section = {"policy": f"rr:interval_steps={interval}", "aged_share": 0.0}
    engine = VirtualEngine(settings, load_profile("h100-llama3-8b"), {"sloserve": section})
    slo = DEFAULT_CLASSES.slo(None, Targets())
    log = engine.run([WorkloadRequest(f"r{i}", 0.0, 20, most, slo) for i in range(6)])

    assert all(r.token_times_s.size == most for r in log.requests)
    # Nobody has to wait for another's whole reply: everybody gets a first token before anybody gets a second turn.
    firsts = [float(r.token_times_s[0]) for r in log.requests]
    assert max(firsts) < min(float(r.token_times_s[interval + 2]) for r in log.requests)
    assert {r.num_preemptions for r in log.requests} <= {2, 3, 4}
    # Beside the first, turns are as long as the interval and what was in flight when they ended.
    for r in log.requests:
        step_s = float(np.median(np.diff(r.token_times_s)))
        ends = [i + 1 for i, gap in enumerate(np.diff(r.token_times_s)) if gap > 5 * step_s]
        assert all(interval <= b - a <= interval + 2 for a, b in pairwise([0, *ends]))
        assert len(ends) == r.num_preemptions
