"""Tasks of a server: their beginning, deadline, calls and end, in one process and in several."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sloserve.core.clock import ManualClock
from sloserve.core.served import InEngine
from sloserve.core.slo import MAX_TARGET_S
from sloserve.engine.metrics.task_page import REFRESH_S, TaskPage, TaskPages
from sloserve.engine.metrics.task_table import (
    IN_TIME,
    INCOMPLETE,
    LATE,
    NO_DEADLINE,
    EndedTask,
    StartedCall,
    TaskTable,
)

IDLE_S = 100.0


@dataclass
class Heard:
    started: list[str | None] = field(default_factory=list)
    late: list[str | None] = field(default_factory=list)
    ended: list[EndedTask] = field(default_factory=list)

    def task_started(self, class_id: int, tenant: str | None) -> None:
        self.started.append(tenant)

    def task_late(self, class_id: int, tenant: str | None) -> None:
        self.late.append(tenant)

    def task_ended(self, ended: EndedTask) -> None:
        self.ended.append(ended)

    @property
    def outcomes(self) -> list[tuple[str, int, float]]:
        return [(one.outcome, one.task.calls, one.seconds) for one in self.ended]


class Process:
    """The tasks of one API process; ``peers`` share a folder of pages."""

    def __init__(self, size: int = 8, folder: Path | None = None, rank: int = 0) -> None:
        self.clock, self.heard = ManualClock(0.0), Heard()
        self.page = TaskPage(size) if folder is None else TaskPage.published(size, rank, folder)
        self.pages = TaskPages(self.page, self.clock, folder)
        self.table = TaskTable(self.pages, IDLE_S, self.heard)

    def begin(self, key: int, now_s: float, *, tenant: str | None = None, **stated: Any) -> StartedCall:
        found = self.table.call_begins(key, now_s, class_id=1, tenant=tenant, **stated)
        assert found is not None
        return found

    def call(self, key: int, now_s: float, end_s: float, *, completed: bool = True, **stated: Any) -> StartedCall:
        found = self.begin(key, now_s, **stated)
        self.table.call_ends(found, end_s, completed=completed)
        return found


def test_a_task_is_its_calls_and_the_tools_between_them() -> None:
    process = Process()
    first = process.call(7, 10.0, 12.0, e2e_s=30.0, hint=3)
    assert first.is_first and first.tool_s is None and first.task.due_s == 40.0
    second = process.call(7, 15.0, 16.0)
    assert not second.is_first and second.tool_s == 3.0 and second.task.due_s == 40.0 and second.task.hint == 3
    third = process.begin(7, 18.0, is_last=True)
    assert (third.task.calls, third.task.open, third.task.tools_s) == (3, 1, 5.0)
    assert process.heard.ended == []
    process.table.call_ends(third, 20.0, completed=True)
    assert process.heard.started == [None] and process.heard.late == []
    assert process.heard.outcomes == [(IN_TIME, 3, 10.0)]
    assert process.table.running(7, 20.0) is None


@pytest.mark.parametrize(
    ("stated", "completed", "outcome"),
    [({}, True, NO_DEADLINE), ({}, False, INCOMPLETE), ({"e2e_s": 5.0}, True, IN_TIME), ({"e2e_s": 1.0}, True, LATE),
     ({"due_s": 13.0}, True, IN_TIME), ({"due_s": 9.0}, True, LATE), ({"e2e_s": 5.0}, False, INCOMPLETE)],
)  # fmt: skip
def test_a_task_ends_once_with_one_outcome(stated: dict[str, float], completed: bool, outcome: str) -> None:
    process = Process()
    process.call(7, 10.0, 12.0, completed=completed, is_last=True, **stated)
    process.table.sweep(1e6)
    assert process.heard.outcomes == [(outcome, 1, 2.0)]
    assert len(process.heard.late) == (outcome == LATE)
    assert len(process.table) == 0


def test_what_the_calls_of_a_task_used_adds_up() -> None:
    process = Process()
    for at_s in (10.0, 20.0):
        call = process.begin(7, at_s)
        process.table.call_ends(call, at_s + 1.0, completed=True, used=InEngine(2, 0.5, 0.5, 0.25, 0.125))
    task = process.table.running(7, 22.0)
    assert task is not None and (task.engine_s, task.kv_s) == (0.5, 0.25)


def test_a_task_without_a_last_call_ends_by_age_with_its_latest_call() -> None:
    process = Process()
    process.call(7, 10.0, 12.0, e2e_s=5.0)
    process.table.sweep(12.0 + IDLE_S)
    assert process.heard.ended == [] and process.table.running(7, 12.0 + IDLE_S) is not None
    process.table.sweep(12.1 + IDLE_S)
    assert process.heard.outcomes == [(IN_TIME, 1, 2.0)], "its deadline passed while it had no call"
    assert process.heard.late == [] and len(process.table) == 0


def test_a_task_with_a_long_deadline_is_known_until_then() -> None:
    """Its tools may run for an hour; a deadline that began anew with the next call would be none."""
    process = Process()
    process.call(7, 10.0, 12.0, e2e_s=1000.0)
    process.table.sweep(900.0)
    assert process.table.open_tasks(900.0).of_class == [0, 1]
    assert process.call(7, 900.0, 901.0, e2e_s=1000.0).task.due_s == 1010.0
    process.table.sweep(1010.5)
    assert process.heard.outcomes == [(IN_TIME, 2, 891.0)] and process.table.open_tasks(1010.5).of_class == []


def test_a_deadline_in_a_far_future_keeps_no_task_for_ever() -> None:
    process = Process()
    process.call(7, 10.0, 12.0, due_s=1e11)
    assert process.table.running(7, 12.0 + MAX_TARGET_S) and process.table.open_tasks(12.0 + MAX_TARGET_S).of_class
    assert process.table.running(7, 13.0 + MAX_TARGET_S) is None
    assert not process.table.open_tasks(13.0 + MAX_TARGET_S).of_class
    process.table.sweep(13.0 + MAX_TARGET_S)
    assert process.heard.outcomes == [(IN_TIME, 1, 2.0)] and len(process.table) == 0


def test_a_call_after_the_deadline_makes_a_task_late_once() -> None:
    process = Process()
    process.call(7, 10.0, 12.0, e2e_s=5.0)
    process.call(7, 20.0, 21.0)
    assert process.heard.late == [None] and process.heard.ended == []
    process.call(7, 22.0, 23.0, is_last=True)
    assert process.heard.late == [None] and process.heard.outcomes == [(LATE, 3, 13.0)]


def test_a_running_call_keeps_a_task_open_however_old() -> None:
    process = Process()
    call = process.begin(7, 10.0)
    process.table.sweep(1e6)
    assert process.table.running(7, 1e6) is not None
    process.table.call_ends(call, 1e6, completed=True)
    assert process.heard.ended == []


def test_the_latest_statement_of_a_deadline_counts() -> None:
    process = Process()
    process.call(7, 10.0, 11.0, e2e_s=5.0)
    assert process.call(7, 12.0, 13.0, due_s=50.0).task.due_s == 50.0
    assert process.call(7, 13.0, 14.0, e2e_s=20.0).task.due_s == 30.0, "from the task's first call"


def test_a_name_is_used_again_by_another_task() -> None:
    process = Process()
    process.call(7, 10.0, 11.0, e2e_s=5.0, is_last=True)
    again = process.begin(7, 12.0)
    assert again.is_first and again.task.generation == 1 and again.task.due_s is None
    process.table.call_ends(again, 13.0, completed=True)
    aged = process.begin(7, 13.0 + 2 * IDLE_S)
    assert aged.is_first and aged.task.generation == 2, "no sweep has come by"
    assert process.heard.outcomes == [(IN_TIME, 1, 1.0), (NO_DEADLINE, 1, 1.0)]
    process.table.call_ends(aged, 14.0 + 2 * IDLE_S, completed=True)
    assert len(process.heard.started) == 3


def test_calls_at_once_are_of_one_task_and_the_last_word_waits_for_all() -> None:
    process = Process()
    calls = [process.begin(7, 10.0 + i, is_last=i == 0) for i in range(3)]
    assert [call.tool_s for call in calls] == [None] * 3
    for i, call in enumerate(calls):
        assert process.heard.ended == []
        process.table.call_ends(call, 20.0 + i, completed=True)
    assert process.heard.outcomes == [(NO_DEADLINE, 3, 12.0)]


def test_a_call_ends_once() -> None:
    process = Process()
    call = process.begin(7, 10.0)
    process.table.call_ends(call, 11.0, completed=True)
    assert process.table.call_ends(call, 12.0, completed=True) is None
    task = process.table.running(7, 12.0)
    assert task is not None and task.open == 0 and task.ended_s == 11.0


def test_a_call_that_is_refused_after_all_is_none() -> None:
    process = Process()
    process.table.call_withdrawn(process.begin(7, 10.0, is_last=True))
    assert process.table.running(7, 10.0) is None and len(process.table) == 0
    process.call(7, 20.0, 21.0)
    process.table.call_withdrawn(process.begin(7, 25.0, is_last=True))
    task = process.table.running(7, 25.0)
    assert task is not None
    assert (task.calls, task.open, task.tools_s, task.is_last) == (1, 0, 0.0, False)
    assert process.heard.started == [None] and process.heard.ended == []


def test_a_full_table_forgets_what_has_ended_and_then_the_idlest() -> None:
    process = Process(size=3)
    process.call(1, 1.0, 1.5)
    process.call(2, 2.0, 2.5, is_last=True)
    process.call(3, 3.0, 3.5)
    process.call(4, 4.0, 4.5)
    assert [process.table.running(key, 5.0) is not None for key in (1, 2, 3, 4)] == [True, False, True, True]
    assert process.heard.outcomes == [(NO_DEADLINE, 1, 0.5)]
    process.call(5, 5.0, 5.5)
    assert process.table.running(1, 5.0) is None
    assert len(process.heard.ended) == 2, "a task that is forgotten has ended"


def test_a_table_full_of_running_calls_knows_no_new_task() -> None:
    process = Process(size=2)
    calls = [process.begin(key, 1.0) for key in (1, 2)]
    assert process.table.call_begins(3, 2.0, class_id=0, tenant=None) is None
    assert process.begin(1, 2.0).task.calls == 2, "calls of known tasks are"
    process.table.call_ends(calls[1], 3.0, completed=True)
    assert process.begin(3, 4.0).is_first


def test_a_tenant_that_fills_the_table_displaces_its_own_tasks() -> None:
    process = Process(size=4)
    process.call(1, 1.0, 1.5, tenant="small")
    for key in range(2, 50):
        process.call(key, float(key), key + 0.5, tenant="large")
    assert process.table.running(1, 50.0) is not None
    assert len(process.table) == 4


def test_the_tasks_with_least_slack_are_shown_first() -> None:
    process = Process()
    process.call(1, 1.0, 2.0)
    process.call(2, 2.0, 3.0, e2e_s=100.0)
    process.call(3, 3.0, 4.0, e2e_s=50.0)
    process.call(4, 4.0, 5.0, e2e_s=10.0, is_last=True)
    found = process.table.open_tasks(6.0, 2)
    assert list(found.least_slack) == [3, 2] and found.of_class == [0, 3]
    assert list(process.table.open_tasks(6.0, 9).least_slack) == [3, 2, 1]
    assert process.table.open_tasks(1e6).of_class == []


def pair(tmp_path: Path) -> list[Process]:
    return [Process(folder=tmp_path, rank=rank) for rank in range(2)]


def test_two_processes_agree_on_when_a_task_began_and_is_due(tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    one.call(7, 10.0, 12.0, e2e_s=30.0, hint=4)
    second = other.call(7, 15.0, 16.0)
    assert not second.is_first and second.tool_s == 3.0
    assert (second.task.began_s, second.task.due_s, second.task.calls, second.task.hint) == (10.0, 40.0, 2, 4)
    third = one.call(7, 17.0, 18.0, is_last=True)
    assert (third.task.calls, third.task.tools_s) == (3, 4.0)
    assert one.heard.outcomes == [(IN_TIME, 3, 8.0)] and other.heard.outcomes == []
    assert one.heard.started == [None] and other.heard.started == []
    assert other.table.running(7, 18.0) is None
    assert [process.table.open_tasks(18.0).of_class for process in (one, other)] == [[], []]
    again = other.begin(7, 20.0)
    assert again.is_first and again.task.generation == 1
    assert [process.table.open_tasks(20.0, 5).of_class for process in (one, other)] == [[0, 1], [0, 1]]


def test_the_process_of_the_latest_call_counts_the_end_by_age(tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    one.call(7, 10.0, 12.0)
    other.call(7, 15.0, 16.0)
    late_s = 17.0 + IDLE_S
    one.table.sweep(13.0 + IDLE_S)
    assert one.heard.ended == [] and len(one.table) == 1, "the other process still counts with its calls"
    other.table.sweep(late_s)
    one.table.sweep(late_s)
    assert one.heard.ended == [] and other.heard.outcomes == [(NO_DEADLINE, 2, 6.0)]
    other.table.sweep(late_s)
    assert len(one.table) == len(other.table) == 0


def test_who_begins_the_next_task_of_a_name_counts_the_end_of_the_one_before(tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    one.call(7, 10.0, 12.0)
    assert other.begin(7, 20.0 + IDLE_S, tenant="acme").is_first
    one.table.sweep(20.0 + IDLE_S)
    assert one.heard.outcomes == [] and len(one.table) == 0
    assert other.heard.outcomes == [(NO_DEADLINE, 1, 2.0)] and other.heard.ended[0].tenant == "acme"


def test_a_task_that_ended_elsewhere_is_not_counted_after_its_name_was_used_again(tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    one.call(7, 10.0, 12.0)
    other.call(7, 13.0, 14.0, is_last=True)
    other.call(7, 15.0, 16.0, is_last=True)
    for process in (one, other, one):
        process.table.sweep(20.0 + IDLE_S)
    assert one.heard.ended == [] and other.heard.outcomes == [(NO_DEADLINE, 2, 4.0), (NO_DEADLINE, 1, 1.0)]


def test_a_process_that_ended_takes_its_part_of_a_task_along(tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    one.begin(7, 10.0)
    assert other.begin(7, 11.0).task.open == 2
    one.page.close()
    other.clock.advance_to(2 * REFRESH_S)
    task = other.table.running(7, 12.0)
    assert task is not None and task.open == 1 and task.began_s == 10.0


def test_two_begin_at_once_and_the_earlier_time_counts(tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    assert one.pages.others and other.pages.others
    first, second = one.begin(7, 10.0, e2e_s=5.0), other.begin(7, 10.001)
    assert second.task.began_s == 10.0 and second.task.due_s == 15.0
    for process, call in ((one, first), (other, second)):
        process.table.call_ends(call, 11.0, completed=True)
    assert one.call(7, 12.0, 13.0).task.calls == 3


class Neighbour(TaskPages):
    """The pages of two processes in one."""

    def __init__(self, own: TaskPage, other: TaskPage, clock: ManualClock) -> None:
        super().__init__(own, clock)
        self._other = other

    @property
    def others(self) -> Sequence[TaskPage]:
        return [self._other]


event = st.tuples(
    st.integers(0, 1),
    st.integers(1, 4),
    st.sampled_from(["begin", "end", "sweep"]),
    st.booleans(),
    st.floats(0.0, 60.0),
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(event, max_size=60))
def test_every_task_that_starts_ends_once(events: list[tuple[int, int, str, bool, float]]) -> None:
    """In two processes in turn, with names used again and ages that pass."""
    clock, processes = ManualClock(0.0), [Process(size=4) for _ in range(2)]
    for mine, other in (processes, processes[::-1]):
        mine.pages = mine.table._pages = Neighbour(mine.page, other.page, mine.clock)
    running: list[tuple[Process, StartedCall]] = []
    for at, key, kind, flag, wait_s in events:
        clock.advance_to(clock.now_s() + wait_s)
        process, now_s = processes[at], clock.now_s()
        if kind == "begin":
            call = process.table.call_begins(key, now_s, class_id=0, tenant=str(key % 2), e2e_s=9.0, is_last=flag)
            if call is not None:
                running.append((process, call))
        elif kind == "end" and running:
            owner, call = running.pop(key % len(running))
            owner.table.call_ends(call, now_s, completed=flag)
        else:
            process.table.sweep(now_s)
        for one in processes:
            assert not np.any(one.page.rows < 0.0)
    for owner, call in running:
        owner.table.call_ends(call, clock.now_s(), completed=True)
    for process in processes * 2:
        process.table.sweep(clock.now_s() + 2 * IDLE_S)
    started = sum(len(process.heard.started) for process in processes)
    ended = sum(len(process.heard.ended) for process in processes)
    assert started == ended
