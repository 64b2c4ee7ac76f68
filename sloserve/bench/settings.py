"""What to bench: endpoints, workload, load, and how requests are put; from the flags of the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sloserve.bench.slo_encoding import STATING, SendSLO
from sloserve.client.goodput import Goodput, parse_goodput
from sloserve.client.payload import Api, PayloadSettings
from sloserve.client.prompts import DEFAULT_VOCAB_SIZE, Prompts, TokenPrompts
from sloserve.client.replay import ReplaySettings
from sloserve.client.shaping import cap_lengths, ramp_up
from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest
from sloserve.workloads.named_slos import find_slos
from sloserve.workloads.readers import read_trace
from sloserve.workloads.registry import Workload, trace_workload
from sloserve.workloads.registry import workload as named_workload
from sloserve.workloads.slo_assignment import SLOAssignment


@dataclass(frozen=True, slots=True)
class Shape:
    """What is done to the workload: caps on lengths (``None``: none), and seconds until the full rate is reached."""

    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    ramp_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much is offered. rps: requests per second, ascending; ``None``: the workload's own rate times rate_scale."""

    max_requests: int
    seeds: tuple[int, ...]
    rps: tuple[float, ...] | None
    rate_scale: float


@dataclass(frozen=True, slots=True)
class Target:
    """The endpoints: label to URL, and how they are asked. model: ``None``: the first that an endpoint serves."""

    urls: dict[str, str]
    model: str | None
    api_key: str | None
    warmup: int


@dataclass(frozen=True, slots=True)
class Bench:
    """payload: its model is filled in when the endpoint has named it. prompts: ``None``: words, calibrated there."""

    target: Target
    workload: Workload
    slos: SLOAssignment | None
    load: Load
    shape: Shape
    payload: PayloadSettings
    prompts: Prompts | None
    replay: ReplaySettings
    goodput: Goodput
    slo_sent: SendSLO


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """The requests of one seed at one load. rps: offered, the mean over the seeds of this load. capped: how many were
    cut. judged: the same requests with the targets by which they are judged.
    """

    rps: float
    seed: int
    requests: list[WorkloadRequest]
    capped: int
    judged: list[WorkloadRequest]


def points(bench: Bench) -> list[Point]:
    """Every load, ascending, with every seed.

    Raises: ConfigError for a class of ``--goodput-class`` that no request has, and as workloads do.
    """
    found: list[Point] = []
    for rps in bench.load.rps or (None,):
        of_seeds = [
            bench.workload.requests(
                bench.load.max_requests, seed, rps, rate_scale=bench.load.rate_scale, slos=bench.slos
            )
            for seed in bench.load.seeds
        ]
        offered = sum(map(_offered_rps, of_seeds)) / len(of_seeds) if rps is None else rps
        for seed, drawn in zip(bench.load.seeds, of_seeds, strict=True):
            requests, capped = cap_lengths(drawn, bench.shape.max_prompt_tokens, bench.shape.max_output_tokens)
            requests = ramp_up(requests, bench.shape.ramp_s)
            found.append(Point(offered, seed, requests, capped, bench.goodput.judged(requests)))
    return found


def _offered_rps(requests: Sequence[WorkloadRequest]) -> float:
    """Requests that come all at once count as if they came within a second."""
    span_s = requests[-1].arrival_s - requests[0].arrival_s
    return (len(requests) - 1) / span_s if span_s > 0.0 else float(len(requests))


