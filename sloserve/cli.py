"""The ``sloserve`` command: composition root, the one place that turns flags into objects.

Heavy libraries are imported by the command that needs them, so that ``--help`` and a mistyped policy answer at once.
"""

import inspect
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import sloserve
from sloserve.core.errors import ConfigError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main() -> None:
    """Entry point: each of an operator's mistakes ends with one line on stderr, and all with exit status 2."""
    try:
        app()
    except ConfigError as error:
        for line in str(error).splitlines():
            print(f"sloserve: {line}", file=sys.stderr)
        sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"sloserve {sloserve.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Per-request service level objectives for vLLM."""


PolicyFlag = Annotated[
    str | None,
    typer.Option("--policy", help="Scheduling policy, as name or name:option=value; fcfs if not given."),
]
ShadowPolicyFlag = Annotated[
    str | None,
    typer.Option("--shadow-policy", help="A policy whose plans are scored in metrics and never carried out."),
]
AdmissionFlag = Annotated[
    str | None,
    typer.Option(
        "--admission",
        help="none; cap: 429 once --max-waiting of a class wait; predict: also for targets that will be missed. "
        "Default: none.",
    ),
]
MaxWaitingFlag = Annotated[
    int | None, typer.Option("--max-waiting", help="Requests of one class that may wait under cap and predict.")
]
MinChanceFlag = Annotated[
    float | None,
    typer.Option("--min-chance", help="Least chance to meet its targets with which predict lets a request in."),
]


@app.command(context_settings={"ignore_unknown_options": True})
def serve(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL [VLLM_FLAG]", help="Model and flags exactly as for `vllm serve`.", show_default=False
        ),
    ] = None,
    policy: PolicyFlag = None,
    shadow_policy: ShadowPolicyFlag = None,
    slo_config: Annotated[
        Path | None, typer.Option(help="YAML file of settings, see configs/serve.yaml; flags win over it.")
    ] = None,
    admission: AdmissionFlag = None,
    max_waiting: MaxWaitingFlag = None,
    min_chance: MinChanceFlag = None,
    admin_key: Annotated[
        str | None,
        typer.Option(help="Turns the admin routes on, for who shows this key. Better in env SLOSERVE_ADMIN_KEY."),
    ] = None,
) -> None:
    """Serve MODEL with vLLM's OpenAI server under an SLO-aware policy.

    Every flag of `vllm serve` is accepted and passed on; the host is 127.0.0.1 unless --host says otherwise. MODEL may
    be builtin:tiny, a model made on the spot. Requests state their SLO in headers x-slo-*, in the field `slo`, in
    `service_tier`, or in `vllm_xargs`. `sloserve policies` lists the policies, `sloserve check-config` checks a file.
    """
    from sloserve import config
    from sloserve.vllm_plugin import server

    flags = {
        "policy": policy,
        "shadow_policy": shadow_policy,
        "admission": admission,
        "max_waiting": max_waiting,
        "min_chance": min_chance,
    }
    sources = config.read_sources(slo_config, flags)
    config.settle(sources)  # what is wrong already need not wait for vLLM, which takes a while to load
    key = config.read_admin_key(admin_key, os.environ)
    args = server.prepare(arguments or [])
    effective = config.settle(sources, args.additional_config)
    admin = ("admin routes", "on" if key else "off", key.source if key else config.DEFAULT)
    print(f"sloserve {sloserve.__version__} settings\n{config.table([*effective.rows(), admin])}", flush=True)
    server.run(args, effective.section, key.value if key else None)


