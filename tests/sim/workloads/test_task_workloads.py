"""Workloads of tasks: their statistics are the published ones, and draws are the same for a seed."""

from pathlib import Path

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.request import OUTPUT_ID
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.workloads.readers import read_trace
from sloserve.sim.workloads.slo_assignment import DEFAULT_ASSIGNMENT
from sloserve.sim.workloads.tasks import traced
from sloserve.sim.workloads.tasks.arrivals import NO_DEADLINE, TaskDeadline
from sloserve.sim.workloads.tasks.chat import chat_tasks
from sloserve.sim.workloads.tasks.coding import CONTEXT_TOKENS, coding_tasks, return_s
from sloserve.sim.workloads.tasks.map_reduce import MAP, PLAN, REDUCE, map_reduce_tasks
from sloserve.sim.workloads.tasks.offered import asked_tasks, parse_deadline, parse_hints
from sloserve.sim.workloads.tasks.plan import BLOCK, TaskPlan
from sloserve.sim.workloads.tasks.react import react_tasks
from sloserve.sim.workloads.tasks.registry import CHAT_SLOS, TASK_WORKLOADS, slos_of_calls, task_workload
from sloserve.sim.workloads.tasks.small_beside_large import LARGE, SMALL, small_beside_large_tasks
from sloserve.sim.workloads.tasks.source import NO_HINTS, TaskHints
from sloserve.sim.workloads.tasks.traced import conversations_of, traced_plans
from sloserve.sim.workloads.window import WHOLE, Window

GENERATED = [name for name in TASK_WORKLOADS if name != "mooncake"]


def prompts(plans: list[TaskPlan]) -> list[int]:
    return [plan.prompt_tokens(i) for plan in plans for i in range(len(plan.calls))]


def outputs(plans: list[TaskPlan]) -> list[int]:
    return [plan.output_tokens(i) for plan in plans for i in range(len(plan.calls))]


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATED)
def test_a_seed_decides_the_tasks_and_scale_divides_their_lengths(name: str) -> None:
    draw = task_workload(name).draw
    assert draw(6, 0, 1.0) == draw(6, 0, 1.0) != draw(6, 1, 1.0)
    full, small = draw(6, 0, 1.0), draw(6, 0, 0.25)
    assert [len(plan.calls) for plan in full] == [len(plan.calls) for plan in small]
    assert [call.wait_s for plan in full for call in plan.calls] == [c.wait_s for plan in small for c in plan.calls]
    assert sum(prompts(small)) == pytest.approx(0.25 * sum(prompts(full)), rel=0.1)
    assert min(outputs(draw(6, 0, 0.001))) == BLOCK
    early, late = WHOLE.halves()
    assert draw(6, 0, 1.0, early) == full != draw(6, 0, 1.0, late)


@pytest.mark.slow
def test_react_has_the_stated_lengths_and_times() -> None:
    plans = [plan for seed in range(4) for plan in react_tasks(100, seed)]
    calls = [len(plan.calls) for plan in plans]
    assert min(calls) >= 3 and max(calls) <= 50 and np.mean(calls) == pytest.approx(10, rel=0.1)
    inner = [plan.output_tokens(i) for plan in plans for i in range(len(plan.calls) - 1)]
    assert np.median(inner) == pytest.approx(110, rel=0.1)
    waits_s = [call.wait_s for plan in plans for call in plan.calls if call.after]
    assert np.median(waits_s) == pytest.approx(2.0, rel=0.1)


@pytest.mark.slow
def test_coding_has_the_published_lengths_and_times() -> None:
    plans = [plan for seed in range(4) for plan in coding_tasks(80, seed)]
    assert np.median(prompts(plans)) == pytest.approx(195_000, rel=0.05)
    assert np.median(outputs(plans)) == pytest.approx(317, rel=0.05)
    assert np.percentile(outputs(plans), 99) == pytest.approx(7551, rel=0.15)
    assert max(p + o for p, o in zip(prompts(plans), outputs(plans), strict=True)) <= CONTEXT_TOKENS
    waits_s = np.array([call.wait_s for plan in plans for call in plan.calls if call.after])
    assert np.mean(waits_s <= 1.0) == pytest.approx(0.8646, abs=0.01)
    assert np.mean(waits_s <= 10.0) == pytest.approx(0.9512, abs=0.01)
    assert [return_s(q) for q in (0.0, 0.8646, 0.9512, 1.0)] == pytest.approx([0.05, 1.0, 10.0, 120.0])


@pytest.mark.slow
def test_map_reduce_has_the_published_bursts_and_joins_all_of_them() -> None:
    plans = [plan for seed in range(4) for plan in map_reduce_tasks(200, seed)]
    agents = [len(plan.calls) - 2 for plan in plans]
    assert np.percentile(agents, 90) == pytest.approx(51, rel=0.1)
    for plan in plans:
        first, *middle, last = plan.calls
        assert (first.kind, last.kind) == (PLAN, REDUCE) and {call.kind for call in middle} == {MAP}
        assert {call.after for call in middle} == {(0,)}
        assert last.after == tuple(range(1, len(plan.calls) - 1))
        assert plan.prompt_tokens(len(plan.calls) - 1) > sum(plan.output_tokens(i) for i in last.after)
    assert np.median(outputs(plans)) == pytest.approx(317, rel=0.05)


@pytest.mark.slow
def test_chats_have_tens_of_seconds_between_calls_and_a_target_for_each_call() -> None:
    plans = chat_tasks(300, 0)
    waits_s = np.array([call.wait_s for plan in plans for call in plan.calls if call.after])
    assert 20.0 < np.median(waits_s) < 30.0
    assert 4.0 < np.mean([len(plan.calls) for plan in plans]) < 6.0
    (first, *_), *_ = slos_of_calls(plans, CHAT_SLOS, 0)
    assert first.targets.ttft_s == 1.0
    assert task_workload("chat").deadline is NO_DEADLINE


