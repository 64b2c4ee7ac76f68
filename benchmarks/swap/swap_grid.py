"""Computing preempted requests again, or swapping their KV: what is each worth, where, and to which policy?

A cell is a workload on a profile at 1.5 times stock's capacity, with the KV cache scarce enough that requests are
preempted. Every policy computes again, swaps always, and swaps by cost, with a pool of 0.5, 1 and 4 times the KV cache,
over the profile's link and a tenth of it. Runs go through the engine model; ``--engine vllm`` runs the headline cells,
which three seeds are for, on vLLM's scheduler.

Writes to the folder ``--out``: runs.csv.gz, one row a run, and table.txt. A run that runs.csv.gz has already is not
made again. Traces are looked for in the folder that SLOSERVE_DATA names; without it their cells are left out.

    python -m benchmarks.swap.swap_grid [--cells reading-a100] [--grid coarse] [--seeds 1] [--max-requests 300]
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, RUNS, read_rows, write_rows, write_table
from benchmarks.traces import AZURE_CODE, AZURE_CONV, MOONCAKE
from sloserve.core.errors import ConfigError
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import ENGINE_KINDS, MODEL, Experiment, Point, measured_points, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.run_name import STOCK

A100: dict[str, Any] = {"profile": "a100-opt-13b", "max_model_len": 8192}
"""Four times OPT's context: its prompts would not fit. The KV cache is the profile's, 45 GiB."""
H100: dict[str, Any] = {"profile": "h100-llama3-8b", "kv_blocks": 3000}
"""A ninth of what fits beside the weights, 5.9 GiB, so that KV is scarce."""
CELLS: dict[str, dict[str, Any]] = {
    "azure-conv-a100": A100 | {"trace": AZURE_CONV},
    "azure-conv-h100": H100 | {"trace": AZURE_CONV},
    "azure-code-a100": A100 | {"trace": AZURE_CODE},
    "azure-code-h100": H100 | {"trace": AZURE_CODE},
    "sharegpt-a100": A100 | {"workload": "sharegpt-poisson"},
    "sharegpt-h100": H100 | {"workload": "sharegpt-poisson"},
    "reading-a100": A100 | {"workload": "reading-speed"},
    "reading-h100": H100 | {"workload": "reading-speed"},
    "multiround-a100": A100 | {"workload": "multiround"},
    "multiround-h100": H100 | {"workload": "multiround"},
    "bookcorpus-a100": A100 | {"workload": "bookcorpus-poisson"},
    "bookcorpus-h100": H100 | {"workload": "bookcorpus-poisson"},
    # Its prompts of up to 90,000 tokens fit neither OPT nor a scarce cache.
    "mooncake-h100": {"profile": "h100-llama3-8b", "trace": MOONCAKE},
}
POLICIES = {
    "fcfs": "fcfs",
    "edf": "edf",
    "sjf": "sjf",
    "andes": "andes",
    "econo": "econo",
    "andes-paper": "andes-parts:victims=gain:urgent_s=1000:headroom=0",
    "econo-paper": "econo-paper",
}
"""The last two are nearest to what their papers describe."""
HEADLINE = (
    ("reading-a100", "fcfs"), ("reading-a100", "andes"), ("reading-a100", "andes-paper"), ("sharegpt-a100", "econo"),
    ("azure-conv-h100", "edf"), ("azure-conv-h100", "andes"), ("multiround-a100", "edf"), ("multiround-a100", "fcfs"),
)  # fmt: skip
POOLS, LINKS = (0.5, 1.0, 4.0), (1.0, 0.1)
RECOMPUTE, ALWAYS, COST = "recompute", "always", "cost"
FIGURES = (
    "output_throughput", "slo_attainment", "qoe_mean", "preemptions_per_request", "recomputed_tokens_per_request",
    "swaps_per_request_p99", "swap_bytes_per_output_token", "swap_pool_peak_gib", "p99_e2el_ms",
)  # fmt: skip
KEYS = ("cell", "policy", "how", "pool", "link", "seed", "engine")
LOAD = "1.5"

Row = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """What becomes of a preempted request's KV. pool: in KV caches. link: in parts of the profile's."""

    how: str
    pool: float = 0.0
    link: float = 1.0

    def name(self, policy: str, experiment: Experiment) -> str:
        """The run's."""
        if self.how == RECOMPUTE:
            return policy
        profile, engine = experiment.profile, experiment.engine
        gib = self.pool * engine.kv_blocks * engine.block_size * profile.kv_bytes_per_token / 2**30
        link = self.link * profile.link_bandwidth_gb_per_s
        return f"{policy}@swap_space_gib={gib:.3f}:link_gb_per_s={link:g}:swapping={self.how}"


def ways(grid: str) -> list[Way]:
    """Coarse: one pool and one link."""
    pools, links = (POOLS, LINKS) if grid == "full" else ((1.0,), (1.0,))
    return [Way(RECOMPUTE), *(Way(how, pool, link) for how in (ALWAYS, COST) for pool in pools for link in links)]


def experiment_of(cell: str, max_requests: int, seeds: int, engine: str) -> Experiment:
    flags = dict(CELLS[cell]) | {"max_requests": max_requests, "seeds": seeds, "load": LOAD, "policy": STOCK}
    found = build_experiment(SimulateOptions(**flags, engine=engine))
    # Every cell without shared prefixes: what a prefix cache keeps is not computed again, whatever is swapped.
    return (
        replace(found, engine=replace(found.engine, enable_prefix_caching=False)) if cell != "mooncake-h100" else found
    )


