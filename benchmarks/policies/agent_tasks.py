"""How many tasks of agents end in time under each policy, and what has a client to state for it?

Usage: python -m benchmarks.policies.agent_tasks [--quick] [--workers 2] [--rates 0.16] [--policies "stock;auto"]

A closed loop: the next call of a task follows when the call before has ended and its tool has run, with a prompt that
repeats the whole conversation (the lengths are in sloserve/sim/workloads/tasks/react.py). Llama 3 70B on four A100 with
a KV cache of 96,000 tokens, which holds about a dozen conversations of the median length; between two calls the cache
may forget them. A task is due after twice its latency on an idle engine and 5 s. Each seed gives all policies the same
tasks, and at each rate the same arrivals but for a factor. Runs go through the engine model, and planning takes its
time.

Policies run as they are, and with what a client may state of each call: the time that is left of the task's deadline,
if any is left, or 15 s for each call. Least attained service goes by the task, through vLLM's priority. Rivals that
know tasks (benchmarks/baselines has them) see which task a call is of, its deadline, its number of calls and which is
the last. ThunderAgent also runs with the constants that were best for it on seeds 0 and 1: with its own, 5 s and the
whole cache, it resumes programs late and pauses them late.

Writes results/agent_tasks.json.gz after each run, so that --resume goes on with a file: each run, and for each policy
and rate the means with differences from stock and from `auto`, paired by seed, and half of their 95 % intervals.
"""

import itertools
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.arguments import parser_for
from benchmarks.policies.agent_workload import (
    AgentLoop,
    Statement,
    deadline,
    each_15_s,
    least_attained,
    nothing,
)
from benchmarks.policies.auto_judged import half_95
from benchmarks.policies.step_sizes import BUDGET
from benchmarks.publish import RESULTS, aligned, read_json, write_result
from sloserve.core.outcome import Outcome
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.closed_loop import run_closed_loop
from sloserve.sim.experiment import MODEL, Experiment, Point, engine_of, task_of
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.workloads.tasks.arrivals import arriving
from sloserve.sim.workloads.tasks.plan import TaskPlan
from sloserve.sim.workloads.tasks.react import react_tasks
from sloserve.sim.workloads.tasks.registry import AGENT_SLOS

PROFILE, KV_BLOCKS = "a100-llama3-70b-tp4", 6000
RATES = (0.08, 0.12, 0.16, 0.2)
"""Tasks per second."""
TASKS = 70
SEEDS = (0, 1, 2)


class Setting(NamedTuple):
    """A policy, what clients state of their calls, and whether they state the task, its deadline and its calls."""

    policy: str
    statement: Statement
    states_tasks: bool = False


SETTINGS = {
    "stock": Setting("stock", nothing),
    "auto": Setting("auto", nothing),
    "auto, deadline": Setting("auto", deadline),
    "auto, 15 s": Setting("auto", each_15_s),
    "econo*, 15 s": Setting("econo" + BUDGET, each_15_s),
    "edf*, deadline": Setting("edf" + BUDGET, deadline),
    "niyama*, deadline": Setting("niyama" + BUDGET, deadline),
    "sjf*": Setting("sjf" + BUDGET, nothing),
    "andes*": Setting("andes" + BUDGET, nothing),
    "least attained": Setting("priority", least_attained),
    "edf-split*": Setting("edf-split" + BUDGET, nothing, states_tasks=True),
    "plas*": Setting("plas" + BUDGET, nothing, states_tasks=True),
    "atlas*": Setting("atlas" + BUDGET, nothing, states_tasks=True),
    "thunder-agent*": Setting("thunder-agent" + BUDGET, nothing, states_tasks=True),
    "thunder-agent, 1 s*": Setting("thunder-agent:threshold=0.8:interval_s=1" + BUDGET, nothing, states_tasks=True),
    "continuum*": Setting("continuum" + BUDGET, nothing, states_tasks=True),
}
ALONE_S = 10_000.0
"""Seconds between the arrivals of tasks that run one after another."""
FIGURES = {
    "in_time": "in time", "mean_s": "mean s", "p50_s": "p50", "p99_s": "p99", "call_p99_s": "call p99",
    "hit_rate": "hits", "preemptions_per_call": "preempt", "computed_over_needed": "computed",
}  # fmt: skip


def experiment() -> Experiment:
    """Return the engine, with classes that have no targets of their own; the workload is not used."""
    options = SimulateOptions(
        policy="stock", engine=MODEL, workload="sharegpt-poisson", rps="1", profile=PROFILE, kv_blocks=KV_BLOCKS
    )
    built = build_experiment(options)
    return replace(built, slos=AGENT_SLOS, engine=replace(built.engine, enable_prefix_caching=True))


