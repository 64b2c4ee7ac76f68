"""``sloserve advise``."""

from pathlib import Path
from typing import Annotated

import typer

from sloserve.cli.root import app


@app.command()
def advise(
    workload: Annotated[str | None, typer.Option(help="A named workload; `sloserve workloads` lists them.")] = None,
    trace: Annotated[Path | None, typer.Option(help="A trace of your traffic, as for `sloserve simulate`.")] = None,
    profile: Annotated[
        str, typer.Option(help="Engine profile, shipped name or path; `sloserve profile` measures yours.")
    ] = "h100-llama3-8b",
    slo: Annotated[
        str | None,
        typer.Option(
            help="SLO file (classes, targets, which requests are in which class), as for `sloserve simulate`."
        ),
    ] = None,
    rps: Annotated[str | None, typer.Option(help="Load in requests per second, comma-separated.")] = None,
    rate_scale: Annotated[
        float | None, typer.Option(help="Load as a multiple of the workload's rate. Default: 1, if no load is given.")
    ] = None,
    load: Annotated[
        str | None, typer.Option(help="Load as multiples of stock's measured capacity, e.g. 0.8,1.2.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Policies to try, comma-separated. Default: edf, sjf, andes, econo, and step_budget=true."),
    ] = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(help="A vLLM flag and the values to try, max_num_seqs=64,128; may be repeated."),
    ] = None,
    admission: Annotated[
        str | None,
        typer.Option(
            help="Admissions to try, comma-separated; vllm:... for stock, none for no admission. Default: several "
            "of each."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds (for window of the trace, classes, draws), at least 3.")
    ] = 5,
    max_requests: Annotated[int, typer.Option(help="Requests per run.")] = 500,
    budget: Annotated[
        int, typer.Option(help="Most runs of the search. Each load, seed and combination is one run.")
    ] = 300,
    window: Annotated[str | None, typer.Option(help="Part of the workload to use, 0:0.5 for the earlier half.")] = None,
    kv_blocks: Annotated[int | None, typer.Option(help="Number of KV blocks. Default: the profile's.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Your current vLLM flag. Default: the profile's.")] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Your current vLLM flag. Default: the profile's.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest prompt and reply together, in tokens. Default: the profile's.")
    ] = None,
    step_noise: Annotated[
        float, typer.Option(help="Random variation of step times, as for `sloserve simulate`.")
    ] = 0.1,
    length_model: Annotated[Path | None, typer.Option(help="File of `sloserve train-length`.")] = None,
    confirm: Annotated[
        bool, typer.Option(help="Run the advised settings, and those they beat, once on vLLM's own scheduler.")
    ] = True,
    jobs: Annotated[int, typer.Option(help="Number of processes; the advice does not depend on it.")] = 1,
    out: Annotated[Path, typer.Option(help="Settings file to write, for `sloserve serve --slo-config`.")] = Path(
        "advice.yaml"
    ),
) -> None:
    """Recommend policy, engine flags and admission for a workload, and write them as settings.

    Combinations are tried on the earlier half of the workload, in a fast model of vLLM's scheduler. The best one is
    compared with stock vLLM at stock's best flags on the later half, and advised only if it is better there. See
    docs/advise.md.
    """
    from sloserve.sim.advising import advise as run
    from sloserve.sim.advising import space_for
    from sloserve.sim.simulate import build_experiment, listed
    from sloserve.sim.tuning import parse_axes

    if confirm:
        from sloserve.vllm_plugin.versions import require_vllm

        require_vllm()
    if load is None and rps is None and rate_scale is None:
        rate_scale = 1.0
    experiment = build_experiment(
        workload=workload,
        trace=trace,
        profile=profile,
        policy="stock",
        slo=slo,
        rps=rps,
        rate_scale=rate_scale,
        load=load,
        seeds=seeds,
        max_requests=max_requests,
        window=window,
        kv_blocks=kv_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        step_noise=step_noise,
        length_model=length_model,
        engine="model",
    )
    space = space_for(
        experiment,
        budget,
        policies=None if policy is None else listed(policy),
        axes=parse_axes(tune) if tune else None,
        admissions=None if admission is None else listed(admission),
    )
    run(experiment, space, out, confirm=confirm, jobs=jobs)
