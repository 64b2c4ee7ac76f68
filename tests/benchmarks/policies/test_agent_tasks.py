"""The closed loop of agents' tasks: what calls repeat, what clients state, and that differences are paired."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks.policies.agent_tasks import ALONE_S, SETTINGS, compared, experiment, run, unloaded_s
from benchmarks.policies.agent_workload import AgentLoop, Call, deadline, least_attained, nothing
from sloserve.core.outcome import Outcome
from sloserve.core.request import OUTPUT_ID
from sloserve.core.slo import Targets
from sloserve.core.tasks import TaskCall
from sloserve.sim.workloads.tasks.arrivals import arriving
from sloserve.sim.workloads.tasks.plan import BLOCK
from sloserve.sim.workloads.tasks.react import SYSTEM_TOKENS, react_tasks


@pytest.mark.slow
def test_each_prompt_is_the_one_before_with_its_output_and_the_tools_result() -> None:
    tasks = react_tasks(30, 0)
    assert all(3 <= len(task.calls) <= 50 for task in tasks)
    for task in tasks:
        for i in range(len(task.calls)):
            tokens, ids = task.prompt_tokens(i), task.prefix_ids(i)
            assert len(ids) * BLOCK == tokens
            if i:
                before = (*task.prefix_ids(i - 1), *[OUTPUT_ID] * (task.output_tokens(i - 1) // BLOCK))
                assert ids[: len(before)] == before
                # The last block of an output is not full.
                assert len(before) * BLOCK - BLOCK == task.repeated_tokens(i)
                assert tokens > len(before) * BLOCK
    ids_of = [{one for one in task.prefix_ids(len(task.calls) - 1) if one >= SYSTEM_TOKENS // BLOCK} for task in tasks]
    assert len(set.union(*ids_of)) == sum(map(len, ids_of))


def test_arrivals_of_a_seed_differ_by_a_factor_and_deadlines_follow_them() -> None:
    slow, fast = (arriving(react_tasks(5, 1), 1, rate, [10.0, 20.0, 30.0, 40.0, 50.0]) for rate in (0.1, 0.2))
    for one, other, alone_s in zip(slow, fast, (10.0, 20.0, 30.0, 40.0, 50.0), strict=True):
        assert one.arrival_s == pytest.approx(2.0 * other.arrival_s)
        assert one.due_s - one.arrival_s == pytest.approx(2.0 * alone_s + 5.0)


def test_clients_state_what_is_left_or_what_was_attained() -> None:
    assert nothing(Call(3.0, 9.0)) == (Targets(), 0)
    assert deadline(Call(3.0, 9.0)) == (Targets(e2e_s=3.0), 0)
    assert deadline(Call(-1.0, 9.0)) == (Targets(), 0)
    assert [least_attained(Call(0.0, attained_s))[1] for attained_s in (0.0, 2.0, 6.0, 14.0)] == [0, 1, 2, 3]


def test_a_task_follows_its_plan_and_ends_unfinished_where_a_call_does_not_complete() -> None:
    (task,) = react_tasks(1, 2)
    loop = AgentLoop([task], nothing, experiment().profile)
    (call,) = loop.first()
    (second,) = loop.after(call, Outcome.COMPLETED, 7.0)
    assert second.arrival_s == 7.0 + task.calls[1].wait_s
    assert (second.prompt_tokens, second.output_tokens) == (task.prompt_tokens(1), task.output_tokens(1))
    assert second.call is None
    assert list(loop.after(second, Outcome.REJECTED, 9.0)) == [] and loop.outcomes()[0].ended_s is None


def test_clients_state_the_task_of_a_call_only_where_a_setting_has_them_do_so() -> None:
    (task,) = (replace(one, due_s=90.0) for one in react_tasks(1, 2))
    for states_tasks in (False, True):
        loop = AgentLoop([task], nothing, experiment().profile, states_tasks=states_tasks)
        (call,) = loop.first()
        (second,) = loop.after(call, Outcome.COMPLETED, 7.0)
        stated = TaskCall(task.key, 90.0, len(task.calls)) if states_tasks else None
        assert call.call == second.call == stated


@pytest.mark.slow
def test_a_task_alone_hits_all_that_it_repeats_and_takes_its_tools_time_and_more() -> None:
    tasks = [replace(task, arrival_s=ALONE_S * task.number) for task in react_tasks(4, 0)]
    found = run(tasks, SETTINGS["auto, deadline"], 0)
    prompts = sum(task.prompt_tokens(i) for task in tasks for i in range(len(task.calls)))
    first = SYSTEM_TOKENS / prompts  # the first task finds no system prompt
    assert found["hit_rate"] == pytest.approx(found["possible_hit_rate"] - first)
    assert (found["unfinished"], found["not_completed"], found["preemptions_per_call"]) == (0, 0, 0.0)
    assert found["in_time"] == 1.0 and found["computed_over_needed"] > 1.0
    for task, latency_s, alone_s in zip(tasks, found["latency_s"], unloaded_s(4, 0), strict=True):
        assert (
            latency_s == pytest.approx(alone_s, rel=0.01)
            and sum(call.wait_s for call in task.calls) < latency_s < math.inf
        )


def test_differences_are_paired_by_seed() -> None:
    figures = ("mean_s", "p50_s", "p99_s", "call_p99_s", "hit_rate", "preemptions_per_call")
    plain = dict.fromkeys((*figures, "computed_over_needed", "possible_hit_rate"), 1.0)
    in_time = {
        ("stock", 0.1): (0.2, 0.4), ("auto", 0.1): (0.5, 0.7), ("stock", 0.2): (0.1, 0.3), ("auto", 0.2): (0.2, 0.4),
    }  # fmt: skip
    runs = [
        plain | {"policy": policy, "rate": rate, "seed": seed, "in_time": value}
        for (policy, rate), values in in_time.items()
        for seed, value in enumerate(values)
    ]
    rows = {(row["policy"], row["rate"]): row for row in compared(runs)}
    assert len(rows) == 6
    for rate, added in ((0.1, 0.3), (0.2, 0.1), ("all", 0.2)):
        assert rows["auto", rate]["less_stock"] == pytest.approx(added)
        assert rows["auto", rate]["less_stock_half_95"] == pytest.approx(0.0, abs=1e-12)
        assert rows["stock", rate]["less_auto"] == pytest.approx(-added)
    assert rows["auto", "all"]["in_time"] == pytest.approx(0.45)
    partly = compared(
        [*runs, *(run | {"policy": "edf"} for run in runs if run["policy"] == "auto" and run["rate"] > 0.1)]
    )
    assert [row["rate"] for row in partly if row["policy"] == "edf"] == [0.2]


@pytest.mark.slow
def test_quick(printed: Callable[..., str]) -> None:
    lines = printed("policies.agent_tasks", "--quick", "--workers", "1").splitlines()
    names = [line.split("  ")[0] for line in lines]
    assert [name for name in names if name.endswith(" all")] == [f"{name} all" for name in SETTINGS]