def test_one_of_64_tasks_in_a_burst_is_large() -> None:
    plans = small_beside_large_tasks(128, 0)
    assert [plan.number for plan in plans if plan.kind == LARGE] == [32, 96]
    starts = {kind: [plan.prompt_tokens(0) for plan in plans if plan.kind == kind] for kind in (SMALL, LARGE)}
    assert starts[LARGE] == [8048, 8048]
    assert 1440 <= min(starts[SMALL]) and max(starts[SMALL]) <= 3488
    assert TASK_WORKLOADS["small-beside-large"].rate_per_s * 13 == pytest.approx(64)


MOONCAKE = """arrival_s,prompt_tokens,output_tokens,task,hash_ids
0.0,1500,100,conversation,0 1 2
1.0,1300,50,conversation,0 3 4
20.0,2600,64,conversation,0 1 5 6 7 8
30.0,600,32,conversation,0 9
90.0,3200,64,conversation,0 1 5 6 7 10 11
"""


def test_conversations_are_requests_that_continue_a_prompt(tmp_path: Path) -> None:
    """The second and the fourth share the first block with all others, as of a system prompt, and continue nothing."""
    path = tmp_path / "mooncake.csv"
    path.write_text(MOONCAKE)
    trace = read_trace(path)
    found = conversations_of(trace)
    assert [one.requests for one in found] == [[0, 2, 4], [1], [3]]
    plan, other, _ = traced_plans(trace, found, 1.0)
    assert [plan.prompt_tokens(i) for i in range(3)] == pytest.approx([1500, 2600, 3200], abs=32)
    assert [call.after for call in plan.calls] == [(), (0,), (1,)]
    assert [call.wait_s for call in plan.calls] == pytest.approx([0.0, 20.0 - 100 / 20, 70.0 - 64 / 20])
    assert OUTPUT_ID in plan.prefix_ids(1)
    shared = zip(plan.prefix_ids(0), other.prefix_ids(0), strict=False)
    assert [a == b for a, b in shared].count(True) == 512 // BLOCK


def test_mooncake_without_its_trace_says_where_to_put_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLOSERVE_DATA", str(tmp_path))
    traced.read_mooncake.cache_clear()
    with pytest.raises(ConfigError, match=r"mooncake_conversation_first_half.csv.gz or conversation_trace.jsonl into"):
        traced.mooncake_tasks(3, 0)
    (tmp_path / "mooncake_conversation_first_half.csv").write_text(MOONCAKE)
    assert [len(plan.calls) for plan in traced.mooncake_tasks(9, 0)] == [3, 1, 1]
    assert [len(plan.calls) for plan in traced.mooncake_tasks(9, 0, 1.0, Window(0.5, 1.0))] == [1]
    with pytest.raises(ConfigError, match="--window: none of the 3 conversations lies within 0:0.1"):
        traced.mooncake_tasks(9, 0, 1.0, Window(0.0, 0.1))
    traced.read_mooncake.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2x+5", TaskDeadline(2.0, 5.0)),
        ("1.5x", TaskDeadline(1.5, 0.0)),
        ("60", TaskDeadline(0.0, 60.0)),
        ("none", NO_DEADLINE),
    ],
)
def test_deadlines_are_read(text: str, expected: TaskDeadline) -> None:
    assert parse_deadline(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", NO_HINTS),
        ("id", TaskHints(deadline=False)),
        ("deadline", TaskHints()),
        ("deadline,calls,last", TaskHints(calls_factor=1.0, last=True)),
        ("calls=0.3", TaskHints(deadline=False, calls_factor=0.3)),
    ],
)
def test_hints_are_read(text: str, expected: TaskHints) -> None:
    assert parse_hints(text) == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tasks": "reactt"}, "--tasks: unknown workload 'reactt'; known: .*; did you mean 'react'"),
        ({"tasks": "react", "task_count": 0}, "--task-count: 0"),
        ({"tasks": "react", "task_scale": 0.0}, "--task-scale: 0.0 is not a number above 0"),
        ({"tasks": "react", "task_rate": "0.1,x"}, "--task-rate: '0.1,x' is not a comma-separated list"),
        ({"tasks": "react", "task_rate": "0"}, "--task-rate: '0' is not a list of different numbers above 0"),
        ({"tasks": "react", "task_deadline": "soon"}, "--task-deadline: 'soon' is not of the form"),
        ({"tasks": "react", "task_deadline": ""}, "--task-deadline: '' is not of the form"),
        ({"tasks": "react", "task_hints": "deadlines"}, "--task-hints: 'deadlines' is not one of"),
        ({"tasks": "react", "task_hints": "calls=0"}, "--task-hints: 'calls=0': the factor"),
        ({"tasks": "react", "rps": "3"}, "--rps does not go with --tasks; the load of tasks is --task-rate"),
        ({"tasks": "react", "workload": "voice"}, "--workload does not go with --tasks"),
        ({"task_rate": "0.1"}, "--task-rate and --task-deadline go with --tasks"),
    ],
)
def test_options_that_make_no_sense_are_refused(flags: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        asked_tasks(SimulateOptions(**flags), None)  # type: ignore[arg-type]


def test_an_slo_file_replaces_the_workloads_own_classes() -> None:
    found = asked_tasks(SimulateOptions(tasks="chat"), DEFAULT_ASSIGNMENT)
    assert found is not None and found.slos is DEFAULT_ASSIGNMENT