@app.command("check-config")
def check_config(
    file: Annotated[Path, typer.Argument(help="The YAML file that --slo-config is to name.", show_default=False)],
    policy: PolicyFlag = None,
    shadow_policy: ShadowPolicyFlag = None,
    admission: AdmissionFlag = None,
    max_waiting: MaxWaitingFlag = None,
    min_chance: MinChanceFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Settings and origins, or the mistakes, as JSON.")] = False,
) -> None:
    """Say everything that is wrong with FILE, or print the settings that follow from it; start nothing.

    Ends with status 0 if `sloserve serve --slo-config FILE` would take it, together with the flags given, else with 2.
    """
    from sloserve import config

    flags = {
        "policy": policy,
        "shadow_policy": shadow_policy,
        "admission": admission,
        "max_waiting": max_waiting,
        "min_chance": min_chance,
    }
    try:
        effective = config.settle(config.read_sources(file, flags))
    except ConfigError as error:
        if not as_json:
            raise
        print(json.dumps({"errors": str(error).splitlines()}, indent=2))
        raise typer.Exit(2) from None
    print(json.dumps(effective.as_json(), indent=2) if as_json else config.table(effective.rows()))


@app.command()
def simulate(
    workload: Annotated[str | None, typer.Option(help="A named workload; `sloserve workloads` lists them.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="A trace to replay: CSV, Azure's CSV or Mooncake's JSONL; may be gzipped.")
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(help="A named set of these flags; `sloserve workloads` lists them. Flags given win.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Engine profile, shipped name or path; h100-llama3-8b if not given.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Policies, comma-separated; stock is vLLM's own scheduler. Default: stock,edf."),
    ] = None,
    admission: Annotated[
        str | None,
        typer.Option(
            help="Admissions, comma-separated, each for every policy: none, cap:max_waiting=64, "
            "predict:min_chance=0.5, vllm:max_num_queued_tokens=16000 or max_num_queued_reqs. Default: none."
        ),
    ] = None,
    slo: Annotated[Path | None, typer.Option(help="SLO file: classes, their targets and who gets which.")] = None,
    rps: Annotated[str | None, typer.Option(help="Offered requests per second, comma-separated.")] = None,
    rate_scale: Annotated[float | None, typer.Option(help="Offered load in multiples of the workload's rate.")] = None,
    load: Annotated[
        str | None, typer.Option(help="Offered load in multiples of stock's measured capacity, e.g. 0.7,1.5.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds (window of the trace, classes, draws); 3 if not given.")
    ] = None,
    max_requests: Annotated[int | None, typer.Option(help="Requests a run; 1000 if not given.")] = None,
    kv_blocks: Annotated[int | None, typer.Option(help="KV blocks; the profile's if not given.")] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Requests that may run at once; the profile's if not given.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens a step may compute; the profile's if not given.")
    ] = None,
    aged_share: Annotated[
        float | None, typer.Option(help="Share of admissions for aged requests; off if not given.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes to run in; results do not depend on it.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for result.json, requests.csv and the plots.")] = Path("out"),
    token_log: Annotated[bool, typer.Option("--token-log", help="Also write tokens.csv.gz.")] = False,
) -> None:
    """Replay a workload through vLLM's real scheduler in virtual time, under several policies.

    Stock (vLLM's AsyncScheduler) and every policy see the same requests and run through the same loop. Without --rps,
    --rate-scale or --load a trace is replayed at its recorded rate, and a named workload at 0.7, 1, 1.5 and 2 times
    stock's capacity.
    """
    from sloserve.sim.experiments import experiment_flags
    from sloserve.sim.simulate import build_experiment
    from sloserve.sim.simulate import simulate as run

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
        "max_requests": max_requests,
        "kv_blocks": kv_blocks,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "aged_share": aged_share,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    row = experiment_flags(experiment) if experiment is not None else {}
    for alternatives in (("workload", "trace"), ("rps", "rate_scale", "load")):
        if any(name in given for name in alternatives):
            row = {name: value for name, value in row.items() if name not in alternatives}
    run(build_experiment(**(row | given)), out, token_log=token_log, jobs=jobs)


