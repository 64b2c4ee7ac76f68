"""Send a workload open-loop: each request when it is due, whatever happened to the requests before it.

The client's own lateness is measured beside: how long after it was due a request was turned to, and how late the event
loop wakes throughout the run. Where these are large, the client and not the server is what was measured.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass

import httpx
import numpy as np

from sloserve.client.exchange import Exchange, exchange
from sloserve.client.payload import Payload
from sloserve.core.arrays import FloatArray
from sloserve.core.clock import Clock
from sloserve.core.errors import ConfigError

TICK_S = 0.05
"""How often the event loop's lateness is sampled."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedRun:
    """One run of a workload.

    Args:
        exchanges: The outcomes of the requests, in the order of the workload.
        duration_s: Seconds until the last of them ended.
        send_lag_s: How late the client turned to each request, ``[requests]``, at least 0.
        loop_lag_s: How late the event loop woke, ``[samples]``, at least 0.
    """

    exchanges: list[Exchange]
    duration_s: float
    send_lag_s: FloatArray
    loop_lag_s: FloatArray


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Limits of a run.

    Args:
        max_concurrency: Requests under way at once; the others wait in the client, and that wait counts.
        timeout_s: Longest duration of one request, in seconds from its sending.
    """

    max_concurrency: int | None = None
    timeout_s: float = 600.0


async def replay(
    client: httpx.AsyncClient,
    payloads: Sequence[Payload],
    clock: Clock,
    settings: ReplaySettings,
    on_ended: Callable[[], None] | None = None,
) -> ReplayedRun:
    """Send each of ``payloads`` at its request's ``arrival_s`` from now and wait for all to end.

    Args:
        client: The HTTP client of the endpoint.
        payloads: The requests, encoded.
        clock: Measures the run.
        settings: Limits of the run.
        on_ended: Called as each request ends.

    Raises: ConfigError as soon as a response shows that the workload is wrong; what is under way is then cancelled.
    """
    limit = settings.max_concurrency
    slots: AbstractAsyncContextManager[None] = nullcontext() if limit is None else asyncio.Semaphore(limit)
    loop_lag_s: list[float] = []
    failure: ConfigError | None = None
    start_s = clock.monotonic_s()

    async def one(sent: Payload) -> Exchange:
        woke_s = clock.monotonic_s() - start_s
        async with slots:
            ended = await exchange(client, sent, clock, start_s, woke_s, settings.timeout_s)
        if on_ended is not None:
            on_ended()
        return ended

    async with AsyncExitStack() as stack:
        watcher = asyncio.create_task(_watch_loop(clock, loop_lag_s))
        stack.push_async_callback(_cancel, watcher)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = []
                for sent in payloads:
                    wait_s = start_s + sent.request.arrival_s - clock.monotonic_s()
                    # Also when it is due already: otherwise the first of a burst would only begin after the last.
                    await asyncio.sleep(max(wait_s, 0.0))
                    tasks.append(group.create_task(one(sent)))
        except* ConfigError as errors:
            failure = next(error for error in errors.exceptions if isinstance(error, ConfigError))
    if failure is not None:
        raise failure
    exchanges = [task.result() for task in tasks]
    return ReplayedRun(
        exchanges,
        duration_s=clock.monotonic_s() - start_s,
        send_lag_s=np.maximum([ended.woke_s - ended.request.arrival_s for ended in exchanges], 0.0),
        loop_lag_s=np.maximum(loop_lag_s, 0.0),
    )


async def _watch_loop(clock: Clock, lags_s: list[float]) -> None:
    while True:
        before_s = clock.monotonic_s()
        await asyncio.sleep(TICK_S)
        lags_s.append(clock.monotonic_s() - before_s - TICK_S)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
