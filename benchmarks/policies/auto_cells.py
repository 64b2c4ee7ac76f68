"""Is there a policy to leave on? `auto` beside its rivals, over 48 cells that were fixed before it was judged.

The cells cover every pair of workload, targets, KV, profile and load that is possible, by a greedy design with a seed
(``--list`` prints it; auto_cells.csv holds it, so that a changed design shows). Rivals are stock and edf, sjf, andes,
econo, niyama, each at the size of a step that is best on the earlier half of the workload, and with the step budget.
The earlier half chooses the rival of a cell, too; all are judged on the later half. Runs go through the engine model.

Rivals and auto run in passes of their own, on the same requests at the same rates, which are stock's capacity as the
pass of the rivals measured it. The order of the jobs makes every beginning of a pass a fair part of it: first one seed
of all cells in a drawn order, then the further seeds, those at load 0.7 last. What the file has is not run again.
Further seeds may be of contenders alone: stock, the rival of the cell, and what may dominate auto by its first seed.

    python -m benchmarks.policies.auto_cells --list
    python -m benchmarks.policies.auto_cells --pass rivals --raw raw.csv --seeds 1
    python -m benchmarks.policies.auto_cells --pass auto --raw raw.csv --seeds 1
    python -m benchmarks.policies.auto_cells --pass contenders --raw raw.csv
    python -m benchmarks.policies.auto_cells --pass auto --raw raw.csv

auto_report.py makes the tables. Traces are looked for in the folder that SLOSERVE_DATA names; without it their cells
are left out.
"""

import csv
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import yaml

from benchmarks.arguments import parser_for
from benchmarks.policies.step_sizes import BUDGET, FIGURES, HALVES
from benchmarks.policies.step_sizes import POLICIES as WITH_STEP_SIZES
from benchmarks.publish import read_rows, write_rows
from benchmarks.traces import TRACES
from sloserve.core.errors import ConfigError
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import MODEL, Experiment, Point, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.tuning import Score, ranked

