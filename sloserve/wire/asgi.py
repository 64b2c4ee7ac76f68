"""What all HTTP servers of ours do alike, in plain ASGI: refusals in OpenAI's format, request ids."""

import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any

from sloserve.core import json_text
from sloserve.core.errors import InvalidRequest, SloServeError, Unauthorized
from sloserve.core.slo import SLO
from sloserve.wire import errors
from sloserve.wire.headers import REQUEST_ID, label

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SLO_KNOWN = "sloserve.slo_known"
"""ASGI extension of a server that sends responses by their SLO: a function that takes the :class:`SLO` of the request.

The application calls it once it has read the whole request, and so knows more than its headers say.
"""

CLOSE = ("connection", "close")
"""Header of a response to a request if the body of the request is not read to its end."""


def report_slo(scope: Scope, slo: SLO) -> None:
    """Report to the server, if it asks for it, the SLO that a request has turned out to have."""
    notify = (scope.get("extensions") or {}).get(SLO_KNOWN)
    if notify is not None:
        notify(slo)


async def unsent() -> None:
    """Return at once: a ``send`` returns this for a message that it keeps."""


async def refuse(
    send: Send,
    status: HTTPStatus,
    message: str,
    param: str | None = None,
    headers: Iterable[tuple[str, str]] = (),
    form: errors.ErrorBody = errors.body,
) -> None:
    """Answer a request with an error.

    Args:
        send: ASGI's ``send`` of the request.
        status: Status of the response.
        message: Words for the client.
        param: The field at fault, as the client wrote it.
        headers: Further headers of the response.
        form: Makes the body of the response, see :func:`~sloserve.wire.errors.form_of`.
    """
    await answer_json(send, status, form(status, message, param), headers)


async def refuse_error(
    send: Send,
    error: SloServeError,
    headers: Iterable[tuple[str, str]] = (CLOSE,),
    param: str | None = None,
    form: errors.ErrorBody = errors.body,
) -> None:
    """Answer a request with an error of ours.

    Args:
        send: ASGI's ``send`` of the request.
        error: The error, which fixes the status and some headers.
        headers: Headers of the response beside the headers of the error.
        param: The field at fault, for an error that names none.
        form: Makes the body of the response, see :func:`~sloserve.wire.errors.form_of`.
    """
    every = [*errors.headers(error), *headers]
    await refuse(send, errors.status(error), str(error), getattr(error, "param", param), every, form)


async def answer_json(send: Send, status: HTTPStatus, value: Any, headers: Iterable[tuple[str, str]] = ()) -> None:
    """Answer a request with ``value`` as JSON."""
    await answer(send, status, json_text.dumps(value).encode(), "application/json", headers)


async def answer(
    send: Send, status: HTTPStatus, body: bytes, content_type: str, headers: Iterable[tuple[str, str]] = ()
) -> None:
    """Answer a request with ``body``."""
    own = [("content-type", content_type), ("content-length", str(len(body)))]
    raw = [(name.encode(), value.encode()) for name, value in (*own, *headers)]
    await send({"type": "http.response.start", "status": status.value, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def route_path(scope: Scope) -> str:
    """Return the path below the prefix under which the server stands (``root_path``), as Starlette's router does."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path.removeprefix(root) if path == root or path.startswith(f"{root}/") else path


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """Return the value of a header, empty if it is missing; of repeated headers the first, as vLLM reads it."""
    for found, value in headers:
        if found == name:
            return value
    return b""


def bearer(authorization: bytes) -> bytes:
    """Return the key in an ``Authorization`` header of this value; empty if it holds none."""
    scheme, _, shown = authorization.partition(b" ")
    return shown.strip() if scheme.lower() == b"bearer" else b""


def key_in(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the key that a request shows, as OpenAI's or as Anthropic's clients send it; empty if it shows none."""
    headers = list(headers)
    return bearer(first(headers, b"authorization")) or first(headers, b"x-api-key").strip()


async def shows_admin_key(scope: Scope, send: Send, key: bytes) -> bool:
    """Return whether a request shows the admin key; if not, answer it with 401 without reading its body."""
    if secrets.compare_digest(bearer(first(scope["headers"], b"authorization")), key):
        return True
    await refuse_error(send, Unauthorized("the admin key is needed: Authorization: Bearer KEY"))
    return False


def declares_more(headers: Iterable[tuple[bytes, bytes]], max_bytes: float) -> bool:
    """Return whether a request declares a body longer than ``max_bytes``."""
    declared = first(headers, b"content-length")
    return declared.isdigit() and int(declared[:20]) > max_bytes


class ClientLeft(Exception):
    """The client left before the end of the body that is being read."""


async def opened(scope: Scope, send: Send) -> tuple[Scope, Send, str] | None:
    """Give a request an id; return the request, a ``send`` that repeats the id in the response, and the id.

    The result is ``None`` if the client's own id is no label: then the request was refused.
    """
    try:
        scope, request_id = identified(scope)
    except InvalidRequest as error:
        await refuse_error(send, error)
        return None
    return scope, repeating(request_id, send), request_id


def identified(scope: Scope) -> tuple[Scope, str]:
    """Return the request with an id, the client's or a new one, and the id.

    Raises: InvalidRequest if the client's id is no label.
    """
    headers, name = scope["headers"], REQUEST_ID.encode()
    given = first(headers, name)
    if given:
        return scope, label(REQUEST_ID, given)
    made = secrets.token_hex(16)
    return {**scope, "headers": [h for h in headers if h[0] != name] + [(name, made.encode())]}, made


def repeating(request_id: str, send: Send) -> Send:
    """Return ``send`` with the id in the head of the response; every response has it, refusals of ours too.

    Functions that wrap ``send`` return what it returns: each token of a stream passes through all of them, and to await
    within a coroutine of their own would cost more than everything else they do.
    """
    name = REQUEST_ID.encode()

    def repeat(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            kept = [header for header in message["headers"] if header[0].lower() != name]
            message["headers"] = [*kept, (name, request_id.encode())]
        return send(message)

    return repeat
