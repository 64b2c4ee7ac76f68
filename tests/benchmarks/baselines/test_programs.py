"""Baselines that know programs: what they remember of them, and each one's rule."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.autellix import ATLAS, PLAS
from benchmarks.baselines.continuum import Continuum
from benchmarks.baselines.programs import MOST_PROGRAMS, Programs
from benchmarks.baselines.split_deadline import SplitDeadline
from benchmarks.baselines.thunder_agent import ThunderAgent
from sloserve.core.rows import Rows, State
from sloserve.scheduler.policy import Plan, Policy, Snapshot, check_plan

Make = Callable[..., Snapshot]


class Engine:
    """A policy at work on calls that arrive, run and end one by one, with blocks of 16 tokens."""

    def __init__(self, policy: Policy, snapshot: Make, **facts: Any) -> None:
        self.policy, self.at = policy, snapshot(**facts)

    @property
    def rows(self) -> Rows:
        return self.at.rows

    def arrive(self, task: int = 0, now_s: float = 0.0, **values: Any) -> int:
        values = {"prompt_tokens": 160, "max_tokens": 160, "arrival_s": now_s, **values}
        slot = self.rows.add(task=task, **values)
        self.policy.arrived(self.rows, slot, now_s)
        return slot

    def state(self, state: State, *slots: int) -> None:
        self.rows.state[list(slots)] = state

    def end(self, slot: int, now_s: float) -> None:
        self.policy.finished(self.rows, slot, now_s)
        self.rows.free(slot)

    def plan(self, now_s: float, **facts: Any) -> Plan:
        rows = self.rows
        running = rows.slots_in(State.RUNNING)
        engine = replace(self.at.engine, free_slots=self.at.engine.max_num_seqs - running.size, **facts)
        snapshot = Snapshot(rows, rows.slots_in(State.WAITING, State.PREEMPTED), running, engine)
        made = self.policy.plan(snapshot, now_s)
        check_plan(made, snapshot)
        return made

    def admitted(self, now_s: float, **facts: Any) -> list[int]:
        """Return the waiting slots that a plan admits, in order, with room for all of them."""
        made = self.plan(now_s, **facts)
        order = [] if made.waiting is None else made.waiting.tolist()
        runs = self.rows.slots_in(State.RUNNING).size
        return order if made.max_running is None else order[: made.max_running - runs]


def test_a_program_is_forgotten_when_its_client_says_that_it_ends_and_programs_are_bounded(snapshot: Make) -> None:
    rows, programs = snapshot().rows, Programs()
    by_last, by_count, alone = (
        rows.add(task=1, task_last=True), rows.add(task=2, task_calls=1), rows.add(task=0)
    )  # fmt: skip
    open_ended = rows.add(task=3)
    for slot in (by_last, by_count, alone, open_ended):
        programs.arrived(rows, slot)
    for slot in (by_last, by_count, alone, open_ended):
        programs.finished(rows, slot, 32, 1.0)
    (left,) = programs
    assert (left.key, left.tokens, left.ended_s, left.in_flight) == (3, 32, 1.0, 0)
    for task in range(10, 10 + MOST_PROGRAMS):
        slot = rows.add(task=task)
        programs.arrived(rows, slot)
        rows.free(slot)
    assert len(programs) == MOST_PROGRAMS and programs.by_key(3) is None


def test_edf_split_divides_what_is_left_evenly_over_the_calls_that_are_left(snapshot: Make) -> None:
    policy = SplitDeadline()
    engine = Engine(policy, snapshot)

    def due_s(**values: Any) -> float:
        slot = engine.arrive(**values)
        found = float(policy.due_s(engine.rows, np.array([slot]))[0])
        engine.end(slot, values["now_s"])
        return found

    task = {"task": 1, "task_due_s": 100.0, "task_calls": 4}
    assert due_s(now_s=0.0, **task) == 25.0
    assert due_s(now_s=40.0, **task) == 60.0  # a third of 60 s
    assert due_s(now_s=50.0, **task, ttft_s=5.0) == 55.0  # its own target is earlier than 75 s
    assert due_s(now_s=60.0, **task, task_last=True) == 100.0
    assert due_s(now_s=10.0, task=2, task_due_s=100.0) == 100.0  # it does not say how many calls there are
    assert due_s(now_s=110.0, task=3, task_due_s=100.0, task_calls=9) == 100.0  # late: nothing to split
    assert due_s(now_s=0.0, task=4, task_calls=9) == math.inf
    assert due_s(now_s=0.0) == math.inf


def test_plas_serves_the_program_with_the_least_service_and_counts_seconds_in_the_engine(snapshot: Make) -> None:
    engine = Engine(PLAS(PLAS.Settings(quantum_s=2.0, levels=3, starved_ratio=0.0)), snapshot)
    long = engine.arrive(1)
    assert engine.admitted(0.0) == [long]
    engine.state(State.RUNNING, long)
    engine.plan(0.0)
    engine.end(long, 3.0)  # 3 s of service: its next call begins at the second level, 2 to 6 s
    again, new = engine.arrive(1, 3.0), engine.arrive(2, 3.0)
    assert engine.admitted(3.0) == [new, again]
    engine.state(State.RUNNING, again, new)
    engine.plan(3.0)
    engine.plan(
        5.5
    )  # the new program's call has run for 2.5 s and falls behind the other, which has run for less than 4
    third = engine.arrive(3, 5.5)
    engine.state(State.PREEMPTED, again, new)
    assert engine.admitted(5.5) == [third, again, new]


def test_a_call_that_falls_makes_room_for_one_of_a_level_before(snapshot: Make) -> None:
    engine = Engine(PLAS(PLAS.Settings(quantum_s=2.0)), snapshot, max_num_seqs=1)
    first = engine.arrive(1)
    engine.state(State.RUNNING, first)
    second = engine.arrive(2)
    assert engine.plan(0.0).preempt.size == 0  # of the same level, though it came later
    made = engine.plan(2.0)
    assert made.waiting is not None
    assert (made.preempt.tolist(), made.waiting.tolist()) == ([first], [second])
    assert Engine(PLAS(PLAS.Settings(preempt=False)), snapshot).plan(0.0).preempt.size == 0


def test_a_starved_programs_call_returns_to_the_first_level(snapshot: Make) -> None:
    engine = Engine(PLAS(PLAS.Settings(quantum_s=2.0, starved_ratio=5.0)), snapshot)
    slow = engine.arrive(1)
    engine.state(State.RUNNING, slow)
    engine.plan(0.0)
    engine.end(slow, 4.0)
    slow = engine.arrive(1, 4.0)
    engine.plan(4.0)
    new = engine.arrive(2, 4.0)
    assert engine.admitted(23.9) == [new, slow]
    assert engine.admitted(24.0) == [new, slow]  # 20 s of waiting for 4 s of service: behind the other in the first
    third = engine.arrive(3, 24.0)
    assert engine.admitted(24.0) == [new, slow, third]


@pytest.mark.parametrize(("policy", "served_s"), [(PLAS, 5.0), (ATLAS, 3.0)])
def test_parallel_calls_count_together_in_plas_and_by_the_longest_path_in_atlas(
    policy: type[PLAS], served_s: float, snapshot: Make
) -> None:
    made = policy()
    engine = Engine(made, snapshot)
    one, other = engine.arrive(1), engine.arrive(1)
    engine.state(State.RUNNING, one, other)
    engine.plan(0.0)
    engine.end(one, 2.0)
    engine.end(other, 3.0)
    (program,) = made._programs
    assert program.served_s == served_s
    after = engine.arrive(1, 3.0)
    engine.state(State.RUNNING, after)
    engine.plan(3.0)
    engine.end(after, 4.0)
    assert program.served_s == served_s + 1.0


def thunder(snapshot: Make, **settings: Any) -> Engine:
    """Return ThunderAgent on an engine of 100 blocks of 16 tokens."""
    chosen = ThunderAgent.Settings(**{"buffer_tokens": 0, "interval_s": 5.0, **settings})
    return Engine(ThunderAgent(chosen), snapshot, total_blocks=101, free_blocks=101)


def test_thunder_agent_holds_a_new_program_that_does_not_fit(snapshot: Make) -> None:
    engine = thunder(snapshot)
    first, second = engine.arrive(1, prompt_tokens=1000), engine.arrive(2, prompt_tokens=800)
    third = engine.arrive(3, prompt_tokens=100)
    assert engine.admitted(0.0) == [first]  # the third would fit, but waits since a program is paused
    assert engine.admitted(4.9) == [first]
    assert engine.admitted(5.0) == [first, third]
    assert engine.admitted(1799.0) == [first, third]
    assert sorted(engine.admitted(1804.0)) == [first, second, third]  # whether it fits or not


def test_thunder_agent_pauses_the_shortest_acting_program_first_then_marks_reasoning_ones(snapshot: Make) -> None:
    engine = thunder(snapshot)
    calls = {task: engine.arrive(task, prompt_tokens=tokens) for task, tokens in ((1, 500), (2, 300), (3, 700))}
    assert len(engine.admitted(0.0)) == 3
    engine.state(State.RUNNING, *calls.values())
    engine.rows.output_tokens[calls[3]] = 300
    for task in (1, 2):
        engine.end(calls[task], 1.0)
    engine.plan(5.0)  # 500 + 300 + 1000 of 1600 tokens: the program of 300 tokens is paused
    back = {task: engine.arrive(task, 6.0, prompt_tokens=600) for task in (1, 2)}
    assert engine.admitted(6.0) == [back[1]]
    assert engine.admitted(10.0) == [back[1]]
    engine.end(calls[3], 11.0)
    assert engine.admitted(12.0) == [back[1]]
    # The program of 1000 tokens acts now, and counts: both others do not fit beside it until it has ended.
    assert engine.admitted(15.0) == [back[1]]
    engine.end(engine.arrive(3, 16.0, prompt_tokens=1100, task_last=True), 17.0)
    assert engine.admitted(20.0) == [back[1], back[2]]


def test_thunder_agent_never_leaves_the_engine_idle(snapshot: Make) -> None:
    engine = thunder(snapshot)
    call = engine.arrive(1, prompt_tokens=2000)  # more than the cache
    assert engine.admitted(0.0) == [call]


def continuum(snapshot: Make, **settings: Any) -> Engine:
    return Engine(Continuum(Continuum.Settings(**{"ttl_s": 2.0, **settings})), snapshot, total_blocks=101)


def test_continuum_serves_programs_in_order_of_arrival_and_those_with_kept_kv_first(snapshot: Make) -> None:
    engine = continuum(snapshot)
    old, young = engine.arrive(1, 0.0), engine.arrive(2, 1.0)
    for slot in (old, young):
        engine.end(slot, 2.0)
    new, of_young, of_old = engine.arrive(3, 3.0), engine.arrive(2, 3.5), engine.arrive(1, 3.9)
    assert engine.admitted(3.9) == [of_old, of_young, new]
    engine.state(State.PREEMPTED, new)
    assert engine.admitted(3.9) == [new, of_old, of_young]
    assert engine.admitted(9.0) == [new, of_old, of_young]  # kept while a call of the program waits


def test_continuum_keeps_nothing_when_time_is_over_or_the_program(snapshot: Make) -> None:
    engine = continuum(snapshot)
    one, ended = engine.arrive(1, 0.0), engine.arrive(2, 0.0, task_last=True)
    early = engine.arrive(9, 0.5)
    for slot in (one, ended):
        engine.end(slot, 1.0)
    engine.plan(3.0)  # a call that comes after the time is over finds nothing kept
    late = engine.arrive(9, 3.05)
    young, old = engine.arrive(3, 3.1), engine.arrive(1, 3.2)
    assert engine.admitted(3.2) == [old, early, late, young]  # by the arrival of the program's first call alone


def test_continuum_leaves_room_for_what_is_kept_unless_it_gives_way(snapshot: Make) -> None:
    for gives_way in (False, True):
        engine = continuum(snapshot, gives_way=gives_way)
        runs, call = engine.arrive(7), engine.arrive(1, prompt_tokens=640)
        engine.state(State.RUNNING, runs)
        engine.end(call, 1.0)  # 40 blocks are kept
        new = engine.arrive(2, 1.5, prompt_tokens=320)
        assert engine.admitted(1.5, free_blocks=59) == ([new] if gives_way else [])
        assert engine.admitted(1.5, free_blocks=60) == [new]
        again = engine.arrive(1, 1.6, prompt_tokens=640)
        assert engine.admitted(1.6, free_blocks=59)[:1] == [again]  # its own do not stand in its way
        assert engine.admitted(9.0, free_blocks=60) == [again, new]
