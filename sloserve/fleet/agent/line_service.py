"""Sends lines to an instance, reads the responses, and commits the results."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import aclosing, contextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, cast

from sloserve.core.clock import Clock
from sloserve.fleet.agent import line_output
from sloserve.fleet.agent.claims import RETRY_S, ClaimedLine, HeldClaim, InstanceWork
from sloserve.fleet.agent.line_output import BrokenOutput, LineOutput, TooLong, stated_tokens, was_aborted
from sloserve.fleet.client_routes import GENERATING
from sloserve.fleet.contract.endpoint import InstanceEndpoint, InstanceResponse, LineSize, Refusal, Refused
from sloserve.fleet.sizes import prompt_bytes
from sloserve.fleet.store.group_commit import GroupCommit
from sloserve.fleet.store.lease import Lease
from sloserve.fleet.store.records import LineUse, RequestState, Result
from sloserve.fleet.store.requests import Requests
from sloserve.fleet.supervised import Faults
from sloserve.wire.body import BYTES_PER_TOKEN
from sloserve.wire.headers import TENANT
from sloserve.wire.held import left_ms

logger = logging.getLogger(__name__)

_TRIES: Final = 5
"""Most attempts with an engine that breaks a line off and lives, with 1, 2, 4 and 8 s in between."""
_BUSY: Final = (429, 503)
"""Statuses of an engine that may take the line later."""


class LineService:
    """Serves the lines that an instance has at hand, and commits their results.

    Args:
        requests: Requests of the store.
        clock: Clock of this process.
        executor: Executor with threads that wait for the store.
    """

    def __init__(self, requests: Requests, clock: Clock, executor: Executor) -> None:
        self._clock = clock
        self._commit: GroupCommit[Result, bool] = GroupCommit(requests.finish, executor)
        self._faults = Faults("results wait")

    def begin(self, endpoint: InstanceEndpoint, work: InstanceWork, model: str, room: int) -> int:
        """Begin to serve what is at hand, as far as there is room, and return the room that is left."""
        now_s = self._clock.monotonic_s()
        for claim in work.claims.values():
            for line in claim.lines.values():
                is_over = line.due_s <= now_s  # takes no room: it is not sent
                can_be_sent = room > 0 and claim.lease.left_s > 0.0 and line.model == model
                if line.waits and (is_over or can_be_sent):
                    line.task = asyncio.create_task(self._serve(endpoint, work, claim, line))
                    room -= not is_over
        return room

    async def _serve(self, endpoint: InstanceEndpoint, work: InstanceWork, claim: HeldClaim, line: ClaimedLine) -> None:
        left_s = line.due_s - self._clock.monotonic_s()
        try:
            if left_s <= 0.0:
                raise TimeoutError
            async with asyncio.timeout(None if left_s == math.inf else left_s):
                result = await attempted(endpoint, line, claim.lease, self._clock)
        except TimeoutError:
            result = result_of(line, RequestState.EXPIRED, 0, b"")
        except Refused:
            line.task = None  # nothing was sent: the line waits for its turn again
            return
        except Exception:  # a fault of the agent: the line must not hold its batch or claim for ever
            logger.exception("request %s cannot be served", line.claimed.id)
            result = result_of(line, RequestState.FAILED, 500, b"the request could not be served; send it differently")
        line.has_ended = True
        await self.commit(result)
        work.ended(claim, line)
        work.wake.set()

    async def commit(self, result: Result) -> None:
        """Commit a result, however long the store is away: if another attempt has begun by then, it does not count.

        Any fault leads to another try: another result in the same commit may have caused it.
        """
        while True:
            with self._faults:
                await self._commit(result)
                return
            await asyncio.sleep(RETRY_S)


async def attempted(endpoint: InstanceEndpoint, line: ClaimedLine, lease: Lease, clock: Clock) -> Result:
    """Serve a line, and return how it ended.

    Raises: Refused if it waits for its turn again, or its lease ended before a further attempt; TimeoutError at its
    deadline.
    """
    output = line.output = line.output or LineOutput.of(line.claimed)
    for attempt in range(1, _TRIES + 1):
        if attempt > 1 and lease.left_s <= 0.0:
            raise Refused(Refusal.FULL)  # another agent may have it by now
        try:
            with _timed(line, clock):
                status, body = await _asked(endpoint, line, output, line.due_s - clock.monotonic_s())
            if status in _BUSY:
                await asyncio.sleep(RETRY_S)
                raise Refused(Refusal.FULL)
            if status < 500 or attempt == _TRIES:
                return result_of(line, RequestState.DONE, status, body)
        except BrokenOutput as broken:
            line.is_sent = True
            if attempt == _TRIES or isinstance(broken, TooLong):
                return result_of(line, RequestState.FAILED, 502, str(broken).encode())
            progress = output.progress() or line.claimed.progress
            output = line.output = LineOutput.of(replace(line.claimed, progress=progress))
        # If the engine died, died() takes the line from here.
        await asyncio.sleep(RETRY_S * 2 ** (attempt - 1))
    raise AssertionError("the last attempt returns")


async def _asked(endpoint: InstanceEndpoint, line: ClaimedLine, output: LineOutput, left_s: float) -> tuple[int, bytes]:
    headers, body = _headers(line, output.path, left_s), output.body()
    size = LineSize(prompt_bytes(body) / BYTES_PER_TOKEN, output.max_tokens, output.is_streamed)
    # An engine may die of the line before its response begins, and that may end this call first.
    line.is_coming = True
    try:
        answer = await endpoint.send("POST", output.path, headers, body, model=line.model, line=size)
    except Refused as refused:
        line.is_coming = False
        if refused.reason is Refusal.DIED:
            raise BrokenOutput("the engine died with the request") from refused
        raise
    line.is_sent, line.is_coming = True, False
    async with aclosing(cast(Any, _closable(answer))) as parts:
        if answer.status != 200 or not output.is_streamed:
            body = await _read(parts)
            if answer.status == 200 and was_aborted(body):
                raise BrokenOutput("the engine aborted the request")
            return answer.status, body
        async for part in parts:
            output.add(part)
    return 200, output.whole()


def result_of(line: ClaimedLine, state: RequestState, status: int, body: bytes) -> Result:
    """Return the end of a line's attempt, with what the line used of engines."""
    return Result(line.claimed.id, line.claimed.attempt, state, status, body, _used(line, status, body))


