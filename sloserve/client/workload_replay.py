"""Send a workload open-loop: each request when it is due, whatever happened to the requests before it.

The client's own lateness is measured beside: how long after it was due a request was turned to, and how late the event
loop wakes throughout the run. Where these are large, the client and not the server is what was measured.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
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


class Sender:
    """Sends the requests of one run, at most ``max_concurrency`` at a time, and measures the client's own lateness.

    Attributes:
        start_s: When the run began, in monotonic seconds of the clock.
    """

    def __init__(self, client: httpx.AsyncClient, clock: Clock, settings: ReplaySettings) -> None:
        limit = settings.max_concurrency
        self._slots: AbstractAsyncContextManager[None] = nullcontext() if limit is None else asyncio.Semaphore(limit)
        self._client, self._clock, self._timeout_s = client, clock, settings.timeout_s
        self._loop_lag_s: list[float] = []
        self.start_s = clock.monotonic_s()

    @property
    def now_s(self) -> float:
        """The seconds from the start of the run."""
        return self._clock.monotonic_s() - self.start_s

    async def sleep_until(self, at_s: float) -> None:
        """Wait until ``at_s`` seconds from the start of the run.

        The event loop has its turn even if that has passed: otherwise the first of a burst would only begin after the
        last.
        """
        await asyncio.sleep(max(at_s - self.now_s, 0.0))

    async def send(self, sent: Payload, woke_s: float, *, keep_output: bool = False) -> Exchange:
        """Send a request, to which the client turned ``woke_s`` seconds from the start, as soon as there is a place."""
        async with self._slots:
            return await exchange(
                self._client, sent, self._clock, self.start_s, woke_s, self._timeout_s, keep_output=keep_output
            )

    async def watch(self) -> None:
        """Measure the lateness of the event loop until cancelled."""
        await _watch_loop(self._clock, self._loop_lag_s)

    def run(self, exchanges: list[Exchange]) -> ReplayedRun:
        """Return the run, which ends now."""
        return ReplayedRun(
            exchanges,
            duration_s=self.now_s,
            send_lag_s=np.maximum([ended.woke_s - ended.request.arrival_s for ended in exchanges], 0.0),
            loop_lag_s=np.maximum(self._loop_lag_s, 0.0),
        )


@asynccontextmanager
async def sending(
    client: httpx.AsyncClient, clock: Clock, settings: ReplaySettings
) -> AsyncIterator[tuple[Sender, asyncio.TaskGroup]]:
    """Yield the sender of a run that starts now, and a group of asyncio tasks for which the block's end waits.

    Raises: ConfigError as soon as a response shows that the workload is wrong; what is under way is then cancelled.
    """
    failure: ConfigError | None = None
    sender = Sender(client, clock, settings)
    async with AsyncExitStack() as stack:
        watcher = asyncio.create_task(sender.watch())
        stack.push_async_callback(_cancel, watcher)
        try:
            async with asyncio.TaskGroup() as group:
                yield sender, group
        except* ConfigError as errors:
            failure = next(error for error in errors.exceptions if isinstance(error, ConfigError))
    if failure is not None:
        raise failure


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

    async def one(sender: Sender, sent: Payload) -> Exchange:
        ended = await sender.send(sent, sender.now_s)
        if on_ended is not None:
            on_ended()
        return ended

    async with sending(client, clock, settings) as (sender, group):
        tasks = []
        for sent in payloads:
            await sender.sleep_until(sent.request.arrival_s)
            tasks.append(group.create_task(one(sender, sent)))
    return sender.run([task.result() for task in tasks])


async def _watch_loop(clock: Clock, lags_s: list[float]) -> None:
    while True:
        before_s = clock.monotonic_s()
        await asyncio.sleep(TICK_S)
        lags_s.append(clock.monotonic_s() - before_s - TICK_S)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
