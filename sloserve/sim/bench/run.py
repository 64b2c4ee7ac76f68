"""The run of a bench: the endpoints in turn get the same requests, so other load of the machine affects them alike."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from sloserve.client.endpoint import Agreed, Endpoint, agree, open_endpoint
from sloserve.client.payload import Api, payload, task_headers
from sloserve.client.shaping import CAPS, check_context
from sloserve.client.workload_replay import ReplayedRun, replay
from sloserve.core.clock import Clock
from sloserve.core.errors import ConfigError
from sloserve.core.open_files import raise_open_files
from sloserve.core.progress_bar import progress
from sloserve.core.task_outcome import TaskOutcome
from sloserve.core.tasks import TaskCall
from sloserve.sim.bench.bench_report import BenchReporter
from sloserve.sim.bench.build_bench import Bench, LoadPoint, points
from sloserve.sim.bench.slo_encoding import SendSLO
from sloserve.sim.bench.task_prompts import TaskPrompts
from sloserve.sim.bench.task_replay import TaskTarget, replay_tasks
from sloserve.sim.task_runs import TaskRun

WARMUP_SEED = 2**31
"""The seed of the prompts of warm-up requests; no run has it, so that none finds its prompts in a prefix cache."""
WARMUP_CONCURRENCY = 8
OTHER_FILES = 512
"""The number of open files that are not connections to an endpoint."""
REFRESHES_PER_S = 2
"""The refreshes per second of the progress bar, which shares the client's processor."""


@dataclass(frozen=True, slots=True)
class _Ready:
    label: str
    endpoint: Endpoint
    agreed: Agreed


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """One run of one endpoint; ``tasks`` are the outcomes of its tasks, if it had any."""

    label: str
    point: LoadPoint
    run: ReplayedRun
    tasks: list[TaskOutcome] | None = None


def bench(
    settings: Bench, out_dir: Path, clock: Clock, *, token_log: bool = False, console: Console | None = None
) -> list[dict[str, Any]]:
    """Run ``settings``, print the table and write the files of the report.

    Returns the runs' records. See :class:`~sloserve.sim.bench.bench_report.BenchReporter`.

    Raises: ConfigError for an endpoint that cannot be used, and requests that it refuses.
    """
    console = console or Console()
    if settings.workload.trace is not None:
        console.print(settings.workload.description, soft_wrap=True, highlight=False)
    todo = points(settings)
    is_open = settings.tasks is None
    total = len(settings.target.urls) * sum(len(p.requests if p.tasks is None else p.tasks.plans) for p in todo)
    _allow_connections(settings, todo)
    with (
        progress("requests" if is_open else "tasks", console, total, refresh_per_second=REFRESHES_PER_S) as bar,
        BenchReporter(settings, out_dir, console, token_log=token_log) as reporter,
    ):

        async def run() -> None:
            async for measured in measure(settings, todo, clock, reporter, bar.advance):
                reporter.add(measured.label, measured.point, measured.run, clock.now_s(), measured.tasks)

        asyncio.run(run())
        return reporter.finish()


def _allow_connections(settings: Bench, todo: Sequence[LoadPoint]) -> None:
    """Allow this process as many open files as requests may be under way, as far as its hard limit allows.

    Where the limit is too low, the request that finds no open file left ends the run with an error.
    """
    most = max(len(point.requests) for point in todo)
    at_once = min(most, settings.replay.max_concurrency or most)
    with suppress(OSError, ValueError):
        raise_open_files(at_once * len(settings.target.urls) + OTHER_FILES)


async def measure(
    settings: Bench,
    todo: Sequence[LoadPoint],
    clock: Clock,
    reporter: BenchReporter,
    on_ended: Callable[[], None],
) -> AsyncIterator[Measured]:
    """Yield every run: points in order, and the endpoints in turn, first one and then the other first.

    ``reporter`` is notified of what the endpoints are, ``on_ended`` is called as each request ends.
    """
    async with AsyncExitStack() as stack:
        ready = [
            await _get_ready(stack, label, url, settings, todo, clock) for label, url in settings.target.urls.items()
        ]
        for one in ready:
            reporter.endpoint(one.label, one.endpoint, one.agreed)
        for one in ready:
            await _warm_up(one, settings, todo[0], clock)
        for i, point in enumerate(todo):
            for one in ready if i % 2 == 0 else reversed(ready):
                yield await _run_point(one, point, settings, clock, on_ended)


