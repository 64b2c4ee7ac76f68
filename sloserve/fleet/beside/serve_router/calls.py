"""What a call of a deployment says of a request, whatever the deployment takes as its arguments.

Ray Serve's LLM deployments take a request of OpenAI's API as an object, and the headers of its HTTP request beside it;
other deployments take a mapping or JSON. A deployment that serves HTTP itself gets the headers here, and not the body.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from sloserve.fleet.client_routes import CHAT, COMPLETIONS

_MOST_BYTES: Final = 4 << 20
"""Most bytes of a body that is read."""


class Call(NamedTuple):
    """A request, as far as a call shows it.

    Args:
        headers: Headers, with names in lower case.
        body: Body; ``None`` if it is not there.
        path: Path of the route.
    """

    headers: list[tuple[bytes, bytes]]
    body: bytes | None
    path: str


def read_call(arguments: Iterable[Any], named: Mapping[Any, Any]) -> Call:
    """Return what the arguments of a call say of a request."""
    headers: list[tuple[bytes, bytes]] = []
    body: bytes | None = None
    path = None
    for value in (*arguments, *named.values()):
        scope = getattr(value, "asgi_scope", None)
        stated = getattr(value, "headers", None)
        if isinstance(scope, Mapping):
            headers = [(bytes(name).lower(), bytes(text)) for name, text in scope.get("headers", ())]
            path = str(scope.get("path", ""))
        elif isinstance(stated, Mapping):
            headers = [(str(name).lower().encode(), str(text).encode()) for name, text in stated.items()]
        elif body is None:
            body = _body_of(value)
    if body is not None and len(body) > _MOST_BYTES:
        body = None
    return Call(headers, body, path or (CHAT if body is not None and b'"messages"' in body else COMPLETIONS))


def _body_of(value: Any) -> bytes | None:
    """Return the body that an argument is; ``None`` for any other argument."""
    to_json = getattr(value, "model_dump_json", None)
    try:
        if callable(to_json):
            return str(to_json(exclude_unset=True)).encode()
        if isinstance(value, Mapping):
            return json.dumps(dict(value), separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError):
        return None
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) and value.startswith("{") else None
