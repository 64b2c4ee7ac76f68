"""Send one request to the endpoint, read its stream, and record how it ended. Requests are never retried."""

import asyncio
import errno
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from sloserve.client.payload import Payload
from sloserve.client.responses import (
    IDENTITY,
    UnreadableResponse,
    async_body,
    async_events,
    printable,
    refusal_text,
)
from sloserve.client.stream import StreamReader
from sloserve.core import numbers
from sloserve.core.arrays import FloatArray
from sloserve.core.clock import Clock
from sloserve.core.errors import ConfigError
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog

TOO_MANY, UNAVAILABLE, TIMED_OUT = 429, 503, 408
DROPPED_REASON = "x-slo-dropped-reason"
OTHER_REASON = "no reason given"
MOST_REASON_CHARS = 80
MOST_SECONDS_CHARS = 9

TOKENS_PER_ASKED, MORE_TOKENS = 16, 65_536
"""Limits of an output: it is given up beyond this multiple of the requested tokens, and this many more.

Both tokens and chunks count. The fixed part is as long as a whole output of servers that ignore the limit of tokens, as
some do with a model that reasons: such a request completes.
"""

_OWN_ERRORS = {
    errno.EMFILE: "this client may open no more files; raise its hard limit (ulimit -Hn)",
    errno.ENFILE: "this machine may open no more files; raise fs.file-max",
    errno.EADDRNOTAVAIL: "this machine has no local port left; widen net.ipv4.ip_local_port_range",
    errno.ENOBUFS: "this machine has no buffer left for a socket; free memory",
    errno.ENOMEM: "this machine has no memory left for a socket; free memory",
}
"""Errors of a connection that say nothing of the server, and what to do."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """The outcome of one request, as its client saw it. Times are seconds from the start of the run.

    Args:
        request: The request as it was sent; it was due at its ``arrival_s``.
        woke_s: When the client turned to it, which differs from ``arrival_s`` by the client's own lateness.
        sent_s: When it was sent, later than ``woke_s`` by the wait for ``max_concurrency``.
        chunk_times_s: When each chunk came, ``[chunks]``.
        token_times_s: When each token came, ``[tokens]``.
        prompt_tokens: Tokens of the prompt, as the server counted.
        output_tokens: Tokens of the output, as the server counted.
        error: Why the request was not completed.
        reason: Reason that a rejection stated.
        retry_after_s: Time to wait that a rejection stated.
        slo: The server's own verdict.
        cached_tokens: Tokens of the prompt that the server's prefix cache had; ``None`` where the server does not say.
        output_text: Text of the output, if it was kept.
        output_ids: Ids of the output's tokens, if it was kept and the server states them.
    """

    request: WorkloadRequest
    outcome: Outcome
    woke_s: float
    sent_s: float
    ended_s: float
    chunk_times_s: FloatArray
    token_times_s: FloatArray
    prompt_tokens: int
    output_tokens: int
    error: str | None = None
    reason: str | None = None
    retry_after_s: float | None = None
    slo: dict[str, Any] | None = None
    cached_tokens: int | None = None
    output_text: str = ""
    output_ids: list[int] | None = None

    def log(self, judged: WorkloadRequest) -> RequestLog:
        """Return the outcome for reports.

        Args:
            judged: The request with the targets by which it is judged.
        """
        return RequestLog(judged, self.outcome, self.token_times_s, cached_tokens=self.cached_tokens or 0)

    def latency(self, since_s: float) -> Latency | None:
        """Return the latency by ``vllm bench serve``'s definitions, from ``since_s`` on; ``None`` unless completed."""
        if self.outcome is not Outcome.COMPLETED:
            return None
        first_s, last_s = float(self.chunk_times_s[0]), float(self.chunk_times_s[-1])
        tpot_s = (last_s - first_s) / (self.output_tokens - 1) if self.output_tokens > 1 else 0.0
        return Latency(first_s - since_s, tpot_s, last_s - since_s)