def build_bench(
    *,
    url: str,
    compare: str | None = None,
    model: str | None = None,
    api_key: str | None = None,
    workload: str | None = None,
    trace: Path | None = None,
    slo: str | None = None,
    rps: str | None = None,
    rate_scale: float | None = None,
    max_requests: int = 1000,
    seeds: int = 1,
    seed: int = 0,
    max_concurrency: int | None = None,
    endpoint: str = Api.COMPLETIONS.value,
    prompt: str | None = None,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    max_prompt_tokens: int | None = None,
    max_output_tokens: int | None = None,
    ignore_eos: bool = True,
    continuous_usage: bool = True,
    goodput: Sequence[str] = (),
    goodput_class: Sequence[str] = (),
    send_slo: str = SendSLO.XARGS.value,
    report: bool = False,
    warmup: int = 0,
    ramp: float = 0.0,
    timeout: float = 600.0,
) -> Bench:
    """The bench that the command line's flags describe; each as ``sloserve bench --help`` says.

    Raises: ConfigError for a flag that contradicts another, or a value out of range.
    """
    if (workload is None) == (trace is None):
        raise ConfigError("give one of --workload and --trace")
    if rps is not None and rate_scale is not None:
        raise ConfigError("give one of --rps and --rate-scale")
    for flag, value, least in (
        ("--seeds", seeds, 1),
        ("--seed", seed, 0),
        ("--max-requests", max_requests, 1),
        ("--max-concurrency", max_concurrency, 1),
        ("--max-prompt-tokens", max_prompt_tokens, 1),
        ("--max-output-tokens", max_output_tokens, 1),
        ("--warmup", warmup, 0),
    ):
        if value is not None and value < least:
            raise ConfigError(f"{flag}: {value} is not a whole number >= {least}")
    if not 0.0 <= ramp < float("inf"):
        raise ConfigError(f"--ramp: {ramp} is not a number of seconds >= 0")
    if not 0.0 < timeout < float("inf"):
        raise ConfigError(f"--timeout: {timeout} is not a number of seconds above 0")
    api = _one_of("--endpoint", endpoint, Api)
    kind = prompt or ("text" if api is Api.CHAT else "tokens")
    if kind not in ("tokens", "text"):
        raise ConfigError(f"--prompt: {kind!r} is not one of tokens, text")
    if api is Api.CHAT and kind == "tokens":
        raise ConfigError("--prompt tokens: the chat API takes text only; give --prompt text or --endpoint completions")
    stated = _one_of("--send-slo", send_slo, SendSLO)
    source = trace_workload(read_trace(trace)) if trace is not None else named_workload(str(workload))
    return Bench(
        target=Target(_labelled(url, compare), model, api_key, warmup),
        workload=source,
        slos=find_slos(slo) if slo is not None else None,
        load=Load(
            max_requests, tuple(range(seed, seed + seeds)), _rates(rps), 1.0 if rate_scale is None else rate_scale
        ),
        shape=Shape(max_prompt_tokens, max_output_tokens, ramp),
        payload=PayloadSettings("", api, ignore_eos, continuous_usage, STATING[stated], report),
        prompts=TokenPrompts(vocab_size) if kind == "tokens" else None,
        replay=ReplaySettings(max_concurrency, timeout),
        goodput=parse_goodput(goodput, goodput_class),
        slo_sent=stated,
    )


def _labelled(url: str, other: str | None) -> dict[str, str]:
    """Endpoints by the name under which they are reported: ``name=URL``, or else host and port."""
    labelled: dict[str, str] = {}
    for text in (url,) if other is None else (url, other):
        name, equals, address = text.partition("=")
        if not equals or "/" in name:
            name, address = urlsplit(text).netloc or text, text
        if name in labelled:
            raise ConfigError(f"--compare: both endpoints are called {name!r}; name them, as in --compare b={address}")
        labelled[name] = address
    return labelled


def _one_of(flag: str, text: str, kind: Any) -> Any:
    if text not in list(kind):
        raise ConfigError(f"{flag}: {text!r} is not one of {', '.join(kind)}")
    return kind(text)


def _rates(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        rates = sorted(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--rps: {text!r} is not a comma-separated list of numbers") from None
    if not all(0.0 < rate < float("inf") for rate in rates) or len(set(rates)) != len(rates):
        raise ConfigError(f"--rps: {text!r} is not a list of different numbers above 0")
    return tuple(rates)
