"""Experiments with tasks: one closed loop on both engines, with the figures, logs and plots of tasks."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from sloserve.core.errors import ConfigError
from sloserve.core.outcome import Outcome
from sloserve.core.runlog import RunLog
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import Experiment, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.simulation import simulate
from sloserve.sim.task_runs import unloaded_latencies_s

SMALL: dict[str, Any] = {"task_count": 6, "task_scale": 0.25, "seeds": 1, "kv_blocks": 700, "plan_cost": 0.0}


def experiment(**flags: Any) -> Experiment:
    given = {"tasks": "react", "task_rate": "1", "policy": "stock,auto", "engine": "model"}
    return build_experiment(SimulateOptions(**given | SMALL | flags))


def logs(**flags: Any) -> dict[str, RunLog]:
    return {run.policy: run.log for run in run_experiment(experiment(**flags))}


@pytest.mark.slow
def test_a_run_has_the_figures_of_its_tasks() -> None:
    (run,) = run_experiment(experiment(policy="auto", task_hints="deadline,calls=3,last"))
    record, tasks = run.record(), run.log.tasks
    assert tasks is not None and (record["tasks"], record["rps"]) == (6, 1.0)
    assert record["requests"] == sum(task.calls for task in tasks) == 6 * record["calls_per_task"]
    latency_s = [task.latency_s for task in tasks]
    assert record["mean_task_s"] == pytest.approx(np.mean(latency_s))
    assert record["tasks_in_time"] == np.mean([task.in_time for task in tasks])
    assert record["tool_time_share"] == pytest.approx(sum(t.tools_s for t in tasks) / np.sum(latency_s))
    cached = sum(r.cached_tokens for r in run.log.requests)
    prompts = sum(r.request.prompt_tokens for r in run.log.requests)
    assert record["prompt_hit_rate"] == pytest.approx(cached / prompts)
    for r in run.log.requests:
        task = next(task for task in tasks if r.request.request_id in task.requests)
        assert r.request.call is not None and r.request.call.due_s == task.due_s
        assert (r.request.call.key, r.request.call.calls) == (task.key, 3 * task.calls)


@pytest.mark.slow
def test_a_task_is_due_after_twice_its_latency_on_an_idle_engine_and_five_seconds() -> None:
    ours = experiment(policy="stock", task_rate="0.001")
    (run,) = run_experiment(ours)
    alone_s = unloaded_latencies_s("react", 6, 0, 0.25, ours.engine, ours.profile)
    assert run.log.tasks is not None
    for task, unloaded_s in zip(run.log.tasks, alone_s, strict=True):
        assert task.due_s - task.arrival_s == pytest.approx(2.0 * unloaded_s + 5.0)
        assert task.latency_s == pytest.approx(unloaded_s)


def test_a_task_that_no_engine_of_this_size_can_serve_names_the_remedy() -> None:
    with pytest.raises(ConfigError, match="--tasks react: task.* cannot be served by an idle engine with 60 KV blocks"):
        logs(kv_blocks=60)


@pytest.mark.slow
def test_tasks_run_on_an_engine_with_swap_space() -> None:
    found = logs(policy="stock,auto", swap_space_gib=1.0, task_count=2)
    assert [len(log.tasks or ()) for log in found.values()] == [2, 2]


@pytest.mark.slow
def test_runs_do_not_depend_on_the_number_of_processes() -> None:
    alone, pooled = (
        [(run.policy, run.record() | {"timing": None}) for run in run_experiment(experiment(task_count=3), jobs=jobs)]
        for jobs in (1, 2)
    )
    assert alone == pooled


@pytest.mark.slow
def test_tasks_are_tuned_by_how_many_end_in_time() -> None:
    from sloserve.sim.tuning import evaluator

    ours = replace(experiment(policy="stock", task_count=3), policies=("stock",))
    (score,) = evaluator(ours)(["stock"]).values()
    assert score.attainment == (1.0,)


@pytest.mark.slow
def test_progress_counts_tasks() -> None:
    seen: list[tuple[int, int]] = []
    list(run_experiment(experiment(policy="stock"), on_progress=lambda done, total: seen.append((done, total))))
    assert seen == [*((i, 6) for i in range(1, 7)), (6, 6)]


@pytest.mark.slow
def test_simulate_writes_the_table_logs_and_figure_of_tasks(tmp_path: Path) -> None:
    console = Console(record=True, width=140)
    ours = experiment(task_rate="0.5,2", tasks="small-beside-large", seeds=3)
    simulate(ours, tmp_path, console=console)
    text = console.export_text()
    assert "small-beside-large on" in text and "3 seeds of 6 tasks" in text
    assert "tasks/s" in text and "in time" in text and " small " in text and " large " in text
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["workload"]["tasks"] == {
        "count": 6,
        "rates": [0.5, 2.0],
        "scale": 0.25,
        "deadline_slowdown": 2.0,
        "deadline_plus_s": 5.0,
        "hints": {"task": True, "deadline": True, "calls": None, "last": False},
    }
    assert {c["metric"] for c in result["comparisons"]} >= {"tasks_in_time", "mean_task_s", "prompt_hit_rate"}
    rows = list(csv.DictReader((tmp_path / "tasks.csv").read_text().splitlines()))
    assert len(rows) == 2 * 3 * 2 * 6
    assert {row["kind"] for row in rows} == {"small", "large"} and all(row["ended_s"] for row in rows)
    assert (tmp_path / "task_latency_cdf.png").exists()


@pytest.mark.vllm
@pytest.mark.parametrize("name", ["react", "map-reduce"])
def test_vllms_scheduler_serves_tasks_as_the_model_does(name: str) -> None:
    real, model = (logs(tasks=name, task_count=4, engine=engine) for engine in ("vllm", "model"))
    assert real.keys() == model.keys()
    for policy, log in real.items():
        other = model[policy]
        assert log.tasks == other.tasks
        assert [r.request for r in log.requests] == [r.request for r in other.requests]
        assert [r.cached_tokens for r in log.requests] == [r.cached_tokens for r in other.requests]
        assert {r.outcome for r in log.requests} == {Outcome.COMPLETED}
        for mine, theirs in zip(log.requests, other.requests, strict=True):
            assert np.array_equal(mine.token_times_s, theirs.token_times_s)