async def exchange(
    client: httpx.AsyncClient,
    sent: Payload,
    clock: Clock,
    start_s: float,
    woke_s: float,
    timeout_s: float,
    *,
    keep_output: bool = False,
) -> Exchange:
    """Send ``sent`` now and read the response to its end.

    Whatever the server sends, and however it ends the connection, only this request fails.

    Args:
        client: The HTTP client of the endpoint.
        sent: The request, encoded.
        clock: Measures the request.
        start_s: When the run began, in monotonic seconds of ``clock``.
        woke_s: When the client turned to this request, in seconds from the start of the run.
        timeout_s: Longest duration of the request, in seconds.
        keep_output: Whether the output itself is kept, for a request that repeats it.

    Raises: ConfigError for a response that shows that the workload or a flag is wrong (4xx but 408 and 429), and where
    this machine lacks what a further connection needs.
    """
    most_tokens = TOKENS_PER_ASKED * sent.request.output_tokens + MORE_TOKENS
    reader = StreamReader(most_tokens, keep_output=keep_output)
    outcome, error = Outcome.FAILED, None
    refused: _Refusal | None = None
    sent_s = clock.monotonic_s() - start_s
    try:
        async with (
            asyncio.timeout(timeout_s),
            client.stream("POST", sent.path, content=sent.content, headers=IDENTITY | sent.headers) as response,
        ):
            if response.status_code == httpx.codes.OK:
                async for event in async_events(response):
                    reader.feed(event.data, clock.monotonic_s() - start_s)
                    if reader.error is not None:
                        break
            else:
                refused = await _refusal(response)
    except TimeoutError:
        outcome, error = Outcome.ABORTED, f"not complete after {timeout_s:g} s"
    except UnreadableResponse as failure:
        error = str(failure)
    except Exception as failure:  # one response that a library cannot read must not cost the run
        _check_own(failure)
        error = printable(f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__)
    else:
        if refused is not None:
            outcome, error = refused.outcome(sent.request.request_id), refused.text
        elif reader.error is not None:
            error = reader.error
        elif not reader.done or not reader.chunk_times_s:
            error = "the stream ended before the response was complete"
        else:
            outcome = Outcome.COMPLETED
    token_times_s = reader.token_times_s()
    return Exchange(
        request=sent.request,
        outcome=outcome,
        woke_s=woke_s,
        sent_s=sent_s,
        ended_s=clock.monotonic_s() - start_s,
        chunk_times_s=np.array(reader.chunk_times_s),
        token_times_s=token_times_s,
        prompt_tokens=sent.request.prompt_tokens if reader.prompt_tokens is None else reader.prompt_tokens,
        output_tokens=token_times_s.size if reader.output_tokens is None else reader.output_tokens,
        error=error,
        reason=refused.reason if refused is not None and outcome is Outcome.REJECTED else None,
        retry_after_s=refused.retry_after_s if refused is not None else None,
        slo=reader.slo,
        cached_tokens=reader.cached_tokens,
        output_text=reader.output_text,
        output_ids=reader.output_ids,
    )


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A response with a status other than 200."""

    status: int
    text: str
    reason: str
    retry_after_s: float | None

    def outcome(self, request_id: str) -> Outcome:
        if self.status in (TOO_MANY, UNAVAILABLE):
            return Outcome.REJECTED
        if 400 <= self.status < 500 and self.status != TIMED_OUT:
            raise ConfigError(f"the endpoint responded to request {request_id} with {self.text}; the run is stopped")
        return Outcome.FAILED


async def _refusal(response: httpx.Response) -> _Refusal:
    return _Refusal(
        response.status_code,
        f"{response.status_code}: {refusal_text(await async_body(response))}",
        printable(response.headers.get(DROPPED_REASON, OTHER_REASON), MOST_REASON_CHARS),
        _seconds(response.headers.get("retry-after")),
    )


def _seconds(text: str | None) -> float | None:
    """Return Retry-After as whole seconds; ``None`` for the form with a date, which is not read."""
    return float(text) if text is not None and numbers.is_whole(text) and len(text) <= MOST_SECONDS_CHARS else None


def _check_own(error: BaseException) -> None:
    """Raise ConfigError if ``error`` comes from a lack of this machine, of which the server knows nothing."""
    codes = {one.errno for one in _causes(error) if isinstance(one, OSError) and one.errno is not None}
    if codes and codes <= _OWN_ERRORS.keys():  # without IPv6 an address of two families fails in two ways
        remedy = "or send fewer requests at a time (--max-concurrency)"
        raise ConfigError(f"{_OWN_ERRORS[min(codes)]}, {remedy}; the run is stopped") from None


def _causes(error: BaseException) -> list[BaseException]:
    """Return ``error`` and all errors from which it arose."""
    found: list[BaseException] = []
    left = [error]
    while left:
        one = left.pop()
        if any(one is known for known in found):
            continue
        found.append(one)
        left += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
        left += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    return found