@app.command()
def bench(
    url: Annotated[
        str, typer.Option(help="The endpoint, e.g. http://127.0.0.1:8000; name=URL names it in the tables.")
    ],
    workload: Annotated[str | None, typer.Option(help="A named workload; `sloserve workloads` lists them.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="A trace to replay: CSV, Azure's CSV or Mooncake's JSONL; may be gzipped.")
    ] = None,
    slo: Annotated[Path | None, typer.Option(help="SLO file: classes, their targets and who gets which.")] = None,
    rps: Annotated[str | None, typer.Option(help="Offered requests per second, comma-separated.")] = None,
    rate_scale: Annotated[float | None, typer.Option(help="Offered load in multiples of the workload's rate.")] = None,
    max_requests: Annotated[int, typer.Option(help="Requests a run.")] = 1000,
    seeds: Annotated[int, typer.Option(help="How many seeds (window of the trace, classes, draws, prompts).")] = 1,
    seed: Annotated[
        int, typer.Option(help="The first seed; another one finds nothing in a server's prefix cache.")
    ] = 0,
    compare: Annotated[
        str | None, typer.Option(help="A second endpoint: the same requests, the two in turn; see the difference.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask for; the endpoint's first if not given.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key of the endpoint.")] = None,
    endpoint: Annotated[str, typer.Option(help="completions or chat.")] = "completions",
    prompt: Annotated[
        str | None, typer.Option(help="tokens (exact lengths) or text (words, calibrated); text for chat.")
    ] = None,
    vocab_size: Annotated[int, typer.Option(help="Prompt tokens are drawn below this id.")] = 256,
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Longer prompts are cut to this.")] = None,
    max_output_tokens: Annotated[int | None, typer.Option(help="Longer replies are cut to this.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Replies have exactly the workload's length (vLLM).")] = True,
    continuous_usage: Annotated[bool, typer.Option(help="Ask for the count of tokens in each chunk (vLLM).")] = True,
    max_concurrency: Annotated[int | None, typer.Option(help="Requests under way at once; others wait here.")] = None,
    goodput: Annotated[
        list[str] | None, typer.Option(help="What is good, in ms, for all: --goodput ttft:500 tpot:50 e2el:2000.")
    ] = None,
    more_goodput: Annotated[list[str] | None, typer.Argument(hidden=True, metavar="[KEY:MS]")] = None,
    goodput_class: Annotated[
        list[str] | None, typer.Option(help="The same for a class: interactive=ttft:500,tpot:50; may be repeated.")
    ] = None,
    send_slo: Annotated[str, typer.Option(help="How the server learns of SLOs: xargs, headers or none.")] = "xargs",
    report: Annotated[bool, typer.Option("--report", help="Ask the server for its own verdicts, and compare.")] = False,
    warmup: Annotated[int, typer.Option(help="Requests sent before, not counted.")] = 0,
    ramp: Annotated[float, typer.Option(help="Seconds over which the rate rises from 0.")] = 0.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request is given up.")] = 600.0,
    out: Annotated[Path, typer.Option(help="Folder for result.json, requests.csv and the plots.")] = Path("out"),
    token_log: Annotated[bool, typer.Option("--token-log", help="Also write tokens.csv.gz.")] = False,
) -> None:
    """Replay a workload against an OpenAI endpoint and measure what its users get.

    The requests are those of `sloserve simulate`, and so are the table, the plots and the raw logs; beside them lies a
    JSON with the keys of `vllm bench serve`. Without --rps or --rate-scale the workload comes at its own rate. Latency
    counts from when a request was due. Nothing is retried: 429 and 503 are rejections; another 4xx stops the run.
    """
    from sloserve.bench.run import bench as run
    from sloserve.bench.settings import build_bench
    from sloserve.core.clock import SystemClock

    if more_goodput and not goodput:
        raise ConfigError(f"unexpected argument {more_goodput[0]!r}; only the keys of --goodput come without a flag")
    settings = build_bench(
        url=url,
        compare=compare,
        model=model,
        api_key=api_key,
        workload=workload,
        trace=trace,
        slo=slo,
        rps=rps,
        rate_scale=rate_scale,
        max_requests=max_requests,
        seeds=seeds,
        seed=seed,
        max_concurrency=max_concurrency,
        endpoint=endpoint,
        prompt=prompt,
        vocab_size=vocab_size,
        max_prompt_tokens=max_prompt_tokens,
        max_output_tokens=max_output_tokens,
        ignore_eos=ignore_eos,
        continuous_usage=continuous_usage,
        goodput=[*(goodput or ()), *(more_goodput or ())],
        goodput_class=goodput_class or (),
        send_slo=send_slo,
        report=report,
        warmup=warmup,
        ramp=ramp,
        timeout=timeout,
    )
    run(settings, out, SystemClock(), token_log=token_log)


@app.command("train-length")
def train_length(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA.jsonl",
            help="One request a line: output_tokens or output; prompt, prompt_tokens, max_tokens, task, arrival_s.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="File of the model.")] = Path("length-model.json"),
    text: Annotated[bool, typer.Option(help="Learn from the prompts' text, where the file has it.")] = True,
    seeds: Annotated[int, typer.Option(help="Random splits to report on.")] = 3,
    held_out: Annotated[float, typer.Option(help="Share of the requests kept apart in each split.")] = 0.2,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
) -> None:
    """Learn to predict output lengths from DATA.jsonl, and report how well on requests kept apart.

    The model is then trained on all of DATA. Its file holds numbers only; predicting needs nothing that training does.
    """
    from sloserve.estimator.length_report import train_and_report

    train_and_report(data, out, text=text, seeds=seeds, share=held_out, seed=seed)


@app.command(context_settings={"ignore_unknown_options": True})
def profile(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL [VLLM_FLAG]", help="Model and flags exactly as for `vllm serve`.", show_default=False
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The profile to write.")] = Path("profile.yaml"),
    raw: Annotated[
        Path | None, typer.Option(help="Raw measurements, which a run goes on with. Default: beside --out, .jsonl.")
    ] = None,
    grid: Annotated[str, typer.Option(help="full, or small: seconds, enough to try out, not to trust.")] = "full",
    repetitions: Annotated[int, typer.Option(help="How often each scenario is measured; medians count.")] = 3,
    max_context_tokens: Annotated[
        int, typer.Option(help="Most tokens of KV cache that a scenario fills; filling is what takes the time.")
    ] = 131_072,
    form: Annotated[str, typer.Option(help="Latency form: hinge, distserve or bilinear.")] = "hinge",
) -> None:
    """Measure MODEL's engine on this machine and write a profile for simulations and predictions.

    Steps of many sizes are timed on vLLM's real engine, in repetitions that go through the whole grid in turn, and a
    latency form is fitted to them; its error is measured on steps that the fit did not see. An interrupted run goes on
    where it stopped. MODEL may be builtin:tiny.
    """
    from sloserve.estimator.profiling import ProfileSettings
    from sloserve.vllm_plugin import server

    settings = ProfileSettings(grid, repetitions, form, max_context_tokens)
    # The worker in this process, so that loading can be timed; read when vLLM is imported.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    if "builtin:tiny" in (arguments or []):
        # Threads that wait for each other take longer than the tiny model does.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    args = server.prepare(arguments or [])

    from sloserve.vllm_plugin.profile_engine import profile_model

    profile_model(args, settings, out, raw or out.with_suffix(".jsonl"))


@app.command()
def workloads() -> None:
    """List the named workloads, the named experiments and the shipped profiles."""
    from sloserve.estimator.profile import profile_names
    from sloserve.sim.experiments import EXPERIMENTS
    from sloserve.sim.workloads import WORKLOADS

    width = max(map(len, [*WORKLOADS, *EXPERIMENTS]))
    for item in WORKLOADS.values():
        print(f"workload    {item.name:<{width}}  {item.description}")
    for name, row in EXPERIMENTS.items():
        print(f"experiment  {name:<{width}}  {row.question}")
    for name in profile_names():
        print(f"profile     {name}")


@app.command()
def policies() -> None:
    """List the installed policies."""
    from sloserve.scheduler.registry import make_policy, policy_names

    names = policy_names()
    width = max(map(len, names), default=0)
    for name in names:
        try:
            text = (inspect.getdoc(type(make_policy(name))) or "").partition("\n")[0]
        except ConfigError as error:  # a broken third-party package must not hide the others
            text = str(error)
        print(f"{name:<{width}}  {text}")


if __name__ == "__main__":
    main()
