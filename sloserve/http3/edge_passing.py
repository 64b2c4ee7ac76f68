"""The edge's side towards its clients: it passes on what they send, and the response as it comes."""

import asyncio
import json
from collections import deque
from http import HTTPStatus

from sloserve.core.errors import BodyTooSlow
from sloserve.http3.answer_service import EVENT_STREAM
from sloserve.http3.client_connection import BrokenOff, Lost, Reply
from sloserve.wire import errors
from sloserve.wire.asgi import CLOSE, Message, Receive, refuse
from sloserve.wire.headers import HOP_BY_HOP
from sloserve.wire.opening import OpenedRequest


class ReadAhead:
    """What the client sends while its request waits: a body in one part, or its first part, and a disconnect."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: deque[Message] = deque()

    async def __call__(self) -> Message:
        """Return the next message, as ASGI has it."""
        return self._messages.popleft() if self._messages else await self._receive()

    async def until_left(self) -> Message:
        """Return once the client has left."""
        while not self._messages or self._messages[-1]["type"] == "http.request":
            if self._messages and self._messages[-1].get("more_body", False):
                await asyncio.Event().wait()  # the rest of a long body stays with the client
            self._messages.append(await self._receive())
        return self._messages[-1]


class Left(BrokenOff):
    """The client of the edge is gone."""


async def upload_body(reply: Reply, receive: Receive) -> None:
    """Pass the request's body on; then watch for the client to leave, which cancels the request.

    A body that does not come cancels the request as well, since the request holds a place that others wait for.
    """
    more = True
    why: Exception = Left("the client has left")
    try:
        while (message := await receive())["type"] == "http.request":
            if more:
                more = message.get("more_body", False)
                await reply.send(message.get("body", b""), end=not more)
    except BodyTooSlow as error:
        why = error
    reply.cancel()
    reply.fail(why)


async def answer(reply: Reply, request: OpenedRequest) -> None:
    """Pass the response on.

    A response that breaks off before its head becomes a 502; a stream of events that breaks off ends with an error.

    Raises: BrokenOff, Lost or BodyTooSlow where all that is left is to break off the response to the client as well.
    """
    send = request.send
    try:
        await reply.head()
    except Left:
        return
    except BodyTooSlow as error:
        await request.refuse(error)
        return
    except (Lost, BrokenOff) as error:
        message = f"the engine host did not answer: {error}; retry"
        await refuse(send, HTTPStatus.BAD_GATEWAY, message, headers=[CLOSE])
        return
    headers = [(name, value) for name, value in reply.headers if name not in HOP_BY_HOP]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    try:
        async for part in reply.body():
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except Left:
        return
    except (Lost, BrokenOff, BodyTooSlow) as error:
        if not any(name == b"content-type" and value.startswith(EVENT_STREAM) for name, value in headers):
            raise
        said = errors.body(HTTPStatus.BAD_GATEWAY, f"the engine host ended the response early: {error}; retry")
        await send({"type": "http.response.body", "body": b"data: " + json.dumps(said).encode() + b"\n\n"})
        return
    await send({"type": "http.response.body"})
