"""What are the papers' policies worth beside the vLLM of their time, and what is left of that beside today's?

The main settings of Andes, EconoServe, QLM (one engine) and the simulated-annealing paper, each with stock (vLLM
0.32.0), `vllm-2023` (vllm_2023.py) and the paper's policy, on the same requests, three seeds (20 of the bursts). Ageing
is off, since the vLLM of that time had none. Loads are multiples of today's stock's capacity. Writes
results/papers_time.json.gz: the figures of each run, and for load capacities the ratios to both.

    python -m benchmarks.policies.papers_time [--quick] [--out FILE]
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.arguments import quick_and_out
from benchmarks.experiments import EXPERIMENTS
from benchmarks.policies.sa_paper import V100, at_once, served
from benchmarks.publish import RESULTS, load_text, write_result
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.report.compare import BASELINE
from sloserve.sim.report.experience import GOOD_QOE
from sloserve.sim.report.latency_capacity import latency_capacity
from sloserve.sim.report.load_capacity import load_capacity
from sloserve.sim.report.summary import Run

OLD = "vllm-2023"
SETTINGS: dict[str, dict[str, Any]] = {
    "econo-sharegpt": {"load": "0.5,1,1.5", "max_requests": 300, "policy": f"stock,{OLD},econo"},
    "andes-opt-66b": {"load": "1,1.5,2", "max_requests": 500, "policy": f"stock,{OLD},andes-paper"},
    "qlm-one-engine-mix": {
        "workload": "chat-batch-mix",
        "load": "1.5",
        "max_requests": 600,
        "policy": f"stock,{OLD}:max_paddings=0,qlm",
    },
}
"""Flags that replace those of the experiment with this name, if there is one."""
SEEDS = 3
BURSTS, BURST_SEEDS = ((10, 1),), range(20)
"""Requests at once, and most that run, in the simulated-annealing paper; it measured vLLM 0.6.0, which pads nothing."""
BURST_POLICIES = ("stock", f"{OLD}:max_paddings=0", "sa:length=oracle", "sa")
FIGURES = ("qoe_mean", "slo_attainment", "normalized_latency_ms", "output_throughput", "preemptions_per_request")


def runs_of(name: str, seeds: int, **flags: Any) -> list[Run]:
    """Return the runs of an experiment with the flags of SETTINGS, and with these."""
    replaced = SETTINGS[name] | {"seeds": seeds, "engine": MODEL, "aged_share": 0.0} | flags
    known = EXPERIMENTS[name].flags if name in EXPERIMENTS else {}
    ours = build_experiment(SimulateOptions(**known | replaced))
    return [one.record() for one in run_experiment(ours, points=measured_points(ours))]


def against(runs: Iterable[Run], base: str) -> list[Run]:
    """Return the runs with ``base`` in the place of the baseline, and the baseline under the name of today's vLLM."""
    names = {base: BASELINE, BASELINE: "today"} if base != BASELINE else {}
    return [run | {"policy": names.get(run["policy"], run["policy"])} for run in runs]


def capacities(name: str, runs: list[Run]) -> list[dict[str, Any]]:
    """Return the load that each policy carries, with its ratio to today's stock's and to that of ``vllm-2023``."""
    rows = []
    for base in (BASELINE, OLD):
        based = against(runs, base)
        found = load_capacity(based, "qoe_mean", GOOD_QOE) if name.startswith("andes") else latency_capacity(based)
        rows += [{"experiment": name, "base": base, **one.as_dict()} for one in found]
    return rows


def bursts(sizes: Iterable[tuple[int, int]], seeds: Iterable[int]) -> list[dict[str, Any]]:
    """Return the runs of the simulated-annealing paper's requests at once."""
    rows = []
    for n, limit in sizes:
        settings = EngineSettings.of_profile(load_profile(V100), kv_blocks=6000, max_num_seqs=limit, max_model_len=4096)
        for policy in BURST_POLICIES:
            for seed in seeds:
                run = served(V100, at_once(n, seed), settings, policy, seed, 0.0)
                row = {"requests": n, "max_batch": limit, "policy": policy, "seed": seed}
                mean_s = run["mean_e2el_ms"] / 1e3
                goodput = run["slo_attainment"] / mean_s
                figures = {"goodput": goodput, "attainment": run["slo_attainment"], "mean_latency_s": mean_s}
                rows.append(row | {figure: float(f"{value:.5g}") for figure, value in figures.items()})
    return rows


def main() -> None:
    quick, out = quick_and_out(__doc__, RESULTS / "papers_time.json.gz")
    if quick:
        print(json.dumps(bursts(BURSTS[:1], BURST_SEEDS[:1])[0]))
        return
    made: dict[str, Any] = json.loads(load_text(out)) if out is not None and out.exists() else {}
    made.setdefault("rows", [])
    made.setdefault("capacities", [])
    for name in SETTINGS:
        if any(row["experiment"] == name for row in made["rows"]):
            continue
        runs = runs_of(name, SEEDS)
        for run in runs:
            row = {"experiment": name, "load": run["load"], "seed": run["seed"], "policy": run["policy"]}
            made["rows"].append(row | {figure: run[figure] and float(f"{run[figure]:.5g}") for figure in FIGURES})
        if not name.startswith("qlm"):
            made["capacities"] += capacities(name, runs)
        written(out, made)
    if "bursts" not in made:
        made["bursts"] = bursts(BURSTS, BURST_SEEDS)
        written(out, made)


def written(out: Path | None, made: dict[str, Any]) -> None:
    """Print what there is, and write it: a run that is stopped goes on from there."""
    print(json.dumps(made), flush=True)
    if out is not None:
        write_result(out, {name: made[name] for name in ("rows", "capacities", "bursts") if name in made})


if __name__ == "__main__":
    main()