def _used(line: ClaimedLine, status: int, body: bytes) -> LineUse | None:
    if not line.is_sent or line.output is None:
        return None
    prompt, output = stated_tokens(body) if status == HTTPStatus.OK else line.output.tokens
    return LineUse(line.claimed.tenant, prompt, output, round(line.engine_s * 1e3))


@contextmanager
def _timed(line: ClaimedLine, clock: Clock) -> Iterator[None]:
    """Add the time inside to what the line was in engines for."""
    begun_s = clock.monotonic_s()
    try:
        yield
    finally:
        line.engine_s += clock.monotonic_s() - begun_s


def _headers(line: ClaimedLine, route: str, left_s: float) -> Mapping[str, str]:
    claimed = line.claimed
    headers = {"content-type": "application/json", "x-request-id": claimed.id, TENANT: claimed.tenant}
    if route not in GENERATING:  # engines refuse an SLO on other routes
        return headers
    headers["x-slo-class"] = claimed.slo_class
    headers["x-slo-promise"] = "0"  # a line is not refused because its class has a promise
    if left_s != math.inf:
        headers["x-slo-e2e-ms"] = str(left_ms(left_s))
    return headers


async def _read(parts: AsyncIterator[bytes]) -> bytes:
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > line_output.MOST_BYTES:
            raise TooLong
    return bytes(body)


async def _closable(answer: InstanceResponse) -> AsyncIterator[bytes]:
    """Iterate over the body, and close it however it ends; errors of the connection become BrokenOutput."""
    body = answer.body
    try:
        async for part in body:
            yield part
    except (OSError, EOFError) as error:
        raise BrokenOutput(f"the engine broke off its response: {error}") from error
    finally:
        close = getattr(body, "aclose", None)
        if close is not None:
            await cast(Awaitable[None], close())
