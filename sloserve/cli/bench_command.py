"""``sloserve bench``."""

from pathlib import Path
from typing import Annotated

import typer

from sloserve.cli.root import app
from sloserve.core.errors import ConfigError


@app.command()
def bench(
    url: Annotated[
        str, typer.Option(help="The endpoint, e.g. http://127.0.0.1:8000; name=URL names it in the tables.")
    ],
    workload: Annotated[str | None, typer.Option(help="A named workload; `sloserve workloads` lists them.")] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="A trace to replay: CSV, Azure's CSV or Mooncake's JSONL, optionally gzipped; a path, or the name "
            "of a file in the folder SLOSERVE_DATA."
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
    max_requests: Annotated[int, typer.Option(help="Requests per run.")] = 1000,
    seeds: Annotated[int, typer.Option(help="Number of seeds (for window of the trace, classes, draws, prompts).")] = 1,
    seed: Annotated[
        int, typer.Option(help="The first seed; with a new one, prompts are not in the server's prefix cache.")
    ] = 0,
    compare: Annotated[
        str | None, typer.Option(help="A second endpoint: both get the same requests, in turn, and are compared.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model. Default: the endpoint's first.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="API key of the endpoint.")] = None,
    endpoint: Annotated[str, typer.Option(help="completions or chat.")] = "completions",
    prompt: Annotated[
        str | None, typer.Option(help="tokens (exact lengths) or text (words, calibrated); text for chat.")
    ] = None,
    vocab_size: Annotated[int, typer.Option(help="Prompt tokens are drawn below this id.")] = 256,
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Longer prompts are cut to this length.")] = None,
    max_output_tokens: Annotated[int | None, typer.Option(help="Longer replies are cut to this length.")] = None,
    ignore_eos: Annotated[bool, typer.Option(help="Replies have exactly the workload's length (vLLM).")] = True,
    continuous_usage: Annotated[bool, typer.Option(help="Ask for the count of tokens in each chunk (vLLM).")] = True,
    max_concurrency: Annotated[
        int | None, typer.Option(help="Most requests in flight; others wait in the client.")
    ] = None,
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            help="Targets of a good request, in ms, instead of its own: --goodput ttft:500 tpot:50 e2el:2000."
        ),
    ] = None,
    more_goodput: Annotated[list[str] | None, typer.Argument(hidden=True, metavar="[KEY:MS]")] = None,
    goodput_class: Annotated[
        list[str] | None, typer.Option(help="The same for a class: interactive=ttft:500,tpot:50; may be repeated.")
    ] = None,
    send_slo: Annotated[str, typer.Option(help="How the server learns of SLOs: xargs, headers or none.")] = "xargs",
    report: Annotated[
        bool,
        typer.Option(
            "--report", help="Ask the server for its reports, and compare them with the client's measurements."
        ),
    ] = False,
    warmup: Annotated[int, typer.Option(help="Requests that are sent first and not counted.")] = 0,
    ramp: Annotated[float, typer.Option(help="Seconds over which the rate rises from 0.")] = 0.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request is cancelled.")] = 600.0,
    out: Annotated[Path, typer.Option(help="Folder for result.json, requests.csv and the plots.")] = Path("out"),
    token_log: Annotated[bool, typer.Option("--token-log", help="Also write tokens.csv.gz.")] = False,
) -> None:
    """Send a workload to an OpenAI endpoint and measure latencies, attainment and goodput.

    Requests, table, plots and raw logs are those of `sloserve simulate`; a JSON file has the keys of `vllm bench
    serve`. Without --rps or --rate-scale the workload has its own rate. Latency counts from when a request was due.
    Nothing is retried: 429 and 503 count as rejections; another 4xx stops the run. See docs/bench.md.
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
