"""What is the best static step size worth, and to whom? And what does the step budget reach beside it, without a flag?

Every rival runs with each size of a step (``--max-num-batched-tokens``), and once with ``step_budget=true`` at the
default. Its best size is chosen on the earlier half of the workload and judged, like everything else, on the later
half, by attainment, then tokens per second (:mod:`sloserve.sim.tuning`). Runs go through the engine model.

Writes to the folder ``--out``: runs.csv.gz, one row a run; table.txt, one row a cell and policy. A cell that has rows
there already is not run again. Traces are looked for in the folder that SLOSERVE_DATA names; without it their cells are
left out.

    python -m benchmarks.policies.step_sizes [--jobs 2] [--cells azure-conv,sharegpt] [--max-requests 400] [--seeds 3]
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, RUNS, markdown, read_rows, short, write_rows, write_table
from benchmarks.traces import AZURE_CODE, AZURE_CONV, MOONCAKE, SERVEGEN_10H, SERVEGEN_19H
from sloserve.core.errors import ConfigError
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, Experiment, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.tuning import Score, ranked
from sloserve.sim.workloads.window import Window

SIZES = (256, 512, 1024, 2048, 4096)
POLICIES = ("stock", "edf", "sjf", "andes", "econo")
BUDGET = ":step_budget=true"
H100: dict[str, Any] = {"profile": "h100-llama3-8b"}
WORKLOADS: dict[str, dict[str, Any]] = {
    "azure-conv": H100 | {"trace": AZURE_CONV, "load": "1.5"},
    "azure-code": H100 | {"trace": AZURE_CODE, "load": "1"},
    "mooncake": {"profile": "h200-llama3-8b", "trace": MOONCAKE, "load": "1"},
    "servegen-10h": H100 | {"trace": SERVEGEN_10H, "load": "1.5"},
    "servegen-19h": H100 | {"trace": SERVEGEN_19H, "load": "1.5"},
    "sharegpt": H100 | {"workload": "sharegpt-poisson", "load": "1.5"},
}
SLOS = {"default": None, "readers": "reading", "deadline": "configs/slo-fixed-12s.yaml"}
SCARCE_BLOCKS = 3000
FIGURES = ("slo_attainment", "qoe_mean", "normalized_latency_ms", "output_throughput", "preemptions_per_request")
HALVES = {"earlier": Window(0.0, 0.5), "later": Window(0.5, 1.0)}
COLUMNS = ("workload", "slo", "kv", "half", "policy", "seed", "load", *FIGURES)
ROOT = Path(__file__).parents[2]

Row = dict[str, Any]


def cells(names: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Workload, SLOs, KV: the default classes with both, readers and deadlines where KV is scarce, too.

    Mooncake's prompts do not fit a scarce cache.
    """
    workloads = list(names)
    for slo in SLOS:
        for workload in workloads:
            if slo == "default" or workload == "mooncake":
                yield workload, slo, "ample"
            if workload != "mooncake":
                yield workload, slo, "scarce"


def experiment(workload: str, slo: str, kv: str, half: str, max_requests: int, seeds: int) -> Experiment:
    """Raises: ConfigError where the trace is missing."""
    flags = dict(WORKLOADS[workload])
    if SLOS[slo] is not None:
        name = str(SLOS[slo])
        flags["slo"] = str(ROOT / name) if name.endswith(".yaml") else name
    if kv == "scarce":
        flags["kv_blocks"] = SCARCE_BLOCKS
    sized = [f"{policy}@max_num_batched_tokens={size}" for policy in POLICIES for size in SIZES]
    budgets = ["fcfs" + BUDGET, *(policy + BUDGET for policy in POLICIES[1:])]
    names = sized if half == "earlier" else [*POLICIES, *sized, *budgets]
    built = build_experiment(SimulateOptions(**flags, policy=",".join(names), max_requests=max_requests, seeds=seeds))
    own = f"@max_num_batched_tokens={built.engine.max_num_batched_tokens}"
    kept = tuple(name for name in built.policies if not (half == "later" and name.endswith(own)))
    return replace(built, policies=kept, window=HALVES[half], engine_kind=MODEL)


