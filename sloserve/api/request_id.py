"""``x-request-id``: the client's, or a new one where it gives none; every answer repeats it, refusals of ours too."""

import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

from sloserve.api.refusal import first
from sloserve.wire.headers import REQUEST_ID, label


def identified(scope: Scope) -> tuple[Scope, str]:
    """The request with an id, and the id. Raises: InvalidRequest for one that is no label."""
    headers, name = scope["headers"], REQUEST_ID.encode()
    given = first(headers, name)
    if given:
        return scope, label(REQUEST_ID, given)
    made = uuid.uuid4().hex
    return {**scope, "headers": [h for h in headers if h[0] != name] + [(name, made.encode())]}, made


def repeating(request_id: str, send: Send) -> Send:
    """``send``, with the id in the answer's head."""

    async def repeat(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(raw=message["headers"])[REQUEST_ID] = request_id
        await send(message)

    return repeat
