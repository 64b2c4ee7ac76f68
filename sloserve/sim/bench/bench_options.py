"""The options of ``sloserve bench``: names, types, defaults and help.

Imports nothing that takes long, so that ``--help`` responds at once.
"""

from dataclasses import dataclass
from typing import Annotated

import typer

from sloserve.sim.workloads.tasks.task_options import TaskOptions
from sloserve.sim.workloads.traffic_options import TrafficOptions


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """The options that name the endpoints."""

    url: Annotated[str, typer.Option(help="The endpoint, e.g. http://127.0.0.1:8000; name=URL names it in the tables.")]
    compare: Annotated[
        str | None, typer.Option(help="A second endpoint: both get the same requests, in turn, and are compared.")
    ] = None
    model: Annotated[str | None, typer.Option(help="Name of the model. Default: the endpoint's first.")] = None
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="API key of the endpoint.")] = None


@dataclass(frozen=True, kw_only=True)
class BenchOptions(TaskOptions, TrafficOptions, EndpointOptions):
    """The options of a bench: endpoints, traffic and its amount, the form of requests, and when a request is good."""

    max_requests: Annotated[int, typer.Option(help="Requests per run.")] = 1000
    seeds: Annotated[int, typer.Option(help="Number of seeds (for window of the trace, classes, draws, prompts).")] = 1
    seed: Annotated[
        int, typer.Option(help="The first seed; with a new one, prompts are not in the server's prefix cache.")
    ] = 0
    endpoint: Annotated[str, typer.Option(help="completions or chat.")] = "completions"
    prompt: Annotated[
        str | None, typer.Option(help="tokens (exact lengths) or text (words, calibrated); text for chat.")
    ] = None
    vocab_size: Annotated[int, typer.Option(help="Prompt tokens are drawn below this id.")] = 256
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Longer prompts are cut to this length.")] = None
    max_output_tokens: Annotated[int | None, typer.Option(help="Longer replies are cut to this length.")] = None
    ignore_eos: Annotated[bool, typer.Option(help="Replies have exactly the workload's length (vLLM).")] = True
    continuous_usage: Annotated[bool, typer.Option(help="Ask for the count of tokens in each chunk (vLLM).")] = True
    max_concurrency: Annotated[int | None, typer.Option(help="Most requests in flight; others wait in the client.")] = (
        None
    )
    goodput: Annotated[
        list[str] | None,
        typer.Option(
            help="Targets of a good request, in ms, instead of its own: --goodput ttft:500 tpot:50 e2el:2000."
        ),
    ] = None
    goodput_class: Annotated[
        list[str] | None,
        typer.Option(help="The same for a class: interactive=ttft:500,tpot:50; may be repeated."),
    ] = None
    send_slo: Annotated[str, typer.Option(help="How the server learns of SLOs: xargs, headers or none.")] = "xargs"
    report: Annotated[
        bool,
        typer.Option(
            "--report", help="Ask the server for its reports, and compare them with the client's measurements."
        ),
    ] = False
    warmup: Annotated[int, typer.Option(help="Requests that are sent first and not counted.")] = 0
    ramp: Annotated[float, typer.Option(help="Seconds over which the rate rises from 0.")] = 0.0
    timeout: Annotated[float, typer.Option(help="Seconds after which a request is cancelled.")] = 600.0
    profile: Annotated[
        str | None,
        typer.Option(
            help="Profile of the endpoint's engine, shipped name or path. Several tenants then have their slowdown "
            "reported: latency over what the request would take alone. With --tasks: deadlines follow from it."
        ),
    ] = None
