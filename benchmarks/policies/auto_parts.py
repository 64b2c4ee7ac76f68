"""What is each part of `auto` worth, and how much hangs on its constants and on what it is told?

Six cells of auto_cells.py that were fixed before the first run, later halves, at the rates that ``--raw`` has of them.
Each variant is compared with auto in pairs of cell and seed. Sections:

- ablation: auto without one of its parts;
- sensitivity: each constant at half and at twice its value, and wrong or costly knowledge;
- swap: two cells with scarce KV, with and without swap space;
- long: two cells without targets where small static steps have less latency, over five times the requests;
- engines: the headline cells on vLLM's own scheduler and on the engine model, ``--engine vllm`` and ``model``;
- groups: auto inside the request groups of QLM, in two cells of fleet_qlm.py.

Writes rows to ``--out``/runs.csv.gz and table.txt; runs that are there already are not made again.

    python -m benchmarks.policies.auto_parts --section ablation --raw raw.csv [--cpu-minutes 8]
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.fleet.cells import run as run_fleet
from benchmarks.fleet.fleet_qlm import ONE_MODEL, SHORTER
from benchmarks.policies.auto_cells import AUTO, AUTOS, AutoCell, Row, experiment, read_cells, rival_of, run
from benchmarks.policies.auto_report import ATTAINMENT, LATENCY, PREEMPTIONS, QOE, TOKENS, runs_of, short, shown
from benchmarks.policies.step_sizes import BUDGET, FIGURES
from benchmarks.publish import RESULTS, RUNS, markdown, read_rows, write_rows, write_table
from benchmarks.scaled_profile import scaled_profile
from sloserve.scheduler.auto import constants
from sloserve.sim.experiment import ENGINE_KINDS, MODEL, Point
from sloserve.sim.report.statistics import mean_interval

CELLS = (7, 21, 26, 29, 31, 40)
SCARCE = (21, 29)
HEADLINE = (2, 7, 21, 24, 26, 29, 31, 40)
LONG = (15, 39)
REQUESTS, MANY_REQUESTS = 150, 1000


@dataclass(frozen=True)
class Variant:
    """flags: of ``build_experiment``. constants: values of auto's constants, by name. known_times: what the server
    believes a step to take, in step times of the engine; learnt from the steps where it is 0.
    """

    policy: str = AUTO
    flags: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    known_times: float = 0.0


ABLATION = {
    "auto": Variant(),
    "no preemption": Variant("auto:preempt=false"),
    "no step budget": Variant("auto:step_budget=false"),
    "no hysteresis": Variant("auto:hysteresis=0"),
    "mean occupancy alone (sigmas 0)": Variant("auto:sigmas=0"),
    "classes weigh alike": Variant(constants={"class_weight": 1.0}),
    "lengths: all requests alike": Variant("auto:length=empirical"),
    "lengths: mean and deviation": Variant("auto:length=gaussian"),
    "lengths: known (a ceiling)": Variant("auto:length=oracle"),
}
SENSITIVITY = {
    "auto": Variant(),
    **{
        f"{name.replace('_', ' ')} {factor * value:g} (default {value:g})": Variant(constants={name: factor * value})
        for name, value in asdict(constants.CONSTANTS).items()
        for factor in (0.5, 2.0)
    },
    **{f"hysteresis {x:g}": Variant(f"auto:hysteresis={x:g}") for x in (0.125, 0.5)},
    **{f"sigmas {x:g}": Variant(f"auto:sigmas={x:g}") for x in (0.5, 2)},
    **{f"max_preemptions {x:g}": Variant(f"auto:max_preemptions={x:g}") for x in (1, 4)},
    **{f"reserve {x:g}": Variant(f"auto:reserve={x:g}") for x in (0.005, 0.02)},
    **{f"a profile of {x:g} times the step times": Variant(known_times=x) for x in (0.7, 1.0, 1.3)},
    "lengths known, error 30 %": Variant("auto:length=oracle:length_error=0.3"),
    "step noise 20 %": Variant(flags={"step_noise": 0.2}),
    "planning costs 4 times": Variant(flags={"plan_cost": 4.0}),
    "no ageing": Variant(flags={"aged_share": 0.0}),
}


@contextmanager
def patched(values: Mapping[str, float]) -> Iterator[None]:
    """The constants of auto at other values."""
    before = constants.CONSTANTS
    try:
        constants.CONSTANTS = replace(before, **values)
        yield
    finally:
        constants.CONSTANTS = before


@dataclass(frozen=True)
class CellGrid:
    """The cells, and the runs of them that the rates and the rivals come from."""

    cells: Mapping[int, AutoCell]
    raw: Sequence[Row]

    def point(self, number: int, seed: int) -> Point:
        rows = [r for r in self.raw if int(r["cell"]) == number and r["half"] == "later" and int(r["seed"]) == seed]
        return Point(seed, float(rows[0]["rps"]), float(self.cells[number].load))

    def rival(self, number: int) -> str:
        earlier = [r for r in self.raw if int(r["cell"]) == number and r["half"] == "earlier"]
        return rival_of(earlier, [name for name in runs_of(self.raw, number) if name not in AUTOS])

    def run(self, number: int, seed: int, variant: Variant, **labels: Any) -> Row:
        cell, flags = self.cells[number], {"max_requests": REQUESTS} | dict(variant.flags)
        with TemporaryDirectory() as folder, patched(variant.constants):
            if variant.known_times:
                flags["known_profile"] = str(scaled_profile(cell.profile, variant.known_times, Path(folder)))
            ours = experiment(cell, "later", seed, Path(folder), **flags)
            (row,) = run(ours, [variant.policy], [self.point(number, seed)], **labels)
        return row


Task = tuple[dict[str, Any], Any]
"""What names a row, and what makes its figures."""


def tasks(section: str, grid: CellGrid, seeds: int, engine: str) -> Iterator[Task]:
    """All of a section, those of one seed after those of another."""
    for seed in range(seeds):
        if section in ("ablation", "sensitivity"):
            for name, variant in (ABLATION if section == "ablation" else SENSITIVITY).items():
                for cell in CELLS:
                    yield _task(section, name, grid, cell, seed, variant)
        elif section == "swap":
            for cell in SCARCE:
                for policy in (AUTO, "edf" + BUDGET, "econo" + BUDGET):
                    for space in (0.0, _cache_gib(grid, cell)):
                        name = f"{short(policy)}, {'swap space' if space else 'none'}"
                        yield _task(section, name, grid, cell, seed, Variant(policy, {"swap_space_gib": space}))
        elif section == "long":
            for cell in LONG:
                for policy in (
                    AUTO,
                    *(f"{p}@max_num_batched_tokens=512" for p in (AUTO, "sjf", "econo")),
                    "sjf",
                    "stock",
                ):
                    yield _task(
                        section, short(policy), grid, cell, seed, Variant(policy, {"max_requests": MANY_REQUESTS})
                    )
        elif section == "engines":
            for cell in HEADLINE:
                for policy in dict.fromkeys((AUTO, grid.rival(cell), "stock")):
                    name = AUTO if policy == AUTO else "stock" if policy == "stock" else "rival"
                    yield _task(section, f"{name} ({engine})", grid, cell, seed, Variant(policy, {"engine": engine}))
        else:
            for place, cell in enumerate((replace(SHORTER, seconds=60.0), replace(ONE_MODEL, rps=22.0, seconds=60.0))):
                for policy in ("stock", "fcfs" + BUDGET, "edf" + BUDGET, AUTO):
                    labels = {"section": section, "variant": f"qlm/{short(policy)}", "cell": place, "seed": seed}
                    yield labels, lambda c=cell, p=policy, s=seed: _fleet_row(run_fleet(c, f"qlm/{p}", s))


def _task(section: str, name: str, grid: CellGrid, cell: int, seed: int, variant: Variant) -> Task:
    labels = {"section": section, "variant": name, "cell": cell, "seed": seed}
    return labels, lambda: grid.run(cell, seed, variant)


def _cache_gib(grid: CellGrid, cell: int) -> float:
    """A swap space as large as the KV cache of the cell."""
    with TemporaryDirectory() as folder:
        ours = experiment(grid.cells[cell], "later", 0, Path(folder))
    tokens = ours.engine.kv_blocks * ours.engine.block_size
    return round(tokens * ours.profile.kv_bytes_per_token / 2**30, 3)


def _fleet_row(row: Row) -> Row:
    return {ATTAINMENT: row["in_time"], QOE: row["interactive"], TOKENS: row["served_per_s"]}


COLUMNS = ("section", "variant", "cell", "seed", *FIGURES)


def figures(rows: Sequence[Row], section: str, variant: str) -> dict[tuple[int, int], dict[str, float]]:
    """By cell and seed."""
    return {
        (int(row["cell"]), int(row["seed"])): {name: float(row[name] or "nan") for name in FIGURES}
        for row in rows
        if row["section"] == section and row["variant"] == variant
    }


def _mean(values: Sequence[float]) -> float:
    kept = [value for value in values if not np.isnan(value)]
    return float(np.mean(kept)) if kept else float("nan")


def table_of_variants(rows: Sequence[Row], section: str) -> list[str]:
    """Each variant beside auto."""
    head = "variant", "attainment, %", "less auto's, points", "worst cell", "QoE", "latency, %", "tokens/s, x auto"
    table = [[*head, "preemptions", "runs"]]
    ours = figures(rows, section, AUTO)
    for variant in dict.fromkeys(row["variant"] for row in rows if row["section"] == section):
        found = figures(rows, section, variant)
        both = [key for key in found if key in ours]
        less = [100 * (found[key][ATTAINMENT] - ours[key][ATTAINMENT]) for key in both]
        cells = {cell: np.mean([d for d, key in zip(less, both, strict=True) if key[0] == cell]) for cell, _ in both}
        latency = [100 * (found[key][LATENCY] / ours[key][LATENCY] - 1) for key in both]
        tokens = [found[key][TOKENS] / ours[key][TOKENS] for key in both]
        attainment, qoe, preemptions = (_mean([f[n] for f in found.values()]) for n in (ATTAINMENT, QOE, PREEMPTIONS))
        less_autos = shown(mean_interval([d for d in less if not np.isnan(d)]), 1)
        row = [variant, f"{100 * attainment:.1f}", less_autos, f"{min(cells.values(), default=0.0):+.1f}", f"{qoe:.3f}"]
        table.append([*row, f"{_mean(latency):+.1f}", f"{_mean(tokens):.3f}", f"{preemptions:.2f}", str(len(found))])
    return [f"{section}: attainment and latency less auto's", "", *markdown(table), ""]


def table_by_cell(rows: Sequence[Row], section: str, cells: Mapping[int, str]) -> list[str]:
    """Means of each variant in each cell: in time in %, QoE, latency, tokens/s, preemptions."""
    of = [row for row in rows if row["section"] == section]
    variants = list(dict.fromkeys(row["variant"] for row in of))
    table = [["cell", *variants]]
    for cell in dict.fromkeys(int(row["cell"]) for row in of):
        shown_all = []
        for variant in variants:
            found = [f for (c, _), f in figures(rows, section, variant).items() if c == cell]
            m = {name: _mean([f[name] for f in found]) for name in FIGURES}
            parts = (
                (100 * m[ATTAINMENT], ".1f"),
                (m[QOE], ".2f"),
                (m[LATENCY], ".1f"),
                (m[TOKENS], ".0f"),
                (m[PREEMPTIONS], ".2f"),
            )
            shown_all.append(", ".join("-" if np.isnan(v) else f"{v:{spec}}" for v, spec in parts))
        table.append([cells[cell], *shown_all])
    return [f"{section}: % in time, QoE, ms a token, tokens/s, preemptions a request", "", *markdown(table), ""]


def table_of_groups(rows: Sequence[Row]) -> list[str]:
    """Means with their intervals, in two cells."""
    head = "groups: order inside the groups of qlm; % in time, latency-sensitive % in time, requests served a second"
    table = [["order", "8 models on 2 instances, 20 req/s", "one model on 2 instances, 22 req/s"]]
    for variant in dict.fromkeys(row["variant"] for row in rows if row["section"] == "groups"):
        found = figures(rows, "groups", variant)
        columns = []
        for place in (0, 1):
            of = [f for (cell, _), f in found.items() if cell == place]
            columns.append(
                f"{100 * _mean([f[ATTAINMENT] for f in of]):.1f}, {100 * _mean([f[QOE] for f in of]):.1f}, "
                f"{_mean([f[TOKENS] for f in of]):.2f}"
            )
        table.append([variant, *columns])
    return [head, "", *markdown(table), ""]


def table(rows: Sequence[Row], cells: Mapping[int, AutoCell]) -> str:
    names = {number: f"{number}: {', '.join(cell)}" for number, cell in cells.items()}
    there = {row["section"] for row in rows}
    lines: list[str] = []
    for section in ("ablation", "sensitivity"):
        lines += table_of_variants(rows, section) if section in there else []
    for section in ("swap", "long", "engines"):
        lines += table_by_cell(rows, section, names) if section in there else []
    return "\n".join(lines + (table_of_groups(rows) if "groups" in there else []))


def main() -> None:
    parser = parser_for(__doc__, seeds=2, out=RESULTS / "auto-parts")
    parser.add_argument("--section", choices=("ablation", "sensitivity", "swap", "long", "engines", "groups", "table"))
    parser.add_argument("--raw", type=Path, default=Path("raw.csv"), help="runs of auto_cells.py")
    parser.add_argument("--engine", choices=ENGINE_KINDS, default=MODEL)
    parser.add_argument("--cpu-minutes", type=float, default=15.0, help="begin no further run after these")
    args = parser.parse_args()
    path, grid = args.out / RUNS, CellGrid(read_cells(), read_rows(args.raw))
    rows = read_rows(path)
    key = lambda row: tuple(str(row[name]) for name in COLUMNS[:4])  # noqa: E731
    done = {key(row) for row in rows}
    for labels, make in tasks(args.section, grid, args.seeds, args.engine) if args.section != "table" else ():
        if time.process_time() > 60.0 * args.cpu_minutes:
            print("stopped: no CPU time left")
            break
        if key(labels) not in done:
            found = make()
            rows.append(dict.fromkeys(FIGURES, "") | {n: found[n] for n in FIGURES if n in found} | labels)
            write_rows(path, rows, COLUMNS)
            print(*labels.values(), *(rows[-1][n] for n in FIGURES), f"{time.process_time():.0f} s", flush=True)
    write_table(args.out, table(rows, grid.cells))


if __name__ == "__main__":
    main()
