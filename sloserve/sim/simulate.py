"""Runs an experiment for a person: progress bar, table, and a folder with records, raw logs and plots."""

from pathlib import Path
from typing import Any, cast

from rich.console import Console

from sloserve.core.errors import ConfigError
from sloserve.core.progress import progress
from sloserve.core.runlog import RunLog
from sloserve.estimator.step_time.profile import Profile, load_profile
from sloserve.report.compare import compare
from sloserve.report.experience import replies_of
from sloserve.report.latency_capacity import latency_capacity
from sloserve.report.logs import LogWriter, Verdicts, write_result
from sloserve.report.qoe_capacity import qoe_capacity
from sloserve.report.runs_csv import RUNS_CSV, write_runs
from sloserve.report.summary import LatencySample, admission_record, latencies, summarize
from sloserve.report.tables import capacity_table, summary_table
from sloserve.sim.admissions import NONE
from sloserve.sim.experiment import DEFAULT_LOADS, MODEL, SHIPPED, VLLM, Experiment, Point, run_experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.model import MODELLED_VLLM
from sloserve.sim.run_name import STOCK, SWAP_OPTIONS, RunName, run_names
from sloserve.sim.tuning import Axes, Tuned, tuned_halves
from sloserve.virtual.engine_settings import EngineSettings, Swapping
from sloserve.vllm_plugin.versions import installed_vllm
from sloserve.workloads.named_slos import find_slos
from sloserve.workloads.registry import asked_workload
from sloserve.workloads.window import WHOLE, parse_window

RESULT_JSON = "result.json"
_SCHEDULERS = {VLLM: "vLLM's scheduler", MODEL: "engine model"}
MIN_TABLE_WIDTH = 110
"""Narrower, the table would lose columns; a terminal then wraps its lines instead."""


def simulate(
    experiment: Experiment,
    out_dir: Path,
    *,
    token_log: bool = False,
    jobs: int = 1,
    console: Console | None = None,
    axes: Axes | None = None,
) -> list[dict[str, Any]]:
    """Runs ``experiment`` and writes ``result.json``, ``runs.csv``, ``requests.csv``, ``tokens.csv.gz`` (token_log) and
    the plots to ``out_dir``.

    axes: engine flags that are first tuned for each run on the earlier half; then only the later half is run.

    Returns the runs' records (:func:`~sloserve.report.summary.summarize`).
    """
    from sloserve.report.plots import write_plots  # matplotlib: only where runs happen

    console = console or Console()
    console.width = max(console.width, MIN_TABLE_WIDTH)
    tuned: list[Tuned] = []
    if axes:
        with progress("tuning, requests", console) as bar:
            experiment, tuned = tuned_halves(experiment, axes, jobs=jobs, on_progress=bar.update)
        for one in tuned:
            console.print(_tuned_line(one), soft_wrap=True, highlight=False)
    runs: list[dict[str, Any]] = []
    samples: list[LatencySample] = []
    counters: list[dict[str, int]] = []
    unrestricted: dict[tuple[str, Point], RunLog] = {}
    with (
        LogWriter(out_dir, token_log=token_log) as logs,
        progress("requests", console) as bar,
    ):
        for run in run_experiment(experiment, jobs=jobs, on_progress=bar.update):
            point = run.point
            name = RunName.parse(run.policy)
            if name.admission == NONE:
                unrestricted[run.policy, point] = run.log
            record = summarize(run.log, policy=run.policy, seed=point.seed, rps=point.rps, load=point.load)
            record |= admission_record(run.log, unrestricted.get((str(name.unrestricted), point)))
            logs.add(run.log, policy=run.policy, seed=point.seed, rps=point.rps)
            runs.append(record)
            counters.append(dict(run.log.counters))
            axis = point.rps if point.load is None else point.load
            logged = run.log.requests
            samples.append(LatencySample(run.policy, axis, latencies(logged), replies_of(logged, point.seed)))
    comparisons, by_qoe, by_latency = compare(runs), qoe_capacity(runs), latency_capacity(runs)
    verdicts = Verdicts(comparisons=comparisons, qoe_capacity=by_qoe, latency_capacity=by_latency)
    _write(experiment, out_dir, runs, verdicts, counters, tuned)
    write_runs(out_dir / RUNS_CSV, [run | {"counters": of_run} for run, of_run in zip(runs, counters, strict=True)])
    plots = write_plots(out_dir, runs, samples)
    console.print(summary_table(runs, comparisons, title=_title(experiment)))
    in_capacity = experiment.loads is not None
    if by_qoe:
        console.print(capacity_table(by_qoe, f"mean QoE >= {by_qoe[0].threshold:g}", in_capacity=in_capacity))
    if by_latency:
        level = f"normalised latency <= {by_latency[0].threshold:.3g} ms/token"
        console.print(capacity_table(by_latency, level, in_capacity=in_capacity))
    for path in (out_dir / RESULT_JSON, out_dir / RUNS_CSV, *plots):
        console.print(f"wrote {path}", soft_wrap=True, highlight=False)
    return runs