NUM_CELLS = 48
LIST = Path(__file__).parent / "auto_cells.csv"
WORKLOADS: dict[str, dict[str, Any]] = {
    **{name: {"trace": file} for name, file in TRACES.items()},
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
SIZES = (512, 1024)
"""Token budgets of a step, beside the default, which is 2048 in all profiles."""
REQUESTS = {"bookcorpus": 50, "mooncake": 60}
"""A run, where 200 would take too long. Fewer replies of reasoning than that all run at once, and nothing queues."""


class AutoCell(NamedTuple):
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


def design(seed: int = 0) -> list[AutoCell]:
    """Cells one after another, each covering the pairs that were covered least; ties are drawn."""
    rng = np.random.default_rng(seed)
    every = (AutoCell(*one) for one in itertools.product(WORKLOADS, TARGETS, ("ample", "scarce"), PROFILES, LOADS))
    possible = [cell for cell in every if cell.is_possible]
    covered: Counter[Any] = Counter()
    chosen: list[AutoCell] = []
    while len(chosen) < NUM_CELLS:
        order = [possible[i] for i in rng.permutation(len(possible))]
        best = max(order, key=lambda cell: sum(1.0 / 4.0 ** covered[pair] for pair in cell.pairs()))
        chosen.append(best)
        covered.update(best.pairs())
    return chosen


AUTO, STOCK = "auto", "stock"
POLICIES = (*WITH_STEP_SIZES, "niyama")
"""The rivals of `auto`, and stock."""
AUTOS = (AUTO, "auto:step_budget=false")
"""What is judged, and the same without the step budget."""

Row = dict[str, Any]
COLUMNS = ("cell", "half", "seed", "rps", "policy", *FIGURES)


def read_cells() -> dict[int, AutoCell]:
    with LIST.open(encoding="utf-8") as file:
        return {int(row["cell"]): AutoCell(*(row[name] for name in AutoCell._fields)) for row in csv.DictReader(file)}


def experiment(cell: AutoCell, half: str, seed: int, folder: Path, **flags: Any) -> Experiment:
    """Without policies. flags: of ``build_experiment``, beside the cell's. Raises: ConfigError without its trace."""
    flags = {**WORKLOADS[cell.workload], "profile": cell.profile, "load": cell.load} | flags
    targets = TARGETS[cell.targets]
    if isinstance(targets, dict):
        path = folder / f"{cell.targets}.yaml"
        path.write_text(yaml.safe_dump({"classes": targets}), encoding="utf-8")
        flags["slo"] = str(path)
    elif targets is not None:
        flags["slo"] = targets
    if cell.kv == "scarce":
        flags["kv_blocks"] = PROFILES[cell.profile]
    flags = {"max_requests": REQUESTS.get(cell.workload, 200), "engine": MODEL} | flags
    built = build_experiment(SimulateOptions(**flags, policy="stock"))
    return replace(built, seeds=(seed,), window=HALVES[half])


def tried(policy: str) -> list[str]:
    """The runs of ``policy`` on the earlier half."""
    sized = [f"{policy}@max_num_batched_tokens={size}" for size in SIZES]
    return [policy, *sized, budget_of(policy)]


def budget_of(policy: str) -> str:
    return ("fcfs" if policy == "stock" else policy) + BUDGET


def best_of(rows: Sequence[Row], names: Sequence[str], default: str) -> str:
    """The best of ``names``: by attainment, then tokens per second; without targets by latency."""
    of_name = {name: [row for row in rows if row["policy"] == name] for name in names}
    if not all(row["slo_attainment"] for found in of_name.values() for row in found):
        return min(names, key=lambda name: np.mean([float(row["normalized_latency_ms"]) for row in of_name[name]]))
    scores = {
        name: Score(*(tuple(float(row[figure]) for row in found) for figure in ("slo_attainment", "output_throughput")))
        for name, found in of_name.items()
    }
    return ranked(scores, default)[0]


def judged(earlier: Sequence[Row]) -> list[str]:
    """The rivals on the later half: stock, each policy at its best static size, and with the step budget."""
    best = [best_of(earlier, tried(policy)[:-1], policy) for policy in POLICIES]
    return list(dict.fromkeys(["stock", *best, *map(budget_of, POLICIES)]))


def rival_of(earlier: Sequence[Row], names: Sequence[str]) -> str:
    """The best of ``names``: by attainment; of those within half a point by tokens per second; of those within 1 % by
    latency. Without targets by latency alone.
    """
    figure = {
        name: {f: np.mean([float(r[f] or "nan") for r in earlier if r["policy"] == name]) for f in FIGURES}
        for name in names
    }
    if not np.isnan(figure[names[0]]["slo_attainment"]):
        top = max(figure[name]["slo_attainment"] for name in names)
        names = [name for name in names if figure[name]["slo_attainment"] >= top - 0.005]
        most = max(figure[name]["output_throughput"] for name in names)
        names = [name for name in names if figure[name]["output_throughput"] >= 0.99 * most]
    return min(names, key=lambda name: figure[name]["normalized_latency_ms"])


def contenders(rows: Sequence[Row]) -> list[str]:
    """Rivals of a cell that further seeds are run of: stock, the cell's, and those that may dominate auto, since their
    first seed is in no figure worse than auto's.
    """
    later = {row["policy"]: row for row in rows if row["half"] == "later" and int(row["seed"]) == 0}
    rivals = [name for name in later if name not in AUTOS]
    found = [STOCK, rival_of([row for row in rows if row["half"] == "earlier"], rivals)]
    for name in rivals if AUTO in later else ():
        ours, theirs = ({f: float(later[n][f] or "nan") for f in FIGURES} for n in (AUTO, name))
        more = all(not theirs[f] < ours[f] for f in ("slo_attainment", "qoe_mean", "output_throughput"))
        if more and not theirs["normalized_latency_ms"] > ours["normalized_latency_ms"]:
            found.append(name)
    return list(dict.fromkeys(found))


def run(ours: Experiment, names: Sequence[str], points: Sequence[Point], **labels: Any) -> Iterator[Row]:
    """Raises: ConfigError."""
    for one in run_experiment(replace(ours, policies=tuple(names)), points=points):
        point = one.point
        record = one.record()
        row = {**labels, "seed": point.seed, "rps": repr(point.rps), "policy": one.policy}
        yield row | {name: "" if record[name] is None else f"{record[name]:.6g}" for name in FIGURES}


def jobs(cells: dict[int, AutoCell], seeds: int) -> Iterator[tuple[int, str, int]]:
    """Cell, half, seed; see the module's text."""
    order = [list(cells)[i] for i in np.random.default_rng(0).permutation(len(cells))]
    for number in order:
        yield number, "earlier", 0
        yield number, "later", 0
    for is_light in (False, True):
        for seed in range(1, seeds):
            yield from ((number, "later", seed) for number in order if (cells[number].load == "0.7") == is_light)


def main() -> None:
    parser = parser_for(__doc__, seeds=3, workloads=",".join(WORKLOADS))
    parser.add_argument("--list", action="store_true", help="write the list of cells, and nothing else")
    parser.add_argument("--pass", dest="which", choices=("rivals", "contenders", "auto"), default="rivals")
    parser.add_argument("--raw", type=Path, default=Path("raw.csv"), help="runs, read and added to")
    args = parser.parse_args()
    if args.list:
        with LIST.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([("cell", *AutoCell._fields), *((i, *cell) for i, cell in enumerate(design()))])
        return
    cells, rows = read_cells(), read_rows(args.raw)
    for number, half, seed in jobs(cells, args.seeds):
        if cells[number].workload not in args.workloads.split(","):
            continue
        of_cell = [row for row in rows if int(row["cell"]) == number]
        of_job = [row for row in of_cell if row["half"] == half and int(row["seed"]) == seed]
        ran = {row["policy"] for row in of_job}
        if args.which == "rivals":
            earlier = [row for row in of_cell if row["half"] == "earlier"]
            names = [name for policy in POLICIES for name in tried(policy)] if half == "earlier" else judged(earlier)
        elif args.which == "contenders":
            names = contenders(of_cell) if half == "later" else []
        else:
            names = list(AUTOS) if half == "later" and of_job else []
        names = [name for name in names if name not in ran]
        if not names:
            continue
        began = time.process_time()
        with TemporaryDirectory() as folder:
            try:
                ours = experiment(cells[number], half, seed, Path(folder))
            except ConfigError as error:
                print(f"{number}, {', '.join(cells[number])}: left out: {error}", flush=True)
                continue
            known = [Point(seed, float(of_job[0]["rps"]), float(cells[number].load))] if of_job else None
            found = list(run(ours, names, known or measured_points(ours), cell=number, half=half))
        rows += found
        write_rows(args.raw, rows, COLUMNS)
        taken = time.process_time() - began
        print(
            f"{number}, {', '.join(cells[number])}, {half}, seed {seed}: {len(found)} runs, {taken:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
