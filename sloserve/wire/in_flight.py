"""The requests that one process serves now, by their ids, and the route that says how far one of them has come.

The index holds requests in flight alone: each is entered when it begins and taken out when its response has ended. A
tenant finds its own requests only. Requests of other processes of the server are not known here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from sloserve.wire.asgi import Scope, Send, answer_json, refuse, route_path
from sloserve.wire.progress import RequestProgress, as_json

REQUESTS: Final = "/sloserve/requests/"
"""Prefix of the route; the id of the request follows."""

_NOT_STORED: Final = ("cache-control", "no-store")

LookUp = Callable[[], RequestProgress | None]
"""Returns how far a request has come; ``None`` before its admission."""


class RequestsInFlight:
    """Finds requests in flight by tenant and id."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, str], LookUp] = {}

    def __len__(self) -> int:
        return len(self._known)

    @contextmanager
    def entered(self, tenant: str | None, request_id: str, look_up: LookUp) -> Iterator[None]:
        """Know a request until the block ends; of two requests of one id the later one is known."""
        key = tenant, request_id
        self._known[key] = look_up
        try:
            yield
        finally:
            if self._known.get(key) is look_up:
                del self._known[key]

    def find(self, tenant: str | None, request_id: str) -> RequestProgress | None:
        """Return how far a tenant's request has come; ``None`` if there is no such request."""
        look_up = self._known.get((tenant, request_id))
        return None if look_up is None else look_up()


async def answer_progress(scope: Scope, send: Send, known: RequestsInFlight, tenant: str | None, hint: str) -> None:
    """Answer a request for the progress of another one.

    Args:
        scope: ASGI's scope of the request.
        send: ASGI's ``send`` of the request.
        known: The requests in flight.
        tenant: Tenant that asks; ``None`` for none.
        hint: Words for the client on where else the request may be.
    """
    if scope["method"] != "GET":
        message = f"{REQUESTS}ID: the method is GET"
        await refuse(send, HTTPStatus.METHOD_NOT_ALLOWED, message, headers=[("allow", "GET")])
        return
    request_id = route_path(scope).removeprefix(REQUESTS)
    found = known.find(tenant, request_id)
    if found is None:
        message = f"no request of yours with this x-request-id is waiting or running here{hint}"
        await refuse(send, HTTPStatus.NOT_FOUND, message, headers=[_NOT_STORED])
        return
    await answer_json(send, HTTPStatus.OK, as_json(request_id, found), [_NOT_STORED])
