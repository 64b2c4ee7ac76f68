"""The live feed of a server, read to its end: what it shows is kept up to date, one view after another."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import httpx
from httpx_sse import SSEError

from sloserve.client.http_clients import http_client, proxy_remark
from sloserve.client.responses import IDENTITY, UnreadableResponse, body, events, json_value, refusal_text
from sloserve.core.errors import ConfigError

PATH: Final = "/sloserve/events"
ROWS: Final = "rows"
_ASKED: Final = IDENTITY | {"accept": "text/event-stream", "cache-control": "no-store"}
_MOST_ROWS: Final = 100_000
"""A server sends a few hundred; what changes add to them must not fill this client's memory."""
_LIMIT_S = 10.0
"""Seconds without a frame after which the server is lost; a frame comes twice a second."""


class LostServer(Exception):
    """An error that states that the feed ended, or that no server responds."""


def applied(view: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the view after a change: rows are replaced one by one (``None`` removes one), other parts as wholes."""
    rows = {**view[ROWS], **change.get(ROWS, {})}
    return {**view, **change, ROWS: {key: row for key, row in rows.items() if row is not None}}


def watch(url: str, key: str, transport: httpx.BaseTransport | None = None) -> Iterator[dict[str, Any]]:
    """Yield each view of the server at ``url`` as it comes; docs/watch.md describes what a view holds.

    Args:
        url: Address of the server.
        key: Key of its admin routes.
        transport: Replaces the network in tests.

    Raises: ConfigError where the server refuses; LostServer if there is none, or it goes.
    """
    given = {} if transport is None else {"transport": transport}
    http = http_client(url, key=key, timeout=httpx.Timeout(_LIMIT_S), **given)
    try:
        with http, http.stream("GET", PATH, headers=_ASKED) as response:
            _check(url, http, response)
            view: dict[str, Any] | None = None
            for event in events(response):
                part = json_value(event.data, dict[str, Any])
                if not isinstance(part.get(ROWS, {}), dict):
                    raise UnreadableResponse(f"{ROWS} that are not an object")
                if event.event == "snapshot":
                    view = {ROWS: {}} | part
                elif view is not None:
                    view = applied(view, part)
                if view is not None:
                    if max(len(view), len(view[ROWS])) > _MOST_ROWS:
                        raise UnreadableResponse(f"more than {_MOST_ROWS} rows")
                    yield view
    except httpx.ConnectError as error:
        remedy = "is the server up, and is --url its address?"
        raise LostServer(f"cannot reach {url}{proxy_remark(http)} ({error}); {remedy}") from error
    except (httpx.HTTPError, SSEError) as error:
        raise LostServer(f"{url}{proxy_remark(http)}: {error or type(error).__name__}") from error
    except UnreadableResponse as error:
        raise LostServer(f"{url} sends a feed that this version cannot read: {error}") from error
    raise LostServer(f"{url} ended the feed: it stops, or this client read too slowly")


def _check(url: str, http: httpx.Client, response: httpx.Response) -> None:
    if response.status_code == httpx.codes.OK:
        return
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise ConfigError(f"{url} refuses the key; SLOSERVE_ADMIN_KEY must be the server's key")
    if response.status_code == httpx.codes.NOT_FOUND:
        raise ConfigError(f"{url} has no live feed; it must be started with SLOSERVE_ADMIN_KEY")
    raise LostServer(f"{url}{proxy_remark(http)} responds with {response.status_code}: {refusal_text(body(response))}")
