"""The live feed of a server, read to its end: what it shows is kept up to date, one view after another."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx
from httpx_sse import SSEError, connect_sse

from sloserve.client.http_clients import http_client, proxy_remark
from sloserve.core.errors import ConfigError

PATH: Final = "/sloserve/events"
ROWS: Final = "rows"
_LIMIT_S = 10.0
"""A frame comes twice a second: where none comes for so long, the server is lost."""


class LostServer(Exception):
    """The feed ended, or no server answers; says which."""


def applied(view: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The view after a change: its rows one by one, where ``None`` takes one away; other parts as wholes."""
    rows = {**view[ROWS], **change.get(ROWS, {})}
    return {**view, **change, ROWS: {key: row for key, row in rows.items() if row is not None}}


def watch(url: str, key: str, transport: httpx.BaseTransport | None = None) -> Iterator[dict[str, Any]]:
    """Each view of the server at ``url`` as it comes; what one holds is described in docs/watch.md.

    key: of its admin routes. transport: in tests.
    Raises: ConfigError where the server refuses; LostServer where there is none, or it goes.
    """
    given = {} if transport is None else {"transport": transport}
    try:
        with (
            http_client(url, key=key, timeout=httpx.Timeout(_LIMIT_S), **given) as http,
            connect_sse(http, "GET", PATH) as source,
        ):
            _check(url, source.response)
            view: dict[str, Any] | None = None
            for event in source.iter_sse():
                if event.event == "snapshot":
                    view = json.loads(event.data)
                elif view is not None:
                    view = applied(view, json.loads(event.data))
                if view is not None:
                    yield view
    except (httpx.HTTPError, SSEError) as error:
        raise LostServer(f"{url}{proxy_remark(url)}: {error or type(error).__name__}") from error
    raise LostServer(f"{url} ended the feed: it stops, or this client read too slowly")


def _check(url: str, response: httpx.Response) -> None:
    if response.status_code == httpx.codes.OK:
        return
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise ConfigError(f"{url} refuses the key; SLOSERVE_ADMIN_KEY must be that of the server")
    if response.status_code == httpx.codes.NOT_FOUND:
        raise ConfigError(f"{url} has no live feed; it must be started with SLOSERVE_ADMIN_KEY")
    response.read()
    raise LostServer(f"{url}{proxy_remark(url)} answers {response.status_code}: {_message(response)}")


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]
