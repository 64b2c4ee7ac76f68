"""The server of an agent's endpoint: ``GET /state``, and requests for its instances, passed to their engines.

It is an ASGI app. Only routes that clients may use pass: what puts an engine to sleep, or changes its weights, is for
the agent alone. Neither prompts nor outputs are logged.
"""

import asyncio
import hmac
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote

from sloserve.core.errors import BodyTooLarge
from sloserve.fleet.contract.endpoint import MODEL_HEADER, REFUSED_HEADER, Refusal, Refused, RequestEndpoint, keys_in
from sloserve.wire.asgi import (
    CLOSE,
    ClientLeft,
    Receive,
    Scope,
    Send,
    bearer,
    first,
    refuse,
)
from sloserve.wire.opening import BodyLimits, open_request

logger = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 256 << 20
_INSTANCES: Final = "/instances/"
_PASSED_ON: Final = (
    "/v1/",
    "/v2/",
    "/inference/",
    "/tokenize",
    "/detokenize",
    "/pooling",
    "/score",
    "/rerank",
    "/classify",
)
_KEPT_BACK: Final = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})


class AgentServer:
    """ASGI app of an agent's endpoint.

    Args:
        endpoints: Instances by name.
        state: Function that responds to ``GET /state``, given its query.
        key: Keys, one of which every request must show, as :func:`~sloserve.fleet.contract.endpoint.keys_in` reads
            them; ``None`` to ask for none.
    """

    def __init__(
        self,
        endpoints: Mapping[str, RequestEndpoint],
        state: Callable[[str, Send], Coroutine[None, None, None]],
        key: str | None = None,
    ) -> None:
        self._endpoints, self._state = endpoints, state
        self._keys = None if key is None else [one.encode() for one in keys_in(key)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if not self._has_key(bearer(first(scope["headers"], b"authorization"))):
            headers = [("www-authenticate", "Bearer"), (REFUSED_HEADER, Refusal.FAILED.value), CLOSE]
            await refuse(send, HTTPStatus.UNAUTHORIZED, "the key of the fleet is needed", headers=headers)
            return
        if (scope["method"], scope["path"]) == ("GET", "/state"):
            query = scope.get("query_string", b"").decode("latin-1")
            await _unless_left(receive, self._state(query, send))
            return
        name, path = _split(scope)
        endpoint = self._endpoints.get(name)
        if endpoint is None and name:
            # The gateway may know an instance that this process, which another one replaces, does not.
            headers = [(REFUSED_HEADER, Refusal.FAILED.value), CLOSE]
            message = f"there is no instance {name}; there are {', '.join(self._endpoints)}"
            await refuse(send, HTTPStatus.SERVICE_UNAVAILABLE, message, headers=headers)
            return
        if endpoint is None or path in _KEPT_BACK or not path.startswith(_PASSED_ON):
            names = ", ".join(self._endpoints)
            message = f"there is no such route; there are GET /state, and for {names} routes that clients may use"
            await refuse(send, HTTPStatus.NOT_FOUND, message, headers=[CLOSE])
            return
        request = await open_request(scope, receive, send, BodyLimits(MAX_BODY_BYTES, whole_s=math.inf))
        if request is None:
            return
        scope, send, request_id = request.scope, request.send, request.id
        try:
            body = await request.body.read()
            await _unless_left(receive, self._serve(endpoint, path, scope, body, send))
        except BodyTooLarge as error:
            await request.refuse(error)
        except ClientLeft:
            return
        except Refused as refused:
            logger.info("%s refuses request %s: %s", name, request_id, refused.reason)
            status = HTTPStatus.BAD_GATEWAY if refused.reason is Refusal.DIED else HTTPStatus.SERVICE_UNAVAILABLE
            message = f"instance {name} does not serve the request: {refused.reason}"
            await refuse(send, status, message, headers=[(REFUSED_HEADER, refused.reason)])
        except ConnectionResetError:
            # The server ends the connection, since the response is not complete.
            logger.warning("%s: the response to request %s broke off", name, request_id)

    def _has_key(self, given: bytes) -> bool:
        if self._keys is None:
            return True
        return any([hmac.compare_digest(given, key) for key in self._keys])  # each is compared, in the same time

    async def _serve(self, endpoint: RequestEndpoint, path: str, scope: Scope, body: bytes, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query = scope.get("query_string", b"").decode("latin-1")
        model = first(scope["headers"], MODEL_HEADER.encode()).decode()
        answer = await endpoint.send(scope["method"], f"{path}?{query}" if query else path, headers, body, model=model)
        try:
            # The head goes with the first part, since the request may be refused until then.
            try:
                part = await anext(answer.body, b"")
            except ConnectionResetError:
                raise Refused(Refusal.DIED) from None
            raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
            await send({"type": "http.response.start", "status": answer.status, "headers": raw})
            while part:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                part = await anext(answer.body, b"")
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()


async def _unless_left(receive: Receive, serving: Coroutine[None, None, None]) -> None:
    """Serve a request, and cancel that if the client leaves before the end. Raises: what ``serving`` raises."""
    leaves, serves = asyncio.ensure_future(_leaves(receive)), asyncio.ensure_future(serving)
    try:
        await asyncio.wait({leaves, serves}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaves.cancel()
        if not serves.done():
            serves.cancel()
            await asyncio.wait({serves})
    if not serves.cancelled():
        serves.result()


async def _leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _split(scope: Scope) -> tuple[str, str]:
    """Return the name of the instance and the route of its engine; both are empty if the path names no instance."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    if not path.startswith(_INSTANCES):
        return "", ""
    name, _, rest = path.removeprefix(_INSTANCES).partition("/")
    route = unquote(rest)
    # A path that HTTP clients would read as another one is refused: the engine must see the path that is checked here.
    if not {"", ".", ".."}.isdisjoint(route.split("/")) or not {"?", "#"}.isdisjoint(route):
        return "", ""
    return unquote(name), f"/{route}"
