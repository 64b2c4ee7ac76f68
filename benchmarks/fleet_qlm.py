"""What do QLM's virtual queues gain over simple dispatchers, as load, latency-sensitive and tail requests grow?

QLM's workload W_A on configs/fleet.yaml, in virtual time, with stock's scheduler in every engine. Writes
results/fleet-qlm/: runs.csv and table.txt. ``--seconds`` shortens the runs.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sloserve.fleet.file import read_fleet
from sloserve.report.load_capacity import load_capacity
from sloserve.report.runs_csv import write_runs
from sloserve.report.statistics import mean_interval
from sloserve.sim.fleet.experiment import FleetExperiment, FleetResult, run_one
from sloserve.sim.fleet.simulate import IN_TIME, record
from sloserve.workloads.multi_model import FleetWorkload

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "fleet-qlm"
DISPATCHERS = ("on-demand", "collate:max_wait_s=10/stock", "edf/stock", "qlm/stock")
SEEDS = (0, 1, 2)
SECONDS = 60.0
RPS = (20.0, 40.0, 60.0, 80.0)
RPS_OF_SHARES = 40.0
LATENCY_SHARES = (0.1, 0.6)
TAIL_SHARES = (0.05, 0.5)
KEPT = (
    "slo_attainment",
    "slo_attainment_by_class",
    "request_throughput",
    "swaps",
    "cold_swaps",
    "swapping_share",
    "draining_share",
    "evicted_on_switch",
    "lost",
)


def points() -> Iterator[tuple[str, float, str, float]]:
    """Axis, its value, the workload and the rate."""
    for rps in RPS:
        yield "rps", rps, "w-a", rps
    for share in LATENCY_SHARES:
        yield "latency_share", share, f"w-a:latency_share={share}", RPS_OF_SHARES
    for share in TAIL_SHARES:
        yield "tail_share", share, f"w-a:tail_share={share}", RPS_OF_SHARES


def runs(seconds: float) -> Iterator[dict[str, Any]]:
    """Every run's record; the dispatchers see the same requests."""
    fleet = read_fleet(ROOT / "configs" / "fleet.yaml")
    for axis, value, workload, rps in points():
        experiment = FleetExperiment(
            fleet, FleetWorkload.parse(workload), DISPATCHERS, (rps,), SEEDS, max_requests=int(rps * seconds)
        )
        for seed in SEEDS:
            for name in DISPATCHERS:
                made = record(FleetResult(name, seed, rps, run_one(experiment, name, seed, rps)))
                yield {
                    "policy": name,
                    "rps": rps,
                    "seed": seed,
                    "axis": axis,
                    "value": value,
                    **{key: made[key] for key in KEPT},
                }
                print(f"{axis} {value:g}, seed {seed}, {name}: {made['slo_attainment']:.1%}", flush=True)


def table(found: list[dict[str, Any]]) -> str:
    """Attainment of all and of the latency-sensitive class, in percent, by point and dispatcher; then throughput."""
    lines = [f"{'':24}" + "".join(f"{name.removesuffix('/stock'):>24}" for name in DISPATCHERS)]
    for axis, value in dict.fromkeys((run["axis"], run["value"]) for run in found):
        cells = []
        for name in DISPATCHERS:
            of = [run for run in found if (run["axis"], run["value"], run["policy"]) == (axis, value, name)]
            mean = mean_interval([100.0 * run["slo_attainment"] for run in of])
            urgent = mean_interval([100.0 * run["slo_attainment_by_class"]["interactive"] for run in of])
            swaps = sum(run["swaps"] for run in of) / len(of)
            assert mean is not None and urgent is not None
            cells.append(f"{mean.value:5.1f} ({urgent.value:5.1f}) {swaps:5.1f} sw")
        lines.append(f"{axis + ' ' + format(value, 'g'):24}" + "".join(f"{cell:>24}" for cell in cells))
    ladder = [run for run in found if run["axis"] == "rps"]
    for capacity in load_capacity(ladder, "slo_attainment", IN_TIME, baseline=DISPATCHERS[0]):
        shown = "none" if capacity.load is None else f"{capacity.load.bound} {capacity.load.value:.1f}"
        lines.append(f"requests/s with {IN_TIME:.0%} in time, {capacity.policy}: {shown}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs, prints and writes everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of arrivals in each run")
    arguments = parser.parse_args()
    found = list(runs(arguments.seconds))
    text = table(found)
    print(text)
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_runs(RESULTS / "runs.csv", found)
    (RESULTS / "table.txt").write_text(text)


if __name__ == "__main__":
    main()
