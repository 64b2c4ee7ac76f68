"""Numbers of tasks: the same for all calls of a task, never given twice, and bounded in number."""

from sloserve.core.tasks import MOST_TASKS, TaskCall, TaskNumbers


def test_the_calls_of_a_task_have_one_number_and_no_call_has_none() -> None:
    numbers = TaskNumbers()
    assert [numbers.number_of(TaskCall(key)) for key in ("a", "b", "a")] == [1, 2, 1]
    assert numbers.number_of(None) == 0


def test_the_task_without_a_call_for_longest_is_forgotten_first() -> None:
    numbers = TaskNumbers()
    for i in range(MOST_TASKS):
        numbers.number_of(TaskCall(f"t{i}"))
    assert numbers.number_of(TaskCall("t0")) == 1  # which makes it the newest
    assert numbers.number_of(TaskCall("new")) == MOST_TASKS + 1
    assert numbers.number_of(TaskCall("t0")) == 1
    assert numbers.number_of(TaskCall("t1")) == MOST_TASKS + 2


def test_a_deadline_counts_from_the_start_of_a_run() -> None:
    assert TaskCall("a", due_s=5.0, last=True).later(100.0) == TaskCall("a", due_s=105.0, last=True)
    assert TaskCall("a").later(100.0) == TaskCall("a")
