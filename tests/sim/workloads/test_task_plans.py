"""Plans of tasks: calls follow the calls that they must, and prompts repeat what they should."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.request import OUTPUT_ID, WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, SLO, Targets
from sloserve.core.task_outcome import TaskOutcome
from sloserve.core.tasks import TaskCall
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.closed_loop import run_closed_loop
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.workloads.tasks.arrivals import NO_DEADLINE, TaskDeadline, arriving
from sloserve.sim.workloads.tasks.plan import BLOCK, BlockIds, OutputOf, PlannedCall, TaskPlan, Text
from sloserve.sim.workloads.tasks.progress import TaskProgress
from sloserve.sim.workloads.tasks.react import react_tasks
from sloserve.sim.workloads.tasks.source import NO_HINTS, TaskHints, TaskSource

OWN = DEFAULT_CLASSES.slo(None, Targets())


def slos(plans: Sequence[TaskPlan]) -> list[list[SLO]]:
    return [[OWN] * len(plan.calls) for plan in plans]


def map_and_reduce(arrival_s: float = 0.0, due_s: float = math.inf) -> TaskPlan:
    """Return a task of four calls: one plans, two work at the same time, and the last puts their outputs together."""
    ids = BlockIds()
    system = Text(ids.take(4), shared=True)
    ask = Text(ids.take(2))
    plan = PlannedCall((system, ask), ids.take(3))
    first = PlannedCall((system, Text(ids.take(1)), OutputOf(0)), ids.take(2), after=(0,), wait_s=1.0)
    second = PlannedCall((system, Text(ids.take(1)), OutputOf(0)), ids.take(20), after=(0,), wait_s=2.0)
    join = (system, ask, OutputOf(0), OutputOf(1), OutputOf(2))
    return TaskPlan(
        7, (plan, first, second, PlannedCall(join, ids.take(1), after=(1, 2), wait_s=0.5)), arrival_s, due_s
    )


def test_an_output_has_the_id_of_generated_tokens_only_behind_its_own_prompt() -> None:
    task = map_and_reduce()
    generated, *others = (task.calls[i].output_ids for i in range(3))
    assert task.prefix_ids(3) == (*range(6), *[OUTPUT_ID] * 3, *others[0], *others[1])
    assert task.prefix_ids(1)[-3:] == generated
    assert task.prompt_tokens(3) == len(task.prefix_ids(3)) * BLOCK
    assert task.output_tokens(2) == 20 * BLOCK


@pytest.mark.slow
def test_what_a_prompt_repeats_is_what_an_idle_engine_finds_in_its_prefix_cache() -> None:
    plans = [map_and_reduce(), *react_tasks(3, 0)]
    plans = arriving(plans, 0, 0.001, [0.0] * len(plans), NO_DEADLINE)
    settings = EngineSettings(20_000, max_num_batched_tokens=2048, max_model_len=100_000, enable_prefix_caching=True)
    engine = ModelEngine(settings, load_profile("h100-llama3-8b"), None)
    source = TaskSource(plans, slos(plans), NO_HINTS)
    log = run_closed_loop(engine, source)
    found = {r.request.request_id: r.cached_tokens for r in log.requests}
    first = f"{plans[0].key}.0", f"{plans[1].key}.0"  # nothing is cached before the first task of each workload
    expected = {
        f"{plan.key}.{i}": plan.repeated_tokens(i)
        for plan in plans
        for i in range(len(plan.calls))
        if f"{plan.key}.{i}" not in first
    }
    assert {key: tokens for key, tokens in found.items() if key not in first} == expected
    assert expected["task7.3"] == 8 * BLOCK  # the newest token of an output has no KV


def test_a_call_that_joins_others_is_sent_after_the_last_of_them_and_its_wait() -> None:
    task = map_and_reduce(arrival_s=10.0, due_s=60.0)
    progress = TaskProgress(task)
    assert progress.first() == [(0, 10.0)]
    assert progress.ended(0, 20.0, completed=True) == [(1, 21.0), (2, 22.0)]
    assert progress.ended(2, 40.0, completed=True) == []
    assert progress.ended(1, 45.0, completed=True) == [(3, 45.5)]
    assert not progress.is_complete
    assert progress.ended(3, 50.0, completed=True) == []
    requests = tuple(f"task7.{i}" for i in range(4))
    # No call is under way from 20 to 21 and from 45 to 45.5.
    assert progress.outcome() == TaskOutcome("task7", "", 10.0, 60.0, 50.0, 4, 4, requests, pytest.approx(1.5))
    assert progress.outcome().latency_s == 40.0
    assert progress.outcome().in_time


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.ABORTED, Outcome.FAILED])
def test_a_task_of_which_one_call_fails_ends_unfinished(outcome: Outcome) -> None:
    task = map_and_reduce(due_s=60.0)
    source = TaskSource([task], slos([task]))
    (first,) = source.first()
    one, two = source.after(first, Outcome.COMPLETED, 5.0)
    assert source.after(one, outcome, 8.0) == []
    assert source.after(two, Outcome.COMPLETED, 9.0) == []
    (found,) = source.outcomes()
    assert (found.ended_s, found.completed_calls, found.calls) == (None, 1, 4)
    assert found.in_time is False and found.latency_s is None


def test_a_task_without_a_deadline_is_neither_in_time_nor_late() -> None:
    assert TaskProgress(map_and_reduce()).outcome().in_time is None


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        (TaskHints(), TaskCall("task7", 60.0)),
        (TaskHints(deadline=False), TaskCall("task7")),
        (TaskHints(calls_factor=0.3, last=True), TaskCall("task7", 60.0, 1, True)),
        (TaskHints(calls_factor=3.0), TaskCall("task7", 60.0, 12)),
        (NO_HINTS, None),
    ],
)
def test_a_client_states_what_its_hints_say(hints: TaskHints, expected: TaskCall | None) -> None:
    assert hints.of_call(map_and_reduce(due_s=60.0), 3) == expected


def test_only_the_last_call_is_marked_as_the_last() -> None:
    task = map_and_reduce()
    stated = [TaskHints(last=True).of_call(task, i) for i in range(4)]
    assert [call is not None and call.last for call in stated] == [False, False, False, True]


def test_a_plan_that_cannot_be_followed_is_an_error() -> None:
    text = Text((0,))
    with pytest.raises(ValueError, match=r"task 0: call 0 follows the calls \(1,\), of which one is not earlier"):
        TaskPlan(0, (PlannedCall((text,), (1,), after=(1,)), PlannedCall((text,), (2,))))
    with pytest.raises(ValueError, match="call 1 has outputs of the calls .*, which it does not follow"):
        TaskPlan(0, (PlannedCall((text,), (1,)), PlannedCall((text, OutputOf(0)), (2,))))


@pytest.mark.slow
def test_every_call_arrives_after_the_calls_that_it_follows() -> None:
    """Check it on every request of a run under load, for chains and for a task that branches."""
    plans = arriving([map_and_reduce(), *react_tasks(3, 1)], 1, 2.0, [1.0] * 4)
    engine = ModelEngine(
        EngineSettings(3000, max_num_batched_tokens=1024, max_model_len=48_000, enable_prefix_caching=True),
        load_profile("h100-llama3-8b"),
        {"sloserve": {"policy": "auto"}},
    )
    source = TaskSource(plans, slos(plans), TaskHints(calls_factor=1.0, last=True))
    log = run_closed_loop(engine, source)
    of = {r.request.request_id: r for r in log.requests}
    assert len(of) == sum(len(plan.calls) for plan in plans)
    for plan in plans:
        for i, call in enumerate(plan.calls):
            one = of[f"{plan.key}.{i}"].request
            ends = [of[f"{plan.key}.{j}"].finish_s for j in call.after] or [plan.arrival_s]
            assert one.arrival_s == max(end for end in ends if end is not None) + call.wait_s
            assert one.call == TaskCall(plan.key, plan.due_s, len(plan.calls), i == len(plan.calls) - 1)
    for plan, outcome in zip(plans, source.outcomes(), strict=True):
        assert outcome.completed_calls == len(plan.calls)
        assert outcome.ended_s == of[f"{plan.key}.{len(plan.calls) - 1}"].finish_s
        if plan.number != 7:
            assert outcome.tools_s == pytest.approx(sum(call.wait_s for call in plan.calls))


def test_arrivals_at_several_rates_differ_by_a_factor_and_deadlines_follow_the_rule() -> None:
    plans = react_tasks(5, 3)
    slow, fast = (arriving(plans, 3, rate, [10.0] * 5, TaskDeadline(2.0, 5.0)) for rate in (0.1, 0.4))
    assert np.allclose([plan.arrival_s for plan in slow], [4.0 * plan.arrival_s for plan in fast])
    assert np.allclose([plan.due_s - plan.arrival_s for plan in fast], 25.0)
    assert all(plan.due_s == math.inf for plan in arriving(plans, 3, 0.1, [10.0] * 5, NO_DEADLINE))


def requests_of(plan: TaskPlan) -> list[WorkloadRequest]:
    source = TaskSource([plan], slos([plan]))
    return [source.request(plan, i, 0.0) for i in range(len(plan.calls))]


def test_react_tasks_are_the_same_for_a_seed_and_differ_between_seeds() -> None:
    assert react_tasks(4, 0) == react_tasks(4, 0) == react_tasks(9, 0)[:4]
    assert react_tasks(4, 0) != react_tasks(4, 1)
    assert requests_of(react_tasks(1, 0)[0]) == requests_of(react_tasks(1, 0)[0])
