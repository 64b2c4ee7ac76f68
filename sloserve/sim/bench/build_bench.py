"""What to bench: endpoints, workload, load and the form of requests, from the flags of the command line."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from sloserve.cli.flag_errors import about_flag
from sloserve.client.goodput_targets import Goodput, parse_goodput
from sloserve.client.http_clients import host_of
from sloserve.client.payload import Api, PayloadSettings
from sloserve.client.prompts import Prompts, TokenPrompts
from sloserve.client.shaping import cap_lengths, ramp_up
from sloserve.client.workload_replay import ReplaySettings
from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import Profile, load_profile
from sloserve.sim.bench.bench_options import BenchOptions
from sloserve.sim.bench.slo_encoding import STATING, SendSLO
from sloserve.sim.experiment import offered_rps
from sloserve.sim.report.tenant_report import alone_s
from sloserve.sim.task_runs import TaskRun, task_run
from sloserve.sim.workloads.named_slos import find_slos
from sloserve.sim.workloads.slo_assignment import SLOAssignment
from sloserve.sim.workloads.tasks.arrivals import NO_DEADLINE
from sloserve.sim.workloads.tasks.offered import OfferedTasks, as_workload, asked_tasks, parse_rates
from sloserve.sim.workloads.tasks.source import call_request
from sloserve.sim.workloads.workload_registry import Workload, asked_workload


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """The changes that are made to the workload.

    Args:
        max_prompt_tokens: Cap on the tokens of a prompt, or ``None``.
        max_output_tokens: Cap on the tokens of an output, or ``None``.
        ramp_s: Seconds until the full rate is reached.
    """

    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    ramp_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """The load that is offered.

    Args:
        max_requests: Number of requests of each seed.
        seeds: Seeds of the workload.
        rps: Requests per second, ascending; ``None`` for the workload's own rate times ``rate_scale``.
        rate_scale: Factor on the workload's own rate.
    """

    max_requests: int
    seeds: tuple[int, ...]
    rps: tuple[float, ...] | None
    rate_scale: float


@dataclass(frozen=True, slots=True)
class Target:
    """The endpoints, and what they are asked for.

    Args:
        urls: URL of each endpoint by label.
        model: Name of the model; ``None`` for the first that an endpoint serves.
        api_key: Key that the endpoints require, or ``None``.
        warmup: Number of requests sent to each endpoint before the measurement.
    """

    urls: dict[str, str]
    model: str | None
    api_key: str | None
    warmup: int


@dataclass(frozen=True, slots=True)
class Bench:
    """The settings of one bench.

    The model of ``payload`` is filled in when the endpoint has named it. Where ``prompts`` is ``None``, prompts are
    words, calibrated at the endpoint. ``profile`` has the step times of the endpoints' engines; ``None`` if they are
    not known. ``tasks`` are offered in place of the workload's requests; ``None`` for an open loop.
    """

    target: Target
    workload: Workload
    slos: SLOAssignment | None
    load: Load
    shape: WorkloadShape
    payload: PayloadSettings
    prompts: Prompts | None
    replay: ReplaySettings
    goodput: Goodput
    slo_sent: SendSLO
    profile: Profile | None = None
    tasks: OfferedTasks | None = None
    needs_token_ids: bool = False
    """Whether the user asked for prompts of token ids, so that outputs must come as token ids too."""

    @property
    def alone(self) -> Callable[[WorkloadRequest], float] | None:
        """Function that returns the e2e latency of a request alone on the engine; ``None`` if it is not known."""
        if self.profile is None:
            return None
        return partial(alone_s, latency=self.profile, chunk_tokens=self.profile.max_num_batched_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class LoadPoint:
    """The requests of one seed at one load.

    Args:
        rps: Offered requests per second, the mean over the seeds of this load.
        seed: Seed of the requests.
        requests: The requests that are sent.
        capped: Number of requests that were cut.
        judged: The same requests with the targets by which they are judged.
        tasks: The tasks of which the requests are the calls, sent in a closed loop; ``None`` for an open loop.
    """

    rps: float
    seed: int
    requests: list[WorkloadRequest]
    capped: int
    judged: list[WorkloadRequest]
    tasks: TaskRun | None = None


def points(bench: Bench) -> list[LoadPoint]:
    """Return every load, ascending, with every seed.

    Raises: ConfigError for a class of ``--goodput-class`` that no request has, and the errors of workloads.
    """
    if bench.tasks is not None:
        return _task_points(bench, bench.tasks)
    found: list[LoadPoint] = []
    for rps in bench.load.rps or (None,):
        of_seeds = [
            bench.workload.requests(
                bench.load.max_requests, seed, rps, rate_scale=bench.load.rate_scale, slos=bench.slos
            )
            for seed in bench.load.seeds
        ]
        offered = sum(map(offered_rps, of_seeds)) / len(of_seeds) if rps is None else rps
        for seed, drawn in zip(bench.load.seeds, of_seeds, strict=True):
            requests, capped = cap_lengths(drawn, bench.shape.max_prompt_tokens, bench.shape.max_output_tokens)
            requests = ramp_up(requests, bench.shape.ramp_s)
            found.append(LoadPoint(offered, seed, requests, capped, bench.goodput.judged(requests)))
    return found


def _task_points(bench: Bench, tasks: OfferedTasks) -> list[LoadPoint]:
    """Return every rate of tasks, ascending, with every seed; the requests are the calls as planned, all at 0 s."""
    profile, found = bench.profile, []
    for rate, seed in itertools.product(tasks.rates, bench.load.seeds):
        engine = None if profile is None else EngineSettings.of_profile(profile, enable_prefix_caching=True)
        run = task_run(tasks, seed, rate, engine, profile)
        calls = [
            replace(call_request(plan, i, 0.0, slos[i], tasks.hints), prefix_ids=())
            for plan, slos in zip(run.plans, run.slos, strict=True)
            for i in range(len(plan.calls))
        ]
        found.append(LoadPoint(rate, seed, calls, 0, bench.goodput.judged(calls), run))
    return found


def build_bench(options: BenchOptions) -> Bench:
    """Return the bench that the options describe.

    Raises: ConfigError for an option that contradicts another, or a value out of range.
    """
    _check_ranges(options)
    api = _one_of("--endpoint", options.endpoint, Api)
    kind = options.prompt or ("text" if api is Api.CHAT else "tokens")
    if kind not in ("tokens", "text"):
        raise ConfigError(f"--prompt: {kind!r} is not one of tokens, text")
    if api is Api.CHAT and kind == "tokens":
        raise ConfigError("--prompt tokens: the chat API takes text only; give --prompt text or --endpoint completions")
    stated = _one_of("--send-slo", options.send_slo, SendSLO)
    slos = find_slos(options.slo) if options.slo is not None else None
    tasks = _tasks(options, slos)
    return Bench(
        target=Target(_labelled(options.url, options.compare), options.model, options.api_key, options.warmup),
        workload=asked_workload(options) if tasks is None else as_workload(tasks),
        slos=slos,
        load=Load(
            options.max_requests,
            tuple(range(options.seed, options.seed + options.seeds)),
            _rates(options.rps),
            1.0 if options.rate_scale is None else options.rate_scale,
        ),
        shape=WorkloadShape(options.max_prompt_tokens, options.max_output_tokens, options.ramp),
        payload=PayloadSettings("", api, options.ignore_eos, options.continuous_usage, STATING[stated], options.report),
        prompts=TokenPrompts(options.vocab_size) if kind == "tokens" else None,
        replay=ReplaySettings(options.max_concurrency, options.timeout),
        goodput=parse_goodput(options.goodput or (), options.goodput_class or ()),
        slo_sent=stated,
        profile=_profile(options.profile),
        tasks=tasks,
        needs_token_ids=tasks is not None and options.prompt == "tokens",
    )


def _tasks(options: BenchOptions, slos: SLOAssignment | None) -> OfferedTasks | None:
    """Return the tasks that the options name; ``None`` if they name none.

    Raises: ConfigError for an option that does not go with tasks.
    """
    tasks = asked_tasks(options, slos)
    if tasks is None:
        return None
    for name in ("max_prompt_tokens", "max_output_tokens"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} does not go with --tasks; --task-scale makes tasks shorter")
    if options.ramp:
        raise ConfigError("--ramp does not go with --tasks, of which each sends its next call when it is ready")
    if tasks.deadline.slowdown and options.profile is None:
        if options.task_deadline is not None:
            raise ConfigError(
                f"--task-deadline: {options.task_deadline!r} is a multiple of the latency on an idle engine, which "
                "follows from --profile; give one, or a number of seconds"
            )
        return replace(tasks, deadline=NO_DEADLINE)
    return tasks


def _check_ranges(options: BenchOptions) -> None:
    if options.rps is not None and options.rate_scale is not None:
        raise ConfigError("give one of --rps and --rate-scale")
    for name, least in (
        ("seeds", 1),
        ("seed", 0),
        ("max_requests", 1),
        ("max_concurrency", 1),
        ("max_prompt_tokens", 1),
        ("max_output_tokens", 1),
        ("warmup", 0),
    ):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')}: {value} is not a whole number >= {least}")
    if options.rate_scale is not None and not 0.0 < options.rate_scale < float("inf"):
        raise ConfigError(f"--rate-scale: {options.rate_scale:g} is not a number above 0")
    if not 0.0 <= options.ramp < float("inf"):
        raise ConfigError(f"--ramp: {options.ramp} is not a number of seconds >= 0")
    if not 0.0 < options.timeout < float("inf"):
        raise ConfigError(f"--timeout: {options.timeout} is not a number of seconds above 0")


def _labelled(url: str, other: str | None) -> dict[str, str]:
    """Return the endpoints by the name under which they are reported: ``name=URL``, or else host and port."""
    labelled: dict[str, str] = {}
    for flag, text in (("--url", url), ("--compare", other)):
        if text is None:
            continue
        name, equals, address = text.partition("=")
        is_named = equals and "/" not in name
        address = address if is_named else text
        host_of(address, flag)  # a mistake in it ends the command before a trace is read
        name = name if is_named else urlsplit(address).netloc
        if name in labelled:
            raise ConfigError(f"--compare: both endpoints are called {name!r}; name them, as in --compare b={address}")
        labelled[name] = address
    return labelled


def _one_of(flag: str, text: str, kind: Any) -> Any:
    if text not in list(kind):
        raise ConfigError(f"{flag}: {text!r} is not one of {', '.join(kind)}")
    return kind(text)


def _profile(name: str | None) -> Profile | None:
    if name is None:
        return None
    with about_flag("--profile"):
        return load_profile(name)


def _rates(text: str | None) -> tuple[float, ...] | None:
    return None if text is None else parse_rates("--rps", text)
