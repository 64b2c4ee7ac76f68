"""Runs an experiment on a fleet for a person: progress, table, and a folder with records, logs, timeline and plots."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sloserve.core.errors import ConfigError
from sloserve.core.progress_bar import progress
from sloserve.core.spans import Phase, PhaseSpan
from sloserve.fleet.file import read_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.simulated.fleet_experiment import FleetExperiment, FleetResult, run_fleet_experiment
from sloserve.sim.build_experiment import listed, numbers
from sloserve.sim.experiment import VLLM
from sloserve.sim.experiment_options import FleetOptions
from sloserve.sim.report.compare import REQUESTS, compare
from sloserve.sim.report.load_capacity import LoadCapacity, load_capacity
from sloserve.sim.report.logs import RESULT_JSON, LogWriter, with_versions, write_result
from sloserve.sim.report.runs_csv import RUNS_CSV, write_runs
from sloserve.sim.report.summary import LatencySample, latencies, summarize
from sloserve.sim.report.tables import capacity_table, class_latency_table, summary_table
from sloserve.sim.result_file import vllm_version_of
from sloserve.sim.simulation import MIN_TABLE_WIDTH
from sloserve.sim.workloads.multi_model import FleetWorkload

IN_TIME = 0.9
"""Share of requests that must meet their SLO: throughput is the highest rate with this share (QLM, Sec. 8)."""


def build_fleet_experiment(fleet: Path, options: FleetOptions) -> FleetExperiment:
    """Return the experiment that the options describe. Raises: ConfigError."""
    if not 0.0 <= options.swap_cost < math.inf:
        raise ConfigError(f"--swap-cost: {options.swap_cost} is not a number >= 0")
    if options.rps is None:
        raise ConfigError("--fleet: give --rps, requests per second of the whole fleet, such as 10,20,40")
    return FleetExperiment(
        fleet=replace(read_fleet(fleet), swap_cost=options.swap_cost),
        workload=FleetWorkload.parse(options.workload),
        runs=tuple(listed(options.policy)),
        rps=numbers("--rps", options.rps) or (),
        seeds=tuple(range(options.seeds)),
        max_requests=options.max_requests,
        engine_kind=options.engine,
    )


def simulate_file(
    fleet: Path, options: FleetOptions, out_dir: Path, *, token_log: bool, jobs: int, console: Console
) -> None:
    """Simulate the fleet of a file, as ``sloserve simulate --fleet`` does. Raises: ConfigError."""
    simulate_fleet(build_fleet_experiment(fleet, options), out_dir, token_log=token_log, jobs=jobs, console=console)


def simulate_fleet(
    experiment: FleetExperiment,
    out_dir: Path,
    *,
    token_log: bool = False,
    jobs: int = 1,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Run ``experiment``, write its results to ``out_dir``, and return the runs' records.

    The results are ``result.json``, ``runs.csv``, ``requests.csv``, ``tokens.csv.gz`` (with ``token_log``),
    ``timeline.png`` and the plots.
    """
    from sloserve.sim.report.fleet_timeline import write_timeline  # matplotlib: only where runs happen
    from sloserve.sim.report.plots import write_plots

    console = console or Console()
    console.width = max(console.width, MIN_TABLE_WIDTH)
    for line in assumptions(experiment.fleet):
        console.print(line, soft_wrap=True, highlight=False)
    runs: list[dict[str, Any]] = []
    samples: list[LatencySample] = []
    shown: dict[str, Sequence[PhaseSpan]] = {}
    shown_rps = sorted(experiment.rps)[len(experiment.rps) // 2]
    with LogWriter(out_dir, token_log=token_log) as logs, progress("requests", console) as bar:
        for result in run_fleet_experiment(experiment, jobs=jobs, on_progress=bar.update):
            runs.append(record(result))
            logs.add(result.log.run, policy=result.name, seed=result.seed, rps=result.rps)
            samples.append(LatencySample(result.name, result.rps, latencies(result.log.run.requests)))
            if (result.seed, result.rps) == (experiment.seeds[0], shown_rps):
                shown[result.name] = result.log.spans
    baseline = experiment.runs[0]
    comparisons = compare(runs, baseline)
    carried = load_capacity(runs, "slo_attainment", IN_TIME, baseline=baseline)
    _write(experiment, out_dir, runs, carried)
    write_runs(out_dir / RUNS_CSV, runs)
    about = with_versions(_title(experiment), vllm_version_of(experiment.engine_kind))
    plots = write_plots(out_dir, runs, samples, about=about, baseline=baseline)
    plots.append(write_timeline(out_dir, shown, f"{shown_rps:g} req/s, seed {experiment.seeds[0]}", about))
    console.print(summary_table(runs, comparisons, title=_title(experiment)))
    by_class = class_latency_table(runs)
    if by_class is not None:
        console.print(by_class)
    console.print(swap_table(runs))
    if carried:
        console.print(capacity_table(carried, f"{IN_TIME:.0%} of requests in time", REQUESTS))
    for path in (out_dir / RESULT_JSON, out_dir / RUNS_CSV, *plots):
        console.print(f"wrote {path}", soft_wrap=True, highlight=False)
    return runs


def record(result: FleetResult) -> dict[str, Any]:
    """Return the record of one run: :func:`~sloserve.sim.report.summary.summarize`, and the use of the instances."""
    log = result.log
    run = summarize(log.run, policy=result.name, seed=result.seed, rps=result.rps)
    in_all_s = sum(span.end_s - span.start_s for span in log.spans) or 1.0
    spent = {phase: sum(s.end_s - s.start_s for s in log.spans if s.phase is phase) for phase in Phase}
    swaps = [span for span in log.spans if span.phase is Phase.SWITCHING]
    return run | {
        "swaps": len(swaps),
        "cold_swaps": sum(not span.warm for span in swaps),
        "swapping_share": spent[Phase.SWITCHING] / in_all_s,
        "draining_share": spent[Phase.DRAINING] / in_all_s,
        "refused": sum(r.outcome == "rejected" for r in log.run.requests),
        "evicted_on_switch": log.run.counters.get("evicted_on_switch", 0),
    }


def assumptions(fleet: Fleet) -> list[str]:
    """Return what was not measured about the fleet: derived profiles, and its swaps with what is taken instead."""
    profiles = {one.name: one for model in fleet.models.values() for one in model.profiles.values()}
    lines = [f"step times of profile {one.title}" for _, one in sorted(profiles.items()) if one.marker]
    lines += dict.fromkeys(line for swap in fleet.swaps().values() for line in swap.assumed)
    return lines if fleet.swap_cost == 1.0 else [*lines, f"all times of swaps are multiplied by {fleet.swap_cost:g}"]


def swap_table(runs: Sequence[dict[str, Any]]) -> Table:
    """Return a table of what switching took, as means over seeds."""
    table = Table(title="switches, means over seeds", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("req/s", justify="right")
    table.add_column("policy", overflow="fold")
    columns = {
        "swaps": ("swaps", "{:.1f}"),
        "cold_swaps": ("from disk", "{:.1f}"),
        "swapping_share": ("swapping %", "{:.1%}"),
        "draining_share": ("draining %", "{:.1%}"),
        "evicted_on_switch": ("evicted", "{:.1f}"),
        "refused": ("refused", "{:.1f}"),
        "lost": ("lost", "{:.1f}"),
    }
    for heading, _ in columns.values():
        table.add_column(heading, justify="right")
    for rps, policy in dict.fromkeys((run["rps"], run["policy"]) for run in runs):
        cell = [run for run in runs if (run["rps"], run["policy"]) == (rps, policy)]
        means = [form.format(sum(run[key] for run in cell) / len(cell)) for key, (_, form) in columns.items()]
        table.add_row(f"{rps:g}", policy, *means)
    return table


def _title(experiment: FleetExperiment) -> str:
    fleet = experiment.fleet
    engine = "vLLM's scheduler" if experiment.engine_kind == VLLM else "engine model"
    seeds = f"{len(experiment.seeds)} seed{'s' * (len(experiment.seeds) > 1)}"
    return (
        f"{experiment.workload.name}: {len(fleet.models)} models on {len(fleet.instances)} instances, "
        f"{seeds} of {experiment.max_requests} requests, {engine}"
    )


def _write(
    experiment: FleetExperiment, out_dir: Path, runs: list[dict[str, Any]], carried: Sequence[LoadCapacity]
) -> None:
    fleet, workload = experiment.fleet, experiment.workload
    write_result(
        out_dir / RESULT_JSON,
        runs,
        vllm_version=vllm_version_of(experiment.engine_kind),
        profile=", ".join(sorted({p.name for model in fleet.models.values() for p in model.profiles.values()})),
        workload={
            "name": workload.name,
            "latency_share": workload.latency_share,
            "tail_share": workload.tail_share,
            "mega_share": workload.mega_share,
            "cv": workload.cv,
            "rounds": workload.rounds,
            "requests": experiment.max_requests,
        },
        settings={
            "fleet": Path(fleet.source).name,
            "models": list(fleet.models),
            "instances": [name for name, _ in fleet.instances],
            "engine": experiment.engine_kind,
            "switching": fleet.switching.model_dump(),
            "swap_cost": fleet.swap_cost,
            "engine_policy": experiment.default_policy,
            "baseline": experiment.runs[0],
            "assumed": assumptions(fleet),
            "load_in_time": [c.as_dict() for c in carried],
        },
    )