def run_cell(cell: tuple[str, str, str], max_requests: int, seeds: int, only_budgets: bool = False) -> list[Row]:
    rows = []
    for half in ("later",) if only_budgets else HALVES:
        ours = experiment(*cell, half, max_requests, seeds)
        if only_budgets:
            ours = replace(ours, policies=tuple(name for name in ours.policies if BUDGET in name))
        default = f"@max_num_batched_tokens={ours.engine.max_num_batched_tokens}"
        for run in run_experiment(ours, points=measured_points(ours)):
            point = run.point
            record = run.record()
            named = dict(
                zip(COLUMNS, (*cell, half, run.policy.removesuffix(default), point.seed, point.load), strict=False)
            )
            rows.append(named | {figure: record[figure] for figure in FIGURES})
    return rows


def best_sizes(rows: list[Row]) -> dict[str, str]:
    """The run of each policy that is best on the earlier half; its own name stands for the default."""
    found = {}
    for policy in POLICIES:
        scores: dict[str, Score] = {}
        for name in dict.fromkeys(row["policy"] for row in rows):
            if name.partition("@")[0] == policy:
                of_name = [row for row in rows if row["policy"] == name]
                scores[name] = Score(
                    *(tuple(float(row[f]) for row in of_name) for f in ("slo_attainment", "output_throughput"))
                )
        found[policy] = ranked(scores, policy)[0]
    return found


def _figure(rows: list[Row], name: str, figure: str) -> np.ndarray:
    return np.array([float(row[figure] or "nan") for row in rows if row["policy"] == name])


def table(rows: list[Row]) -> str:
    """What the runs of the later half say, as Markdown, each figure as: default, best static size, step budget."""
    cells = dict.fromkeys((row["workload"], row["slo"], row["kv"]) for row in rows)
    heads = {
        "slo_attainment": "Requests that met every target, in %; the best size in brackets",
        "output_throughput": "Output tokens per second, in % of the default's",
        "qoe_mean": "Mean QoE",
        "preemptions_per_request": "Preemptions per request",
    }
    lines = []
    for figure, head in heads.items():
        shown = [["workload, SLOs, KV", *POLICIES]]
        for cell in cells:
            of_cell = [row for row in rows if (row["workload"], row["slo"], row["kv"]) == cell]
            best = best_sizes([row for row in of_cell if row["half"] == "earlier"])
            later = [row for row in of_cell if row["half"] == "later"]
            if not later[0][figure]:
                continue
            shown.append([", ".join(cell), *(_shown(figure, later, policy, best[policy]) for policy in POLICIES)])
        lines += [f"{head}.", "", *markdown(shown), ""]
    return "\n".join(lines)


def _shown(figure: str, rows: list[Row], policy: str, best: str) -> str:
    budget = ("fcfs" if policy == "stock" else policy) + BUDGET
    default, static, limited = (float(_figure(rows, name, figure).mean()) for name in (policy, best, budget))
    if figure == "slo_attainment":
        size = best.partition("=")[2] or "default"
        return f"{100 * default:.1f}, {100 * static:.1f} ({size}), {100 * limited:.1f}"
    if figure == "output_throughput":
        return f"100, {100 * static / default:.1f}, {100 * limited / default:.1f}"
    return f"{default:.2f}, {static:.2f}, {limited:.2f}"


def main() -> None:
    parser = parser_for(__doc__, out=RESULTS / "step-sizes", max_requests=400, seeds=3, jobs=1)
    parser.add_argument("--cells", default=",".join(WORKLOADS), help="workloads, comma-separated")
    parser.add_argument("--budgets", action="store_true", help="run the step budgets of all cells again, nothing else")
    args = parser.parse_args()
    path = args.out / RUNS
    rows: list[Row] = read_rows(path)
    done = {(row["workload"], row["slo"], row["kv"]) for row in rows}
    todo = [cell for cell in cells(args.cells.split(",")) if (cell in done) == args.budgets]
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        futures = {cell: pool.submit(run_cell, cell, args.max_requests, args.seeds, args.budgets) for cell in todo}
        for cell, future in futures.items():
            try:
                found = future.result()
            except ConfigError as error:
                print(f"{', '.join(cell)}: left out: {error}", flush=True)
                continue
            if args.budgets:
                rows = [r for r in rows if BUDGET not in r["policy"] or (r["workload"], r["slo"], r["kv"]) != cell]
            rows += map(short, found)
            write_rows(path, rows, COLUMNS)
            write_table(args.out, table(rows))
            print(f"{', '.join(cell)}: {len(found)} runs", flush=True)


if __name__ == "__main__":
    main()
