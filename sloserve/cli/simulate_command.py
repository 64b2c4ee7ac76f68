"""``sloserve simulate``, and what it can be asked to: ``workloads``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sloserve.cli.root import app


@app.command()
def simulate(
    workload: Annotated[str | None, typer.Option(help="A named workload; `sloserve workloads` lists them.")] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="A trace to replay: CSV, Azure's CSV or Mooncake's JSONL, optionally gzipped; a path, or the name "
            "of a file in the folder SLOSERVE_DATA."
        ),
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(help="A named set of these flags; `sloserve workloads` lists them. Flags override it.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Engine profile, shipped name or path. Default: h100-llama3-8b.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policies, comma-separated; stock is vLLM's own scheduler. Engine flags for one policy follow "
            "after @: edf@max_num_batched_tokens=1024:max_num_seqs=128, edf@swap_space_gib=16:link_gb_per_s=3. "
            "Default: stock,edf."
        ),
    ] = None,
    admission: Annotated[
        str | None,
        typer.Option(
            help="Admissions, comma-separated; each is combined with every policy: none, cap:max_waiting=64, "
            "predict:min_chance=0.5, vllm:max_num_queued_tokens=16000, vllm:max_num_queued_reqs=64. Default: none."
        ),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            help="SLO file (classes, their targets, which requests are in which class), or one of default, "
            "reading, voice, scaled:prompt_ms=50:token_ms=24 (e2e target in proportion to the reply)."
        ),
    ] = None,
    rps: Annotated[str | None, typer.Option(help="Offered requests per second, comma-separated.")] = None,
    rate_scale: Annotated[float | None, typer.Option(help="Offered load as a multiple of the workload's rate.")] = None,
    load: Annotated[
        str | None, typer.Option(help="Offered load as multiples of stock's measured capacity, e.g. 0.7,1.5.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds (for window of the trace, classes, draws). Default: 3.")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(
            help="Part of the workload that seeds draw from: 0:0.5 is the earlier half of a trace's requests; for "
            "a generator, draws that 0.5:1 does not have. Default: all."
        ),
    ] = None,
    max_requests: Annotated[int | None, typer.Option(help="Requests per run. Default: 1000.")] = None,
    kv_blocks: Annotated[int | None, typer.Option(help="Number of KV blocks. Default: the profile's.")] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Most requests that run at once. Default: the profile's.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Most tokens per step. Default: the profile's.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest prompt and reply together, in tokens. Default: the profile's.")
    ] = None,
    swap_space_gib: Annotated[
        float | None,
        typer.Option(
            help="GiB of host memory for the KV of preempted requests, which is then not computed again. Default: "
            "none. Stock has no swap space; fcfs is its order with swap space."
        ),
    ] = None,
    link_gb_per_s: Annotated[
        float | None,
        typer.Option(help="Rate of the link to the host in each direction, in 1e9 bytes/s. Default: the profile's."),
    ] = None,
    swapping: Annotated[
        str | None,
        typer.Option(
            help="Which preempted requests are copied: cost: those whose recomputation takes more engine time; "
            "always: all. Default: cost."
        ),
    ] = None,
    aged_share: Annotated[
        float | None,
        typer.Option(help="Share of admissions for aged requests, 0 for none. Default: 0.1, as on a server."),
    ] = None,
    plan_cost: Annotated[
        float | None,
        typer.Option(
            help="Engine time charged for planning, as a multiple of what was measured; 0 charges nothing. Default: 1."
        ),
    ] = None,
    step_noise: Annotated[
        float | None,
        typer.Option(
            help="Random variation of step times: 0.1 is 10 % around the profile's, and one step in a thousand "
            "takes five times as long. Default: none."
        ),
    ] = None,
    known_profile: Annotated[
        str | None,
        typer.Option(
            help="Profile that policies know, as from the server's settings; --profile is what steps really take. "
            "Default: none, step times are learnt from the steps."
        ),
    ] = None,
    length_model: Annotated[
        Path | None, typer.Option(help="File of `sloserve train-length`, used by policies with length=predicted.")
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            help="An engine flag and the values to try, max_num_batched_tokens=512,1024,2048; may be repeated. "
            "Each policy is tuned on the earlier half of the window, and judged on the later half with and without "
            "the result."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="vllm: vLLM's real scheduler. model: a model of it, many times as fast, which needs no vLLM. "
            "Default: vllm."
        ),
    ] = None,
    fleet: Annotated[
        Path | None,
        typer.Option(
            help="File of a fleet, several models on several instances (docs/fleet.md). --workload is then w-a, "
            "w-b or w-c, as w-a:latency_share=0.2:tail_share=0.1. --policy names dispatchers: static, on-demand, "
            "collate, edf, qlm; the engines' policy follows after a slash, collate:max_wait_s=20/edf. --engine is "
            "then model by default."
        ),
    ] = None,
    swap_cost: Annotated[
        float | None,
        typer.Option(help="With --fleet: time of model swaps as a multiple of the profiles' times. Default: 1."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Number of processes; results do not depend on it.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for records, logs and plots.")] = Path("out"),
    token_log: Annotated[bool, typer.Option("--token-log", help="Also write tokens.csv.gz.")] = False,
) -> None:
    """Compare policies on a workload, in virtual time, with vLLM's real scheduler or a model of it.

    Stock (vLLM's AsyncScheduler) and every policy get the same requests and run through the same loop. Without --rps,
    --rate-scale or --load a trace is replayed at its recorded rate, and a named workload at 0.7, 1, 1.5 and 2 times
    stock's capacity. See docs/simulate.md.
    """
    from sloserve.core.errors import ConfigError
    from sloserve.vllm_plugin.versions import require_vllm

    if engine != "model" and (fleet is None or engine is not None):
        require_vllm()

    from sloserve.sim.experiments import experiment_flags
    from sloserve.sim.simulate import build_experiment
    from sloserve.sim.simulate import simulate as run
    from sloserve.sim.tuning import parse_axes

    flags = {
        "workload": workload,
        "trace": trace,
        "profile": profile,
        "policy": policy,
        "admission": admission,
        "slo": slo,
        "rps": rps,
        "rate_scale": rate_scale,
        "load": load,
        "seeds": seeds,
        "window": window,
        "max_requests": max_requests,
        "kv_blocks": kv_blocks,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": max_model_len,
        "swap_space_gib": swap_space_gib,
        "link_gb_per_s": link_gb_per_s,
        "swapping": swapping,
        "aged_share": aged_share,
        "plan_cost": plan_cost,
        "step_noise": step_noise,
        "known_profile": known_profile,
        "length_model": length_model,
        "engine": engine,
        "swap_cost": swap_cost,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    if fleet is not None:
        _simulate_fleet(fleet, given, other=bool(experiment or tune), out=out, token_log=token_log, jobs=jobs)
        return
    if swap_cost is not None:
        raise ConfigError("--swap-cost goes with --fleet; a single engine swaps no models")
    row = experiment_flags(experiment) if experiment is not None else {}
    for alternatives in (("workload", "trace"), ("rps", "rate_scale", "load")):
        if any(name in given for name in alternatives):
            row = {name: value for name, value in row.items() if name not in alternatives}
    axes = parse_axes(tune or ())
    run(build_experiment(**(row | given)), out, token_log=token_log, jobs=jobs, axes=axes)


def _simulate_fleet(fleet: Path, given: dict[str, Any], *, other: bool, out: Path, token_log: bool, jobs: int) -> None:
    from sloserve.core.errors import ConfigError
    from sloserve.sim.fleet.simulate import build_fleet_experiment, simulate_fleet

    allowed = ("workload", "policy", "rps", "seeds", "max_requests", "engine", "swap_cost")
    wrong = [f"--{name.replace('_', '-')}" for name in given if name not in allowed]
    if wrong or other:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in allowed)
        raise ConfigError(f"--fleet goes with {names} alone, not with {', '.join(wrong) or '--experiment or --tune'}")
    simulate_fleet(build_fleet_experiment(fleet, **given), out, token_log=token_log, jobs=jobs)


@app.command()
def workloads() -> None:
    """List the named workloads, the named experiments and the shipped profiles."""
    from sloserve.estimator.step_time.profile import profile_names
    from sloserve.sim.experiments import EXPERIMENTS
    from sloserve.workloads.multi_model import KINDS
    from sloserve.workloads.registry import WORKLOADS

    width = max(map(len, [*WORKLOADS, *EXPERIMENTS]))
    for item in WORKLOADS.values():
        print(f"workload    {item.name:<{width}}  {item.description}")
    for name, description in KINDS.items():
        print(f"of a fleet  {name:<{width}}  {description}")
    for name, row in EXPERIMENTS.items():
        print(f"experiment  {name:<{width}}  {row.question}")
    for name in profile_names():
        print(f"profile     {name}")
