"""The one way in which our servers open a request: first its id, then its body within limits.

What is wrong with either is an error of :mod:`sloserve.core.errors`, which :meth:`OpenedRequest.refuse` answers. A body
that only sloserve reads is JSON as its standard has it (:meth:`BoundedBody.json_object`); one that vLLM's server reads
as well is read as vLLM reads it (:mod:`sloserve.wire.body`). :func:`sloserve.wire.headers.remaining` reduces a
request's times when it is passed on to the next server.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from sloserve.core.errors import BodyTooLarge, BodyTooSlow, MalformedBody, SloServeError
from sloserve.wire import strict_json
from sloserve.wire.asgi import (
    CLOSE,
    ClientLeft,
    Message,
    Receive,
    Scope,
    Send,
    declares_more,
    opened,
    refuse_error,
    route_path,
)
from sloserve.wire.errors import form_of

SILENT_S: Final = 60.0
"""Seconds without any part of its body after which a request gets a response without the rest."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of the body of a request.

    Args:
        most_bytes: Most bytes of the body; inf for any length.
        whole_s: Seconds in which the whole body must come, where only waits for its parts count; inf for any time.
        bytes_per_s: Bytes that add a second to that time; inf for no addition.
    """

    most_bytes: float
    whole_s: float = SILENT_S
    bytes_per_s: float = math.inf


class BoundedBody:
    """The ``receive`` of a request, which ends the reading of a body beyond its limits.

    Messages after the body, such as the client's leaving, are passed on whenever they come.
    """

    def __init__(self, scope: Scope, receive: Receive, limits: BodyLimits) -> None:
        self._scope, self._receive, self._limits = scope, receive, limits
        self._read, self._waited_s = 0, 0.0
        self._is_bounded = True
        self.is_whole = False
        """Whether the body was read to its end."""

    def check_length(self) -> None:
        """Raise BodyTooLarge if the request declares a body that is longer than the limit."""
        if declares_more(self._scope["headers"], self._limits.most_bytes):
            raise BodyTooLarge(self._limits.most_bytes)

    async def __call__(self) -> Message:
        """Return the next message.

        Raises: BodyTooLarge, BodyTooSlow.
        """
        if not self._is_bounded:
            return await self._receive()
        message = await self._in_time()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > self._limits.most_bytes:
                raise BodyTooLarge(self._limits.most_bytes)
            if not message.get("more_body", False):
                self.is_whole, self._is_bounded = True, False
        return message

    def is_answered(self) -> None:
        """Lift the limits of the rest of the body, since the response has begun."""
        self._is_bounded = False

    async def _in_time(self) -> Message:
        limits = self._limits
        if limits.whole_s == math.inf:
            return await self._receive()
        clock = asyncio.get_running_loop().time
        began_s, left_s = clock(), limits.whole_s + self._read / limits.bytes_per_s - self._waited_s
        try:
            async with asyncio.timeout(min(limits.whole_s, left_s)):
                return await self._receive()
        except TimeoutError:
            raise BodyTooSlow(limits.whole_s, limits.bytes_per_s) from None
        finally:
            self._waited_s += clock() - began_s

    async def read(self, take: Callable[[int], None] = lambda size: None) -> bytes:
        """Return the whole body.

        Args:
            take: Called with the size of each part in bytes before the part is kept; an error that it raises ends the
                reading.

        Raises: BodyTooLarge, before any of the body is read if its declared length is too large; BodyTooSlow;
        ClientLeft.
        """
        self.check_length()
        parts: list[bytes] = []
        while not self.is_whole:
            message = await self()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part = message.get("body", b"")
            take(len(part))
            parts.append(part)
        return b"".join(parts)

    async def json_object(self) -> dict[str, Any]:
        """Return the whole body as an object of JSON with unique keys.

        Raises: the errors of :meth:`read`; MalformedBody.
        """
        body = await self.read()
        try:
            values = strict_json.loads(body)
        except ValueError as error:
            raise MalformedBody(str(error)) from None
        if not isinstance(values, dict):
            raise MalformedBody("is not a JSON object")
        return values


@dataclass(frozen=True, slots=True)
class OpenedRequest:
    """A request with an id, the client's or a new one.

    Args:
        scope: ASGI's scope, with the id in its headers.
        body: The body, to be read, or to be passed on as ``receive``.
        send: ASGI's ``send``, which repeats the id in the head of the response.
        at_once: The server's own ``send``, for a head that has the id already.
    """

    id: str
    scope: Scope
    body: BoundedBody
    send: Send
    at_once: Send

    @property
    def closing(self) -> list[tuple[str, str]]:
        """Headers of a refusal: a connection with an unread body is closed with it."""
        return [] if self.body.is_whole else [CLOSE]

    async def refuse(self, error: SloServeError, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Answer the request with an error, in the form of its route."""
        form = form_of(route_path(self.scope))
        await refuse_error(self.send, error, [*headers, *self.closing], form=form)


async def open_request(scope: Scope, receive: Receive, send: Send, limits: BodyLimits) -> OpenedRequest | None:
    """Return the request, with its body unread; ``None`` if its id is no label, in which case it was refused."""
    found = await opened(scope, send)
    if found is None:
        return None
    scope, repeating, request_id = found
    return OpenedRequest(request_id, scope, BoundedBody(scope, receive, limits), repeating, send)
