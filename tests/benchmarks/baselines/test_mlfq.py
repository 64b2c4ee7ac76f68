"""FastServe: levels, quanta, promotion, against a queue of plain lists; who sits out and who makes room."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.mlfq import FastServe
from sloserve.core.rows import State
from sloserve.scheduler.policy import Plan, Snapshot, check_plan
from tests.seeds import seeds

Make = Callable[..., Snapshot]


def order(slots: Any) -> list[int]:
    return [int(s) for s in slots]


class Queue:
    """FastServe at work on a snapshot, told of every arrival in order of ``seq``."""

    def __init__(self, at: Snapshot, **settings: Any) -> None:
        self.at = at
        self.policy = FastServe(FastServe.Settings(**{"prompt_weight": 0.0, "promote_s": 0.0, **settings}))
        for slot in range(at.waiting.size + at.running.size):
            self.policy.arrived(at.rows, slot, 0.0)

    def serve(self, *slots: int, tokens: int = 1, now_s: float = 0.0) -> None:
        self.policy.progressed(self.at.rows, np.array(slots), np.full(len(slots), tokens), now_s)

    def plan(self, now_s: float = 0.0) -> Plan:
        made = self.policy.plan(self.at, now_s)
        check_plan(made, self.at)
        return made

    def admission(self, now_s: float = 0.0) -> list[int]:
        return order(self.plan(now_s).waiting)


@pytest.mark.parametrize(
    ("prompt_tokens", "level"), [(1, 0), (40, 0), (41, 1), (80, 1), (81, 2), (160, 2), (161, 3), (9999, 3)]
)
def test_joins_at_the_first_level_whose_quantum_the_prompt_does_not_exceed(
    prompt_tokens: int, level: int, snapshot: Make
) -> None:
    # Quanta of 8, 16 and 32 tokens are 40, 80 and 160 of a prompt; the fourth level has no end.
    at = snapshot([{"prompt_tokens": prompt_tokens}, *[{"prompt_tokens": p} for p in (40, 80, 160, 161)]])
    queue = Queue(at, levels=4, quantum_tokens=8, prompt_weight=0.2)
    assert queue.admission().index(0) == level  # behind one request of each higher level, ahead of the rest


def test_falls_a_level_with_each_quantum_and_goes_to_its_end(snapshot: Make) -> None:
    queue = Queue(snapshot([{}, {}, {}]), levels=3, quantum_tokens=4)
    assert queue.admission() == [0, 1, 2]
    queue.serve(0, tokens=3)
    assert queue.admission() == [0, 1, 2]
    queue.serve(0)  # level 1
    assert queue.admission() == [1, 2, 0]
    queue.serve(1, tokens=4)
    assert queue.admission() == [2, 0, 1]
    queue.serve(2, 0, tokens=8)  # 2 falls to level 1 behind 1, 0 to the last
    assert queue.admission() == [1, 2, 0]
    queue.serve(0, tokens=1000)  # the last level has no quantum
    queue.serve(1, tokens=8)
    queue.serve(2, tokens=8)
    assert queue.admission() == [0, 1, 2]


def test_who_gets_no_token_for_long_returns_to_the_end_of_the_top(snapshot: Make) -> None:
    queue = Queue(snapshot([{}, {}, {}]), quantum_tokens=4, promote_s=10.0)
    queue.serve(0, 1, tokens=4, now_s=1.0)
    queue.serve(1, now_s=5.0)
    assert queue.admission(10.9) == [2, 0, 1]
    assert queue.admission(11.0) == [2, 0, 1]  # 0 is at the top again, behind 2
    queue.serve(2, tokens=4, now_s=11.0)
    assert queue.admission(12.0) == [0, 1, 2]
    # It has a whole quantum again.
    queue.serve(0, tokens=3, now_s=13.0)
    assert queue.admission(13.0) == [0, 1, 2]
    queue.serve(0, now_s=13.0)
    assert queue.admission(13.0) == [1, 2, 0]


def test_a_slot_used_again_begins_anew(snapshot: Make) -> None:
    queue = Queue(snapshot([{}, {}]), quantum_tokens=4)
    queue.serve(0, tokens=12)
    queue.policy.arrived(queue.at.rows, 0, 0.0)
    queue.serve(1, tokens=4)
    assert queue.admission() == [0, 1]


def test_output_so_far_counts_where_a_running_engine_is_taken_over(snapshot: Make) -> None:
    queue = Queue(snapshot([{"output_tokens": 33}, {}]), quantum_tokens=32)
    assert queue.admission() == [1, 0]


def test_rows_may_grow(snapshot: Make) -> None:
    queue = Queue(snapshot())
    for _ in range(200):
        queue.policy.arrived(queue.at.rows, queue.at.rows.add(prompt_tokens=16, max_tokens=16), 0.0)
    queue.serve(150, tokens=32)
    queue.at = Snapshot(queue.at.rows, np.arange(200), queue.at.running, queue.at.engine)
    assert queue.admission() == list(range(8))


FOUR = {"prompt_tokens": 32, "max_tokens": 32, "kv_blocks": 2}
"""Four blocks promised, two held."""


@pytest.mark.parametrize(("blocks", "pause", "preempt"), [(13, [0, 1], []), (11, [0], [1]), (9, [], [0, 1])])
def test_the_lower_level_sits_out_and_is_preempted_where_its_blocks_are_needed(
    blocks: int, pause: list[int], preempt: list[int], snapshot: Make
) -> None:
    queue = Queue(snapshot([FOUR, FOUR], [FOUR, FOUR], total_blocks=blocks), quantum_tokens=4, batch=2)
    queue.serve(0, 1, tokens=4)
    made = queue.plan()
    assert (order(made.waiting), order(made.pause), order(made.preempt)) == ([2, 3], pause, preempt)
    assert made.max_running == 2 + len(pause)


@pytest.mark.parametrize("fixed", [{"preemptable": False}, {"pausable": False}])
def test_who_must_not_be_touched_is_served_on(fixed: dict[str, Any], snapshot: Make) -> None:
    queue = Queue(snapshot([FOUR], [{**FOUR, **fixed}, FOUR]), quantum_tokens=4, batch=2)
    queue.serve(0, 1, tokens=4)
    made = queue.plan()
    assert (order(made.running), order(made.waiting), order(made.pause)) == ([0, 1], [2], [1])


class PlainQueue:
    """A multi-level feedback queue of lists. Promotion and demotion as the module says, one request at a time."""

    def __init__(self, levels: int, quantum: int, promote_s: float) -> None:
        self.queues: list[list[int]] = [[] for _ in range(levels)]
        self.quantum, self.promote_s = quantum, promote_s
        self.used: dict[int, int] = {}
        self.served_s: dict[int, float] = {}

    def level(self, request: int) -> int:
        return next(i for i, queue in enumerate(self.queues) if request in queue)

    def arrive(self, request: int, work: float, now_s: float) -> None:
        last = len(self.queues) - 1
        level = next((i for i in range(last) if self.quantum * 2**i >= work), last)
        self.queues[level].append(request)
        self.used[request], self.served_s[request] = 0, now_s

    def end(self, request: int) -> None:
        self.queues[self.level(request)].remove(request)

    def serve(self, requests: list[int], now_s: float) -> None:
        for request in requests:
            self.used[request] += 1
            self.served_s[request] = now_s
            level = self.level(request)
            if level < len(self.queues) - 1 and self.used[request] >= self.quantum * 2**level:
                self.queues[level].remove(request)
                self.queues[level + 1].append(request)
                self.used[request] = 0

    def ranked(self, now_s: float) -> list[int]:
        starving = [r for queue in self.queues[1:] for r in queue if now_s - self.served_s[r] >= self.promote_s]
        for request in sorted(starving):
            self.queues[self.level(request)].remove(request)
            self.queues[0].append(request)
            self.used[request] = 0
        return [request for queue in self.queues for request in queue]


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(3, 10))
def test_serves_as_a_queue_of_plain_lists_does(seed: int, snapshot: Make) -> None:
    """One slot of time a step; the batch is who ranks first, arrivals and ends come at random."""
    rng = np.random.default_rng(seed)
    at = snapshot(max_num_seqs=64)
    queue = Queue(at, levels=4, quantum_tokens=3, prompt_weight=0.5, promote_s=6.0, batch=3)
    plain = PlainQueue(4, 3, 6.0)
    rows = at.rows
    alive: list[int] = []
    seq_of: dict[int, int] = {}
    for step in range(120):
        now_s = float(step)
        for _ in range(rng.poisson(0.4)):
            slot = rows.add(prompt_tokens=int(rng.integers(1, 40)), max_tokens=50)
            alive.append(slot)
            seq_of[slot] = int(rows.seq[slot])
            queue.policy.arrived(rows, slot, now_s)
            plain.arrive(seq_of[slot], 0.5 * float(rows.prompt_tokens[slot]), now_s)
        queue.at = Snapshot(rows, rows.slots_in(State.WAITING), rows.slots_in(State.RUNNING), at.engine)
        made = queue.plan(now_s)
        expected = plain.ranked(now_s)[:3]
        if made is Plan.IDENTITY:
            assert not expected
            continue
        assert made.running is not None and made.waiting is not None
        served = [*made.running[~np.isin(made.running, made.pause)].tolist(), *made.waiting.tolist()]
        assert sorted(seq_of[slot] for slot in served) == sorted(expected)
        rows.state[made.waiting] = State.RUNNING
        served.sort(key=lambda slot: seq_of[slot])
        queue.serve(*served, now_s=now_s)
        plain.serve([seq_of[slot] for slot in served], now_s)
        for slot in [slot for slot in served if rng.random() < 0.08]:
            plain.end(seq_of[slot])
            alive.remove(slot)
            rows.free(slot)