def run(tasks: Sequence[TaskPlan], setting: Setting, seed: int) -> dict[str, Any]:
    """Return the figures of one run, and the latency of each task; an unfinished task has a latency of NaN."""
    ours = experiment()
    loop = AgentLoop(tasks, setting.statement, ours.profile, states_tasks=setting.states_tasks)
    log = run_closed_loop(engine_of(task_of(ours, setting.policy, Point(seed, math.nan, None), [])), loop)
    outcomes = loop.outcomes()
    latency_s = np.array([math.nan if one.latency_s is None else one.latency_s for one in outcomes])
    calls_s = [r.latency.e2e_s for r in log.requests if r.latency is not None]
    prompts = sum(r.request.prompt_tokens for r in log.requests)
    cached = sum(r.cached_tokens for r in log.requests)
    possible = sum(task.repeated_tokens(i) for task in tasks for i in range(len(task.calls)))
    every_prompt = sum(task.prompt_tokens(i) for task in tasks for i in range(len(task.calls)))
    again = sum(r.recomputed_tokens for r in log.requests)
    return {
        "in_time": float(np.mean([one.ended_s is not None and one.ended_s <= one.due_s for one in outcomes])),
        "mean_s": float(np.nanmean(latency_s)),
        **{f"p{p}_s": float(np.nanpercentile(latency_s, p)) for p in (50, 99)},
        "call_p99_s": float(np.percentile(calls_s, 99)),
        "hit_rate": cached / prompts,
        "possible_hit_rate": possible / every_prompt,
        "preemptions_per_call": sum(r.num_preemptions for r in log.requests) / len(log.requests),
        "computed_over_needed": (prompts - cached + again) / (every_prompt - possible),
        "unfinished": int(np.isnan(latency_s).sum()),
        "not_completed": sum(r.outcome is not Outcome.COMPLETED for r in log.requests),
        "latency_s": latency_s.tolist(),
    }


@cache
def unloaded_s(n: int, seed: int) -> list[float]:
    """Return the latency of each task on an idle engine under stock, in seconds."""
    apart = [replace(task, arrival_s=ALONE_S * task.number) for task in react_tasks(n, seed)]
    found: list[float] = run(apart, SETTINGS["stock"], seed)["latency_s"]
    return found


def row_of(n: int, seed: int, rate: float, name: str) -> dict[str, Any]:
    """Return the figures of one run for the file."""
    tasks = arriving(react_tasks(n, seed), seed, rate, unloaded_s(n, seed))
    found = run(tasks, SETTINGS[name], seed)
    del found["latency_s"]
    return {"policy": name, "rate": rate, "seed": seed, **found}


def compared(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each policy and rate, and for all rates together, the means and the differences in tasks in time.

    A difference over all rates takes for each seed the mean over its rates; policies that did not run at all of them
    are left out there.
    """
    frame = pd.DataFrame(runs).set_index(["policy", "rate", "seed"])[[*FIGURES, "possible_hit_rate"]]
    rows = []
    policies, rates = (list(dict.fromkeys(one[key] for one in runs)) for key in ("policy", "rate"))
    for rate in [*rates, "all"]:
        some = frame if rate == "all" else frame.xs(rate, level="rate")
        if rate == "all":
            counts = some.groupby("policy").size()
            some = some.loc[counts.index[counts == counts.max()]]
        by_seed = some.groupby(["policy", "seed"], sort=False).mean()
        in_time = by_seed.in_time.unstack("policy")
        for policy in [name for name in policies if name in in_time]:
            row: dict[str, Any] = {"policy": policy, "rate": rate, **by_seed.loc[policy].mean().to_dict()}
            for other in in_time.columns.intersection(["auto", "stock"]):
                added = (in_time[policy] - in_time[other]).to_numpy()
                row |= {f"less_{other}": float(added.mean()), f"less_{other}_half_95": half_95(added)}
            rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the figures of each policy and rate as a printed table."""
    shown = [["policy, tasks/s", *FIGURES.values(), "less stock", "less auto"]]
    for row in rows:
        cells = [f"{row[figure]:.3f}" for figure in FIGURES]
        for other in ("stock", "auto"):
            known = f"less_{other}" in row
            cells.append(f"{row[f'less_{other}']:+.3f} +- {row[f'less_{other}_half_95']:.3f}" if known else "-")
        shown.append([f"{row['policy']} {row['rate']}", *cells])
    return aligned(shown)


def main() -> None:
    parser = parser_for(
        __doc__, workers=2, seeds=len(SEEDS), tasks=TASKS, rates=",".join(map(str, RATES)),
        policies=";".join(SETTINGS), resume=False,
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="small; writes nothing without --out")
    parser.add_argument("--out", type=Path, help="instead of agent_tasks.json.gz")
    given = parser.parse_args()
    rates, seeds, n = list(map(float, given.rates.split(","))), SEEDS[: given.seeds], given.tasks
    if given.quick:
        rates, seeds, n = [0.16], SEEDS[:2], 3
    out = given.out or (None if given.quick else RESULTS / "agent_tasks.json.gz")
    settings = {"profile": PROFILE, "kv_blocks": KV_BLOCKS, "tasks": n}
    runs = read_json(out).get("runs", []) if given.resume and out is not None else []
    done = {(one["seed"], one["rate"], one["policy"]) for one in runs}
    jobs = [job for job in itertools.product(seeds, rates, given.policies.split(";")) if job not in done]
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        for found in pool.map(row_of, itertools.repeat(n), *zip(*jobs, strict=True)) if jobs else ():
            print(found, flush=True)
            runs.append(found)
            if out is not None:
                write_result(out, {**settings, "runs": runs})
    rows = compared(runs)
    print(table(rows))
    if out is not None:
        write_result(out, {**settings, "rows": rows, "runs": runs})


if __name__ == "__main__":
    main()
