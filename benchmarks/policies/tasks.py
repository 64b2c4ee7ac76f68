"""How many tasks of many calls end in time under each policy, and what do retention and the tasks' deadlines add?

Usage: python -m benchmarks.policies.tasks [--workloads react,coding] [--loads 0.7,1,1.5,2] [--policies "stock;auto"]
[--seeds 3] [--first-seed 0] [--workers 2] [--out FILE] [--resume]

Tasks of ``sloserve simulate --tasks`` in a closed loop on the engine model: agents on Llama 3 70B on four A100 with a
KV cache of 96,000 tokens, which holds about a dozen of their conversations; coding agents with prompts of 195,000
tokens on Qwen3-235B on four H200, which hold eight of them; planners with bursts of sub-agents, and chats, on Llama 3
8B on an H100 with a KV cache of 192,000 and 48,000 tokens; Mooncake's conversations, for which its trace must lie in
the folder that SLOSERVE_DATA names, on Llama 3 8B on an H200; and a burst of small tasks beside a large one, which has
no load. A task is due after twice its latency on an idle engine and 5 s. Chats and Mooncake's conversations have no
deadline; the calls of chats have a TTFT of 1 s, Mooncake's one of 30 s and a TPOT of 0.1 s. The load is a multiple of a
rate at which a third to three quarters of stock's tasks (of the calls of those without a deadline) are in time.

Every policy runs with the prefix cache. ``swap`` has swap space as well, which keeps the KV of ended calls; under
``fcfs`` that is the order of arrival with the KV cache extended to the host, as a connector that offloads KV extends
stock's. The rivals know the task, its deadline and its calls, and have the step budget (``*``).

Writes results/tasks.json.gz after each run: a row for each.
"""

import itertools
import math
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.policies.step_sizes import BUDGET
from benchmarks.publish import RESULTS, merge_result, read_json
from sloserve.core.runlog import RunLog
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, Experiment, Point, engine_of, task_of
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.task_runs import serve_tasks, task_run

STATED = "id,deadline,calls,last"


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload on an engine.

    Args:
        profile: Profile of the engine.
        count: Tasks of a run.
        swap_gib: Swap space of the policies that have some, in GiB.
        kv_blocks: Blocks of the KV cache; ``None`` for those of the profile.
        rate: Tasks per second at load 1, found with seed 99; ``None`` for the workload's own rate, whatever the load.
    """

    profile: str
    count: int
    swap_gib: int
    kv_blocks: int | None = None
    rate: float | None = None


CELLS = {
    "react": Cell("a100-llama3-70b-tp4", 60, 128, 6000, 0.08),
    "coding": Cell("h200x4-qwen3-235b", 16, 512, rate=0.007),
    "map-reduce": Cell("h100-llama3-8b", 40, 64, 12000, 0.08),
    "chat": Cell("h100-llama3-8b", 400, 64, 3000, 10.0),
    "mooncake": Cell("h200-llama3-8b", 600, 256, rate=2.0),
    "small-beside-large": Cell("h100-llama3-8b", 64, 64, 6000),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A policy, what clients state of their tasks, and whether there is swap space."""

    policy: str
    hints: str = "none"
    swap: bool = False


RIVALS = ("edf-split", "plas", "atlas", "thunder-agent", "continuum")
PATIENT = "thunder-agent:threshold=0.8:interval_s=1" + BUDGET
"""ThunderAgent with constants that are better for it here than its own."""
SETTINGS = {
    "stock": Setting("stock"),
    "fcfs, swap": Setting("fcfs", swap=True),
    "auto": Setting("auto"),
    "auto, tasks": Setting("auto", STATED),
    "auto, swap": Setting("auto", swap=True),
    "auto, tasks, swap": Setting("auto", STATED, swap=True),
    **{f"{name}*": Setting(name + BUDGET, STATED) for name in RIVALS},
    **{f"{name}*, swap": Setting(name + BUDGET, STATED, swap=True) for name in RIVALS},
    "thunder-agent*, 1 s": Setting(PATIENT, STATED),
    "thunder-agent*, 1 s, swap": Setting(PATIENT, STATED, swap=True),
    "auto, a third of the calls stated, swap": Setting("auto", "id,deadline,calls=0.3,last", swap=True),
    "auto, three times the calls stated, swap": Setting("auto", "id,deadline,calls=3,last", swap=True),
}


