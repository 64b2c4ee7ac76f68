"""The run of an experiment for a person: progress bar, table, and a folder with records, raw logs and plots."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from sloserve.core.progress_bar import progress
from sloserve.core.runlog import RunLog
from sloserve.sim.admissions import NONE
from sloserve.sim.experiment import MODEL, VLLM, Experiment, Point, run_experiment
from sloserve.sim.report.compare import TASK_METRICS, compare, load_unit
from sloserve.sim.report.experience import GOOD_QOE, replies_of
from sloserve.sim.report.latency_capacity import latency_capacity
from sloserve.sim.report.load_capacity import load_capacity
from sloserve.sim.report.logs import RESULT_JSON, LogWriter, Verdicts, with_versions
from sloserve.sim.report.promise_table import promise_table
from sloserve.sim.report.runs_csv import RUNS_CSV, write_runs
from sloserve.sim.report.summary import LatencySample, admission_record, latencies
from sloserve.sim.report.tables import capacity_table, class_latency_table, summary_table
from sloserve.sim.report.task_sample import TaskSample, task_sample
from sloserve.sim.report.task_table import task_table
from sloserve.sim.report.tenant_report import alone_s, tenant_record
from sloserve.sim.report.tenant_table import tenant_table
from sloserve.sim.result_file import vllm_version_of, write_experiment
from sloserve.sim.run_name import RunName
from sloserve.sim.tuning import Axes, Tuned, tuned_halves

_SCHEDULERS = {VLLM: "vLLM's scheduler", MODEL: "engine model"}
MIN_TABLE_WIDTH = 110
"""The least width of the table; a narrower one would lose columns, and a terminal wraps lines instead."""


def simulate(
    experiment: Experiment,
    out_dir: Path,
    *,
    token_log: bool = False,
    jobs: int = 1,
    console: Console | None = None,
    axes: Axes | None = None,
) -> list[dict[str, Any]]:
    """Run ``experiment`` and write its files to ``out_dir``; return the runs' records.

    The files are ``result.json``, ``runs.csv``, ``requests.csv``, ``tokens.csv.gz`` (with ``token_log``) and the plots.
    Records are the results of :func:`~sloserve.sim.report.summary.summarize`. ``axes`` are engine flags that are first
    tuned for each run on the earlier half; then only the later half is run.
    """
    from sloserve.sim.report.plots import write_plots  # matplotlib: only where runs happen

    console = console or Console()
    console.width = max(console.width, MIN_TABLE_WIDTH)
    if experiment.workload.trace is not None:
        console.print(experiment.workload.description, soft_wrap=True, highlight=False)
    tuned: list[Tuned] = []
    if axes:
        with progress("tuning, requests", console) as bar:
            experiment, tuned = tuned_halves(experiment, axes, jobs=jobs, on_progress=bar.update)
        for one in tuned:
            console.print(_tuned_line(one), soft_wrap=True, highlight=False)
    runs: list[dict[str, Any]] = []
    samples: list[LatencySample] = []
    tasks: list[TaskSample] = []
    counters: list[dict[str, int]] = []
    unrestricted: dict[tuple[str, Point], RunLog] = {}
    with (
        LogWriter(out_dir, token_log=token_log, task_log=experiment.tasks is not None) as logs,
        progress("requests" if experiment.tasks is None else "tasks", console) as bar,
    ):
        for run in run_experiment(experiment, jobs=jobs, on_progress=bar.update):
            point = run.point
            name = RunName.parse(run.policy)
            if name.admission == NONE:
                unrestricted[run.policy, point] = run.log
            record = run.record() | admission_record(run.log, unrestricted.get((str(name.unrestricted), point)))
            chunk_tokens = name.engine_settings(experiment.engine).max_num_batched_tokens
            alone = partial(alone_s, latency=experiment.profile, chunk_tokens=chunk_tokens)
            record |= tenant_record(run.log, alone, experiment.tenant_weights)
            logs.add(run.log, policy=run.policy, seed=point.seed, rps=point.rps)
            runs.append(record)
            counters.append(dict(run.log.counters))
            axis = point.rps if point.load is None else point.load
            logged = run.log.requests
            if run.log.tasks is not None:
                tasks.append(task_sample(run.policy, axis, run.log.tasks))
            samples.append(LatencySample(run.policy, axis, latencies(logged), replies_of(logged, point.seed)))
    comparisons, by_latency = compare(runs), latency_capacity(runs)
    if experiment.tasks is not None:
        comparisons += compare(runs, metrics=TASK_METRICS)
    by_qoe = load_capacity(runs, "qoe_mean", GOOD_QOE)  # the system capacity of Andes, Sec. 6.1
    verdicts = Verdicts(comparisons=comparisons, qoe_capacity=by_qoe, latency_capacity=by_latency)
    write_experiment(experiment, out_dir, runs, verdicts, counters, tuned)
    write_runs(out_dir / RUNS_CSV, [run | {"counters": of_run} for run, of_run in zip(runs, counters, strict=True)])
    slos = experiment.slos or experiment.workload.slos
    title = f"{_title(experiment)}, targets of {slos.source}"
    about = with_versions(title, vllm_version_of(experiment.engine_kind))
    plots = write_plots(out_dir, runs, samples, about=about, tasks=tasks)
    console.print(summary_table(runs, comparisons, title=_title(experiment)))
    for line in _failed_plans(runs, counters):
        console.print(line, soft_wrap=True, highlight=False)
    tables = task_table(runs, comparisons), class_latency_table(runs), promise_table(runs), tenant_table(runs)
    for table in tables:
        if table is not None:
            console.print(table)
    unit = load_unit(runs)
    if by_qoe:
        console.print(capacity_table(by_qoe, f"mean QoE >= {by_qoe[0].threshold:g}", unit))
    if by_latency:
        level = f"normalised latency <= {by_latency[0].threshold:.3g} ms/token"
        console.print(capacity_table(by_latency, level, unit))
    for path in (out_dir / RESULT_JSON, out_dir / RUNS_CSV, *plots):
        console.print(f"wrote {path}", soft_wrap=True, highlight=False)
    return runs


def _failed_plans(runs: Sequence[Mapping[str, Any]], counters: Sequence[Mapping[str, int]]) -> list[str]:
    """Return a warning for each policy that failed in some plans: its figures are partly the figures of stock vLLM."""
    failed: dict[str, int] = {}
    for run, of_run in zip(runs, counters, strict=True):
        if errors := of_run.get("plan_errors", 0):
            failed[run["policy"]] = failed.get(run["policy"], 0) + errors
    return [
        f"WARNING: {policy} failed {errors} times; vLLM's own order held in these steps. The log has the traceback"
        for policy, errors in failed.items()
    ]


def _tuned_line(tuned: Tuned) -> str:
    best, default = tuned.tried[tuned.best], tuned.tried[tuned.name]
    text = f"tuned {tuned.name}: {best.mean_attainment:.1%} in time, {best.mean_throughput:.0f} tokens/s"
    if tuned.best == tuned.name:
        return f"{text}; none of {len(tuned.tried) - 1} others is better"
    others = f"{default.mean_attainment:.1%}, {default.mean_throughput:.0f} tokens/s without"
    return f"{text} as {tuned.best}; {others}"


def _title(experiment: Experiment) -> str:
    engine = experiment.engine
    ageing = f"ageing {experiment.aged_share:g}" if experiment.aged_share else "ageing off"
    drafts = engine.drafts
    drafted = "" if drafts is None else f"{drafts.num_tokens} drafts accepted at {drafts.acceptance:g}, "
    offered = f"{experiment.max_requests} {'requests' if experiment.tasks is None else 'tasks'}"
    seeds = f"{len(experiment.seeds)} seed{'s' * (len(experiment.seeds) > 1)}"
    return (
        f"{experiment.workload.name} on {experiment.profile.title}, {seeds} of "
        f"{offered}, {engine.kv_blocks} KV blocks of {engine.block_size}, "
        f"max_num_seqs {engine.max_num_seqs}, {drafted}{ageing}, {_SCHEDULERS[experiment.engine_kind]}"
    )
