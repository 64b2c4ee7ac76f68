"""The page for watching a server, built from ``clients/page``: files that hold no data, so no key is asked for them.

Which file is sent is looked up by name in what the package holds; no path of a request is opened. Beside the files
:data:`ABOUT` says which kind of server this is. The page asks for the admin key, keeps it in its tab, and shows it to
the admin routes alone.
"""

import json
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from types import MappingProxyType
from typing import Final

from sloserve.wire.asgi import Scope, Send, answer, route_path

_TYPES: Final = MappingProxyType(
    {
        "index.html": "text/html; charset=utf-8",
        "page.js": "text/javascript; charset=utf-8",
        "page.css": "text/css; charset=utf-8",
        "LICENSES.txt": "text/plain; charset=utf-8",
    }
)
_HEADERS: Final = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-cache"),
)


@cache
def _bodies() -> Mapping[str, bytes]:
    folder = files("sloserve.wire") / "page"
    return {name: (folder / name).read_bytes() for name in _TYPES}


ABOUT: Final = "about.json"
"""What the page says before it has a key: the kind of server, as the signpost at ``/`` says it."""

_NO_PAGE: Final = "start it with SLOSERVE_ADMIN_KEY in its environment to get the page that shows what it does now"


async def sent_signpost(scope: Scope, send: Send, what: str, *, watched: bool) -> bool:
    """Answer a GET of ``/`` with where the page and the API are; return ``False`` for any other request.

    Args:
        scope: ASGI's scope of the request.
        send: ASGI's ``send``.
        what: The kind of server, in words for people.
        watched: Whether the server has the page.
    """
    root = scope.get("root_path", "")
    if scope["method"] != "GET" or route_path(scope) != "/":
        return False
    page = f"what it does now: {root}/sloserve/ (asks for the admin key)" if watched else _NO_PAGE
    text = f"{what} of sloserve\n\n{page}\nthe API: {root}/v1/models\n"
    await answer(send, HTTPStatus.OK, text.encode(), "text/plain; charset=utf-8", _HEADERS)
    return True


async def sent_page(scope: Scope, send: Send, name: str, what: str) -> bool:
    """Answer a GET for the page or one of its files; return ``False`` for any other request.

    Args:
        scope: ASGI's scope of the request.
        send: ASGI's ``send``.
        name: The rest of the path behind the prefix, empty for the page itself.
        what: The kind of server, ``server`` or ``gateway``.
    """
    name = name or "index.html"
    if scope["method"] == "GET" and name == ABOUT:
        await answer(send, HTTPStatus.OK, json.dumps({"what": what}).encode(), "application/json", _HEADERS)
        return True
    if scope["method"] != "GET" or name not in _TYPES:
        return False
    await answer(send, HTTPStatus.OK, _bodies()[name], _TYPES[name], _HEADERS)
    return True
