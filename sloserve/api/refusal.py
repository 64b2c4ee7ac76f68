"""Answers of ours in place of the server's: an error in OpenAI's format."""

import json
from collections.abc import Iterable
from http import HTTPStatus

from starlette.types import Message, Receive, Send

from sloserve.wire import errors

CLOSE = ("connection", "close")
"""Goes with an answer to a request whose body is not read to its end."""


async def refuse(
    send: Send, status: HTTPStatus, message: str, param: str | None = None, headers: Iterable[tuple[str, str]] = ()
) -> None:
    """Answers a request with an error. param: the field at fault, as the client wrote it."""
    body = json.dumps(errors.body(status, message, param)).encode()
    own = [("content-type", "application/json"), ("content-length", str(len(body)))]
    raw = [(name.encode(), value.encode()) for name, value in (*own, *headers)]
    await send({"type": "http.response.start", "status": status.value, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """A header's value, empty where it is missing; of one given twice the first, which is what vLLM's server reads."""
    return next((value for found, value in headers if found == name), b"")


def declares_more(headers: Iterable[tuple[bytes, bytes]], max_bytes: int) -> bool:
    """Whether a request says that its body is longer than ``max_bytes``."""
    declared = first(headers, b"content-length")
    return declared.isdigit() and int(declared[:20]) > max_bytes


class BodyTooLarge(Exception):
    """Raised to the reader of a body that has passed its limit; answered with 413."""


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """The whole body of a request. Raises: BodyTooLarge once it has passed ``max_bytes``; the rest is not read."""
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message: Message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise BodyTooLarge
        parts.append(part)
        more = message.get("more_body", False)
    return b"".join(parts)
