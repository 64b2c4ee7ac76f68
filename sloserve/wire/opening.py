"""How every server of ours opens a request: once, its id first, then its body within limits.

What is wrong with either is an error of :mod:`sloserve.core.errors`, which :meth:`OpenedRequest.refuse` answers. A body
that only sloserve reads is JSON as its standard has it (:meth:`BoundedBody.json_object`); one that vLLM's server reads
as well is read as vLLM reads it (:mod:`sloserve.wire.body`). What is left of a request's times when it goes on to the
next server: :func:`sloserve.wire.headers.remaining`.
"""

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from sloserve.core.errors import BodyTooLarge, BodyTooSlow, MalformedBody, SloServeError
from sloserve.wire import strict_json
from sloserve.wire.asgi import CLOSE, ClientLeft, Message, Receive, Scope, Send, declares_more, opened, refuse_error

SILENT_S: Final = 60.0
"""A client that sends nothing of its body for so long is answered without it."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What the body of a request may be.

    Args:
        most_bytes: inf for any length.
        whole_s: time in which it must come whole, waits for its parts alone; inf for any time.
        bytes_per_s: so many add a second to that; inf for none.
    """

    most_bytes: float
    whole_s: float = SILENT_S
    bytes_per_s: float = math.inf


class BoundedBody:
    """The ``receive`` of a request, which ends the reading of a body beyond its limits. What follows a body, as that
    its client leaves, is passed on whenever it comes.
    """

    def __init__(self, scope: Scope, receive: Receive, limits: BodyLimits) -> None:
        self._scope, self._receive, self._limits = scope, receive, limits
        self._read, self._waited_s = 0, 0.0
        self._is_bounded = True
        self.is_whole = False
        """Whether it was read to its end."""

    def check_length(self) -> None:
        """Raises: BodyTooLarge where the request says that its body is longer than may be."""
        if declares_more(self._scope["headers"], self._limits.most_bytes):
            raise BodyTooLarge(self._limits.most_bytes)

    async def __call__(self) -> Message:
        """The next message. Raises: BodyTooLarge; BodyTooSlow."""
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
        """What still comes of it is bounded no more, since the answer has begun."""
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
        """The whole body.

        take: is told the size of each part before it is kept; what it raises ends the reading.
        Raises: BodyTooLarge, where it is declared before any of it is read; BodyTooSlow; ClientLeft.
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
        """The whole body as an object of JSON, each key once. Raises: as :meth:`read`; MalformedBody."""
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
        scope: with the id in its headers.
        body: to be read, or to be passed on as ``receive``.
        send: repeats the id in the answer's head. at_once: the server's own, for a head that has the id already.
    """

    id: str
    scope: Scope
    body: BoundedBody
    send: Send
    at_once: Send

    @property
    def closing(self) -> list[tuple[str, str]]:
        """Headers of a refusal: where the body is not read to its end, the connection ends with that."""
        return [] if self.body.is_whole else [CLOSE]

    async def refuse(self, error: SloServeError, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Answers with what is wrong."""
        await refuse_error(self.send, error, [*headers, *self.closing])


async def open_request(scope: Scope, receive: Receive, send: Send, limits: BodyLimits) -> OpenedRequest | None:
    """The request, of whose body nothing is read yet; ``None`` where its id is none: then it was refused."""
    found = await opened(scope, send)
    if found is None:
        return None
    scope, repeating, request_id = found
    return OpenedRequest(request_id, scope, BoundedBody(scope, receive, limits), repeating, send)
