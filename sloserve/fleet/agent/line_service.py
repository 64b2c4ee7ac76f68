"""Sends one line through a door, and reads what comes back."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, cast

from sloserve.core.clock import Clock
from sloserve.fleet.agent import line_reply
from sloserve.fleet.agent.claims import Line
from sloserve.fleet.agent.line_reply import Broken, LineReply, TooLong, was_aborted
from sloserve.fleet.contract.door import Answer, Door, Refusal, Refused
from sloserve.fleet.store.records import RequestState, Result
from sloserve.wire.headers import left_ms

RETRY_S: Final = 1.0
_TRIES: Final = 5
"""How often a line is sent to an engine that breaks it off and lives, with 1, 2, 4 and 8 s in between."""
_BUSY: Final = (429, 503)
"""An engine that answers so may take the line later."""


async def attempted(door: Door, line: Line, clock: Clock) -> Result:
    """How the line ended. Raises: Refused where it waits for its turn again; TimeoutError at its deadline."""
    reply = line.reply = line.reply or LineReply.of(line.claimed)
    for attempt in range(1, _TRIES + 1):
        try:
            status, body = await _asked(door, line, reply, line.due_s - clock.monotonic_s())
            if status in _BUSY:
                await asyncio.sleep(RETRY_S)
                raise Refused(Refusal.FULL)
            if status < 500 or attempt == _TRIES:
                return result_of(line, RequestState.DONE, status, body)
        except Broken as broken:
            line.is_sent = True
            if attempt == _TRIES or isinstance(broken, TooLong):
                return result_of(line, RequestState.FAILED, 502, str(broken).encode())
            progress = reply.progress() or line.claimed.progress
            reply = line.reply = LineReply.of(replace(line.claimed, progress=progress))
        # If it was the engine's death, died() takes the line from here.
        await asyncio.sleep(RETRY_S * 2 ** (attempt - 1))
    raise AssertionError("the last attempt returns")


async def _asked(door: Door, line: Line, reply: LineReply, left_s: float) -> tuple[int, bytes]:
    headers = _headers(line, left_s)
    try:
        answer = await door.send("POST", reply.path, headers, reply.body(), model=line.model, durable=True)
    except Refused as refused:
        if refused.reason is Refusal.DIED:
            raise Broken("the engine died with the request") from refused
        raise
    line.is_sent = True
    async with aclosing(cast(Any, _closable(answer))) as parts:
        if answer.status != 200 or not reply.is_streamed:
            body = await _read(parts)
            if answer.status == 200 and was_aborted(body):
                raise Broken("the engine aborted the request")
            return answer.status, body
        async for part in parts:
            reply.add(part)
    return 200, reply.whole()


def result_of(line: Line, state: RequestState, status: int, body: bytes) -> Result:
    return Result(line.claimed.id, line.claimed.attempt, state, status, body)


def _headers(line: Line, left_s: float) -> Mapping[str, str]:
    claimed = line.claimed
    headers = {"content-type": "application/json", "x-request-id": claimed.id, "x-slo-class": claimed.slo_class}
    if left_s != math.inf:
        headers["x-slo-e2e-ms"] = str(left_ms(left_s))
    return headers


async def _read(parts: AsyncIterator[bytes]) -> bytes:
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > line_reply.MOST_BYTES:
            raise TooLong
    return bytes(body)


async def _closable(answer: Answer) -> AsyncIterator[bytes]:
    """The body, closed however it ends; what the connection raises is a broken answer."""
    body = answer.body
    try:
        async for part in body:
            yield part
    except (OSError, EOFError) as error:
        raise Broken(f"the engine broke off its answer: {error}") from error
    finally:
        close = getattr(body, "aclose", None)
        if close is not None:
            await cast(Awaitable[None], close())