def runs(cell: str, tasks: Sequence[tuple[str, Way]], experiment: Experiment, points: Sequence[Point]) -> Iterator[Row]:
    """policy and way of each run, stock's first."""
    names = {way.name(POLICIES.get(policy, policy), experiment): (policy, way) for policy, way in tasks}
    for run in run_experiment(replace(experiment, policies=tuple(names)), points=points):
        policy, way = names[run.policy]
        record = run.record()
        keys = (cell, policy, way.how, way.pool, way.link, run.point.seed, experiment.engine_kind)
        yield dict(zip(KEYS, keys, strict=True)) | {name: record.get(name) for name in FIGURES}


def main() -> None:
    parser = parser_for(
        __doc__,
        cells=",".join(CELLS),
        policies=",".join(POLICIES),
        seeds=1,
        max_requests=300,
        out=RESULTS / "swap-grid",
    )
    parser.add_argument("--grid", choices=("coarse", "full"), default="full")
    parser.add_argument("--headline", action="store_true", help="the headline cells alone")
    parser.add_argument("--engine", choices=ENGINE_KINDS, default=MODEL)
    parser.add_argument("--cpu-minutes", type=float, default=40.0, help="begin no further cell after these")
    args = parser.parse_args()
    path = args.out / RUNS
    rows = read(path)
    began_s = time.process_time()
    for cell in args.cells.split(","):
        if time.process_time() - began_s > 60.0 * args.cpu_minutes:
            break
        policies = [p for p in args.policies.split(",") if not args.headline or (cell, p) in HEADLINE]
        grid = ways(args.grid)
        try:
            experiment = experiment_of(cell, args.max_requests, args.seeds, args.engine)
        except ConfigError as error:
            print(f"{cell} is left out: {error}")
            continue
        wanted = [(STOCK, Way(RECOMPUTE)), *((policy, way) for policy in policies for way in grid)]
        done = {tuple(row[key] for key in KEYS) for row in rows}
        for seed in range(args.seeds) if len(wanted) > 1 else ():
            tasks = [(p, w) for p, w in wanted if key_of(cell, p, w, seed, args.engine) not in done]
            if not tasks:
                continue
            one = replace(experiment, seeds=(seed,))
            # Capacity is the model's on both engines, so that both are offered the same.
            points = measured_points(replace(one, engine_kind=MODEL))
            for row in runs(cell, tasks, one, points):
                rows.append(row)
                print({k: v if isinstance(v, str) else round(v or 0, 3) for k, v in row.items()}, flush=True)
            write(path, rows)
    write(path, rows)
    write_table(args.out, table_of(rows))
    print(f"{(time.process_time() - began_s) / 60.0:.1f} CPU minutes")


def key_of(cell: str, policy: str, way: Way, seed: int, engine: str) -> tuple[str, ...]:
    return tuple(str(value) for value in (cell, policy, way.how, way.pool, way.link, seed, engine))


def read(path: Path) -> list[Row]:
    return [{k: v if k in KEYS else float(v) if v else None for k, v in row.items()} for row in read_rows(path)]


def write(path: Path, rows: Sequence[Row]) -> None:
    short = [{k: f"{v:.6g}" if isinstance(v, float) and k in FIGURES else v for k, v in row.items()} for row in rows]
    write_rows(path, short, (*KEYS, *FIGURES))


def mean(rows: Sequence[Row], figure: str) -> float | None:
    found = [float(row[figure]) for row in rows if row[figure] is not None]
    return float(np.mean(found)) if found else None


def table_of(rows: Sequence[Row]) -> str:
    """A row per cell, policy and way: means over seeds, tokens/s in parts of stock's."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in (
        "cell",
        "policy",
        "engine",
        "KV of preempted",
        "tok/s",
        "of stock's",
        "SLO %",
        "QoE",
        "preempt/req",
    ):
        table.add_column(
            heading, justify="left" if heading in ("cell", "policy", "engine", "KV of preempted") else "right"
        )
    for heading in ("again tok/req", "swaps p99", "moved KB/tok", "pool GiB"):
        table.add_column(heading, justify="right")
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[key]) for key in KEYS if key != "seed"), []).append(row)
    for (cell, policy, how, pool, link, engine), found in groups.items():
        stock = groups.get((cell, STOCK, RECOMPUTE, "0.0", "1.0", engine), [])
        seeds = {row["seed"] for row in found}
        base = mean([row for row in stock if row["seed"] in seeds], "output_throughput")
        tokens = mean(found, "output_throughput") or 0.0
        way = how if how == RECOMPUTE else f"{how}, pool {float(pool):g}x, link {float(link):g}x"
        cells = [f"{tokens:.0f}", f"{tokens / base:.3f}" if base else "-"]
        for figure, scale, digits in (
            ("slo_attainment", 100.0, 1), ("qoe_mean", 1.0, 3), ("preemptions_per_request", 1.0, 2),
            ("recomputed_tokens_per_request", 1.0, 0), ("swaps_per_request_p99", 1.0, 0),
            ("swap_bytes_per_output_token", 1e-3, 1), ("swap_pool_peak_gib", 1.0, 1),
        ):  # fmt: skip
            value = mean(found, figure)
            cells.append("-" if value is None else f"{value * scale:.{digits}f}")
        table.add_row(cell, policy, engine, way, *cells)
    console = Console(width=170, record=True, file=StringIO())
    console.print(table)
    return console.export_text()


if __name__ == "__main__":
    main()
