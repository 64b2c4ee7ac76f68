"""Is there a policy to leave on? `auto` beside its rivals, over 48 cells that were fixed before it is judged.

The cells cover every pair of workload, targets, KV, profile and load that is possible, by a greedy design with a seed
(``--list`` prints it; auto_cells.csv holds it, so that a changed design shows). Rivals are stock and edf, sjf, andes,
econo, each at the size of a step that is best on the earlier half of the workload, and with the step budget; all are
judged on the later half. Runs go through the engine model.

Writes to the folder ``--out``: runs.csv, one row a run. A cell that runs.csv has already is not run again. Traces are
looked for in the folder that SLOSERVE_DATA names; without it their cells are left out.

    python benchmarks/auto_cells.py [--list] [--cells 0-7] [--max-requests 300] [--seeds 3]
"""

import argparse
import csv
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import yaml
from step_sizes import BUDGET, FIGURES, HALVES, POLICIES, ROOT, SIZES

from sloserve.core.errors import ConfigError
from sloserve.report.summary import summarize
from sloserve.sim.experiment import MODEL, Experiment, measured_points, run_experiment
from sloserve.sim.simulate import build_experiment
from sloserve.workloads.readers.found import find_trace

NUM_CELLS = 48
LIST = Path(__file__).parent / "auto_cells.csv"
WORKLOADS: dict[str, dict[str, Any]] = {
    "azure-conv": {"trace": "azure2023_conv_first_two_thirds.csv.gz"},
    "azure-code": {"trace": "azure2023_code_first_two_thirds.csv.gz"},
    "mooncake": {"trace": "mooncake_conversation_first_half.csv.gz"},
    "servegen-10h": {"trace": "servegen_mlarge_day2_10h.csv.gz"},
    "servegen-19h": {"trace": "servegen_mlarge_day2_19h.csv.gz"},
    "sharegpt": {"workload": "sharegpt-poisson"},
    "bookcorpus": {"workload": "bookcorpus-poisson", "max_model_len": 4096},
    "multiround": {"workload": "multiround"},
    "reasoning": {"workload": "reasoning-poisson"},
}
CHAT = {"share": 0.5, "ttft_ms": 1000, "tpot_ms": 200, "tds": "reading"}
MIXED = {"chat": CHAT, "job": {"share": 1 / 3, "e2e_ms": 30_000}, "batch": {"share": 1 / 6, "e2e_ms": 300_000}}
TARGETS: dict[str, str | dict[str, Any] | None] = {
    "default": None,
    "mixed": MIXED,
    "readers": "reading",
    "deadline": {"fixed": {"share": 1, "e2e_ms": 12_000}},
    "none": {"plain": {"share": 1}},
}
PROFILES = {"h100-llama3-8b": 3000, "a100-opt-13b": 1250, "a100-llama3-70b-tp4": 3000}
"""And the KV blocks of it that are scarce."""
SHORT = ("sharegpt", "bookcorpus", "multiround")
"""Workloads whose contexts OPT can hold."""
LOADS = ("0.7", "1", "1.5", "2")


class Cell(NamedTuple):
    workload: str
    targets: str
    kv: str
    profile: str
    load: str

    @property
    def is_possible(self) -> bool:
        """Whether its contexts fit the model, and the KV cache."""
        if self.profile == "a100-opt-13b" and self.workload not in SHORT:
            return False
        return not (self.workload == "mooncake" and self.kv == "scarce")

    def pairs(self) -> Iterator[tuple[tuple[int, str], tuple[int, str]]]:
        return itertools.combinations(enumerate(self), 2)


def design(seed: int = 0) -> list[Cell]:
    """Cells one after another, each covering the pairs that were covered least; ties are drawn."""
    rng = np.random.default_rng(seed)
    every = (Cell(*one) for one in itertools.product(WORKLOADS, TARGETS, ("ample", "scarce"), PROFILES, LOADS))
    possible = [cell for cell in every if cell.is_possible]
    covered: Counter[Any] = Counter()
    chosen: list[Cell] = []
    while len(chosen) < NUM_CELLS:
        order = [possible[i] for i in rng.permutation(len(possible))]
        best = max(order, key=lambda cell: sum(1.0 / 4.0 ** covered[pair] for pair in cell.pairs()))
        chosen.append(best)
        covered.update(best.pairs())
    return chosen


def experiment(cell: Cell, half: str, max_requests: int, seeds: int, folder: Path) -> Experiment:
    """Raises: ConfigError where the trace is missing."""
    flags = {**WORKLOADS[cell.workload], "profile": cell.profile, "load": cell.load}
    if "trace" in flags:
        flags["trace"] = find_trace(Path(flags["trace"]))
    targets = TARGETS[cell.targets]
    if isinstance(targets, dict):
        path = folder / f"{cell.targets}.yaml"
        path.write_text(yaml.safe_dump({"classes": targets}))
        flags["slo"] = str(path)
    elif targets is not None:
        flags["slo"] = targets
    if cell.kv == "scarce":
        flags["kv_blocks"] = PROFILES[cell.profile]
    sized = [f"{policy}@max_num_batched_tokens={size}" for policy in POLICIES for size in SIZES]
    budgets = ["fcfs" + BUDGET, *(policy + BUDGET for policy in POLICIES[1:])]
    names = sized if half == "earlier" else [*POLICIES, *sized, *budgets, "auto"]
    built = build_experiment(**flags, policy=",".join(names), max_requests=max_requests, seeds=seeds)
    own = f"@max_num_batched_tokens={built.engine.max_num_batched_tokens}"
    kept = tuple(name for name in built.policies if not (half == "later" and name.endswith(own)))
    return replace(built, policies=kept, window=HALVES[half], engine_kind=MODEL)


def run_cell(number: int, cell: Cell, max_requests: int, seeds: int) -> Iterator[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        for half in HALVES:
            ours = experiment(cell, half, max_requests, seeds, Path(folder))
            for run in run_experiment(ours, points=measured_points(ours)):
                point = run.point
                record = summarize(run.log, policy=run.policy, seed=point.seed, rps=point.rps, load=point.load)
                row = {"cell": number, "half": half, "policy": run.policy, "seed": point.seed}
                yield row | {figure: record[figure] for figure in FIGURES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "auto")
    parser.add_argument("--list", action="store_true", help="write the list of cells, and nothing else")
    parser.add_argument("--cells", default=f"0-{NUM_CELLS - 1}")
    parser.add_argument("--max-requests", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    if args.list:
        with LIST.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([("cell", *Cell._fields), *((i, *cell) for i, cell in enumerate(design()))])
        return
    with LIST.open() as file:
        cells = {int(row["cell"]): Cell(*(row[name] for name in Cell._fields)) for row in csv.DictReader(file)}
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "runs.csv"
    rows: list[dict[str, Any]] = list(csv.DictReader(path.open())) if path.exists() else []
    done = {int(row["cell"]) for row in rows}
    first, last = map(int, args.cells.split("-"))
    for number in range(first, last + 1):
        if number in done:
            continue
        try:
            found = list(run_cell(number, cells[number], args.max_requests, args.seeds))
        except ConfigError as error:
            print(f"{number}, {', '.join(cells[number])}: left out: {error}", flush=True)
            continue
        rows += [{key: f"{v:.6g}" if isinstance(v, float) else v for key, v in row.items()} for row in found]
        with path.open("w", newline="") as file:
            written = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            written.writeheader()
            written.writerows(rows)
        print(f"{number}, {', '.join(cells[number])}: {len(found)} runs", flush=True)


if __name__ == "__main__":
    main()