async def _get_ready(
    stack: AsyncExitStack, label: str, url: str, settings: Bench, todo: Sequence[LoadPoint], clock: Clock
) -> _Ready:
    target = settings.target
    endpoint = await stack.enter_async_context(
        open_endpoint(url, model=target.model, api_key=target.api_key, settings=settings.replay)
    )
    remedy = CAPS if settings.tasks is None else f"give --task-scale below {settings.tasks.scale:g}"
    for point in todo:
        estimated = settings.prompts is None
        check_context(point.requests, endpoint.context_tokens, estimated=estimated, remedy=remedy)
    by_ids = settings.tasks is not None and settings.prompts is not None
    states_tasks = settings.tasks is not None and settings.tasks.hints.task and settings.slo_sent is not SendSLO.NONE
    headers = task_headers(TaskCall(f"{_run_id(clock)}-trial", last=True), 0.0) if states_tasks else {}
    asked = replace(settings.payload, model=endpoint.model, return_token_ids=by_ids, headers=headers)
    like = todo[0].requests[0]
    agreed = await agree(endpoint, asked, settings.prompts, like, clock)
    if by_ids and not agreed.returns_token_ids:
        if settings.needs_token_ids:
            raise ConfigError(
                f"--prompt tokens: {endpoint.url} does not state the ids of its outputs' tokens, which the next "
                "prompt of a task repeats; give --prompt text"
            )
        agreed = await agree(endpoint, replace(agreed.payload, return_token_ids=False), None, like, clock)
    return _Ready(label, endpoint, agreed)


async def _warm_up(one: _Ready, settings: Bench, point: LoadPoint, clock: Clock) -> None:
    """Send prompts of the lengths of the first requests, a few at once; they are not counted."""
    few = [replace(r, arrival_s=0.0, prefix_ids=()) for r in point.requests[: settings.target.warmup]]
    limit = min(settings.replay.max_concurrency or WARMUP_CONCURRENCY, WARMUP_CONCURRENCY)
    plain = replace(one.agreed.payload, headers={})
    payloads = [payload(r, one.agreed.prompts.make(r, WARMUP_SEED), plain) for r in few]
    if payloads:
        await replay(one.endpoint.client, payloads, clock, replace(settings.replay, max_concurrency=limit))


async def _run_point(
    one: _Ready, point: LoadPoint, settings: Bench, clock: Clock, on_ended: Callable[[], None]
) -> Measured:
    agreed, payloads = one.agreed, []
    if point.tasks is None:
        payloads = [payload(r, agreed.prompts.make(r, point.seed), agreed.payload) for r in point.requests]
    # What exists now lives to the end of the run: the collector need not look at it while tokens come.
    gc.collect()
    gc.freeze()
    try:
        if point.tasks is not None:
            return await _run_tasks(one, point, point.tasks, settings, clock, on_ended)
        return Measured(one.label, point, await replay(one.endpoint.client, payloads, clock, settings.replay, on_ended))
    finally:
        gc.unfreeze()


async def _run_tasks(
    one: _Ready, point: LoadPoint, run: TaskRun, settings: Bench, clock: Clock, on_ended: Callable[[], None]
) -> Measured:
    agreed = one.agreed
    target = TaskTarget(
        one.endpoint.client,
        agreed.payload,
        TaskPrompts(agreed.prompts, point.seed, agreed.payload.api is Api.CHAT),
        settings.replay,
        states_tasks=bool(agreed.payload.headers),
        run_id=f"{_run_id(clock)}-{point.seed}",
    )
    replayed, outcomes = await replay_tasks(target, run, clock, on_ended)
    sent = [ended.request for ended in replayed.exchanges]
    return Measured(one.label, replace(point, requests=sent, judged=settings.goodput.judged(sent)), replayed, outcomes)


def _run_id(clock: Clock) -> str:
    """Return the text before the names of a run's tasks, which no other run has."""
    return f"bench-{round(1e3 * clock.now_s()):x}"