def experiment(name: str, hints: str) -> Experiment:
    """Return the engine of a workload and the tasks that are offered to it."""
    cell = CELLS[name]
    options = SimulateOptions(
        policy="stock",
        engine=MODEL,
        profile=cell.profile,
        kv_blocks=cell.kv_blocks,
        tasks=name,
        task_count=cell.count,
        task_hints=hints,
    )
    built = build_experiment(options)
    return replace(built, engine=replace(built.engine, enable_prefix_caching=True))


def figures(log: RunLog) -> dict[str, Any]:
    """Return the figures of one run."""
    assert log.tasks is not None
    latency_s = np.array([math.nan if one.latency_s is None else one.latency_s for one in log.tasks])
    has_deadline = any(one.in_time is not None for one in log.tasks)
    in_time = [bool(one.in_time) for one in log.tasks] if has_deadline else [bool(one.good) for one in log.requests]
    prompts = sum(one.request.prompt_tokens for one in log.requests)
    tokens = sum(one.token_times_s.size for one in log.requests)
    large = [one.latency_s for one in log.tasks if one.kind == "large" and one.latency_s is not None]
    ttft_s = [one.latency.ttft_s for one in log.requests if one.latency is not None]
    return {
        "in_time": float(np.mean(in_time)),
        "mean_s": float(np.nanmean(latency_s)),
        "p99_s": float(np.nanpercentile(latency_s, 99)),
        "longest_ttft_s": max(ttft_s),
        "large_s": max(large, default=None),
        "tokens_per_s": tokens / float(log.steps.end_s[-1]),
        "hit_rate": sum(one.cached_tokens for one in log.requests) / prompts,
        "computed_tokens": int(log.steps.scheduled_tokens.sum()),
        "preemptions_per_call": sum(one.num_preemptions for one in log.requests) / len(log.requests),
        "swap_peak_gib": round(log.counters.get("swap_peak_bytes", 0) / 2**30, 1),
        "unfinished": int(np.isnan(latency_s).sum()),
    }


def row_of(name: str, load: float, seed: int, setting: str) -> dict[str, Any]:
    """Return the figures of one run for the file."""
    chosen, cell = SETTINGS[setting], CELLS[name]
    plain = experiment(name, chosen.hints)
    assert plain.tasks is not None
    rate = plain.tasks.workload.rate_per_s if cell.rate is None else load * cell.rate
    run = task_run(plain.tasks, seed, rate, plain.engine, plain.profile)
    ours = plain
    if chosen.swap:
        ours = replace(plain, engine=replace(plain.engine, swap_space_gib=cell.swap_gib))
    log = serve_tasks(engine_of(task_of(ours, chosen.policy, Point(seed, rate, None), [])), run)
    found = {key: round(value, 4) if isinstance(value, float) else value for key, value in figures(log).items()}
    return {"workload": name, "load": load, "seed": seed, "policy": setting, "rate": round(rate, 5), **found}


def jobs_of(given: Any) -> Sequence[tuple[str, float, int, str]]:
    """Return the runs that are asked for: workload, load, seed and policy."""
    found = []
    for name in given.workloads.split(","):
        loads = [1.0] if CELLS[name].rate is None else list(map(float, given.loads.split(",")))
        seeds = range(given.first_seed, given.first_seed + given.seeds)
        found += list(itertools.product([name], loads, seeds, re.split(" *; *", given.policies)))
    return found


def main() -> None:
    parser = parser_for(
        __doc__, workers=2, seeds=3, workloads=",".join(CELLS), loads="0.7,1,1.5,2", policies=";".join(SETTINGS),
        first_seed=0, resume=False,
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS / "tasks.json.gz", help="default: %(default)s")
    given = parser.parse_args()
    runs = read_json(given.out).get("runs", []) if given.resume else []
    done = {(one["workload"], one["load"], one["seed"], one["policy"]) for one in runs}
    jobs = [job for job in jobs_of(given) if job not in done]
    with ProcessPoolExecutor(given.workers, get_context("spawn")) as pool:
        for found in pool.map(row_of, *zip(*jobs, strict=True)) if jobs else ():
            print(found, flush=True)
            runs.append(found)
            merge_result(given.out, {"runs": runs})


if __name__ == "__main__":
    main()