def build_experiment(options: SimulateOptions) -> Experiment:
    """The experiment that the options describe.

    Raises: ConfigError for an option that contradicts another, or a value out of range.
    """
    aged_share = SHIPPED.aged_share if options.aged_share is None else options.aged_share
    if options.seeds < 1:
        raise ConfigError(f"--seeds: {options.seeds} is not a whole number >= 1")
    if options.max_requests < 1:
        raise ConfigError(f"--max-requests: {options.max_requests} is not a whole number >= 1")
    if not 0.0 <= aged_share <= 1.0:
        raise ConfigError(f"--aged-share: {aged_share} is not within 0..1")
    slos = find_slos(options.slo) if options.slo is not None else None
    source = asked_workload(options)
    load, rate_scale = options.load, options.rate_scale
    if load is None and options.rps is None and rate_scale is None:
        if options.trace is not None:
            rate_scale = 1.0
        else:
            load = ",".join(f"{x:g}" for x in DEFAULT_LOADS)
    profile = load_profile(options.profile)
    if options.known_profile is not None:
        load_profile(options.known_profile)  # an unknown one fails here
    return Experiment(
        workload=source,
        profile=profile,
        # Without ids every prompt is unique, and hashing it would only cost time.
        engine=_engine_settings(options, profile, prefix_caching=any(r.prefix_ids for r in source.requests(1, 0))),
        policies=run_names(listed(options.policy), listed(options.admission)),
        seeds=tuple(range(options.seeds)),
        max_requests=options.max_requests,
        loads=numbers("--load", load),
        rps=numbers("--rps", options.rps),
        rate_scale=rate_scale,
        slos=slos,
        window=WHOLE if options.window is None else parse_window(options.window),
        aged_share=aged_share,
        plan_cost=options.plan_cost,
        step_noise=options.step_noise,
        length_model=None if options.length_model is None else str(options.length_model),
        known_profile=options.known_profile,
        engine_kind=options.engine,
    )


def _engine_settings(options: SimulateOptions, profile: Profile, *, prefix_caching: bool) -> EngineSettings:
    """The profile's engine with what the options say otherwise; no prompt is longer than the KV cache."""
    sizes = {
        name: getattr(profile, name) if getattr(options, name) is None else getattr(options, name)
        for name in ("kv_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
    }
    context = sizes.pop("max_model_len")
    if context < 1:
        raise ConfigError(f"--max-model-len: {context} tokens is not at least 1")
    return EngineSettings(
        **sizes,
        block_size=profile.block_size,
        max_model_len=max(min(context, sizes["kv_blocks"] * profile.block_size), 1),
        swap_space_gib=options.swap_space_gib,
        link_gb_per_s=options.link_gb_per_s,
        swapping=cast(Swapping, options.swapping),  # refused there if it is another word
        enable_prefix_caching=prefix_caching,
    )


def _tuned_line(tuned: Tuned) -> str:
    best, default = tuned.tried[tuned.best], tuned.tried[tuned.name]
    text = f"tuned {tuned.name}: {best.mean_attainment:.1%} in time, {best.mean_throughput:.0f} tokens/s"
    if tuned.best == tuned.name:
        return f"{text}; none of {len(tuned.tried) - 1} others is better"
    others = f"{default.mean_attainment:.1%}, {default.mean_throughput:.0f} tokens/s without"
    return f"{text} as {tuned.best}; {others}"


def listed(text: str) -> list[str]:
    """The parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(flag: str, text: str | None) -> tuple[float, ...] | None:
    """The numbers of a comma-separated list. Raises: ConfigError."""
    if text is None:
        return None
    try:
        return tuple(float(x) for x in text.split(","))
    except ValueError:
        raise ConfigError(f"{flag}: {text!r} is not a comma-separated list of numbers") from None


def _title(experiment: Experiment) -> str:
    engine = experiment.engine
    ageing = f"ageing {experiment.aged_share:g}" if experiment.aged_share else "ageing off"
    return (
        f"{experiment.workload.name} on {experiment.profile.name}, {len(experiment.seeds)} seeds of "
        f"{experiment.max_requests} requests, {engine.kv_blocks} KV blocks of {engine.block_size}, "
        f"max_num_seqs {engine.max_num_seqs}, {ageing}, {_SCHEDULERS[experiment.engine_kind]}"
    )


def _swap_settings(engine: EngineSettings) -> dict[str, Any]:
    if not engine.swap_space_gib:
        return {}
    return {name: getattr(engine, name) for name in SWAP_OPTIONS}


def _write(
    experiment: Experiment,
    out_dir: Path,
    runs: list[dict[str, Any]],
    verdicts: Verdicts,
    counters: list[dict[str, int]],
    tuned: list[Tuned],
) -> None:
    engine, slos = experiment.engine, experiment.slos or experiment.workload.slos
    write_result(
        out_dir / RESULT_JSON,
        runs,
        vllm_version=str(installed_vllm()) if experiment.engine_kind == VLLM else MODELLED_VLLM,
        profile=experiment.profile.name,
        workload={
            "name": experiment.workload.name,
            "description": experiment.workload.description,
            "slos": slos.source,
            "window": str(experiment.window),
            "requests": experiment.max_requests,
        },
        settings={
            "engine": experiment.engine_kind,
            "kv_blocks": engine.kv_blocks,
            "block_size": engine.block_size,
            "max_num_seqs": engine.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "max_model_len": engine.max_model_len,
            "enable_prefix_caching": engine.enable_prefix_caching,
            **_swap_settings(engine),
            "aged_share": experiment.aged_share,
            "plan_cost": experiment.plan_cost,
            "step_noise": experiment.step_noise,
            "known_profile": experiment.known_profile,
            "baseline": STOCK,
            "tuned": {
                one.name: {"best": one.best, "tried": {name: score.as_dict() for name, score in one.tried.items()}}
                for one in tuned
            },
            "counters": [
                {"policy": run["policy"], "seed": run["seed"], "rps": run["rps"], **of_run}
                for run, of_run in zip(runs, counters, strict=True)
            ],
        },
        verdicts=verdicts,
    )
