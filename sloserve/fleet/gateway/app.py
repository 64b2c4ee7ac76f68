"""The gateway as an ASGI app: it finds the tenant and the route of a request, and reports errors to its client.

Routes are an allow list. The key is checked before anything of a body is read.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Router

from sloserve.core.errors import EngineError, QueueFull, ShuttingDown, SloServeError, Unauthorized, UnknownModel
from sloserve.fleet.client_routes import FORWARDED, RESPONSES
from sloserve.fleet.gateway.agent_connections import BrokenResponse
from sloserve.fleet.gateway.fleet_view import PREFIX as WATCH_PREFIX
from sloserve.fleet.gateway.fleet_view import WatchRoutes
from sloserve.fleet.gateway.forward import ForwardedRequest
from sloserve.fleet.gateway.instances import STATES
from sloserve.fleet.gateway.keys import KeyFile, Tenant
from sloserve.fleet.gateway.model_choice import CHOSEN_MODEL
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.fleet.gateway_settings import CorsSettings
from sloserve.wire import errors
from sloserve.wire.asgi import (
    CLOSE,
    ClientLeft,
    Receive,
    Scope,
    Send,
    answer,
    answer_json,
    key_in,
    refuse,
    refuse_error,
)
from sloserve.wire.headers import EXPOSED
from sloserve.wire.in_flight import REQUESTS, answer_progress
from sloserve.wire.opening import BodyLimits, OpenedRequest, open_request
from sloserve.wire.watch_page import sent_signpost

logger = logging.getLogger(__name__)

App = Callable[[Scope, Receive, Send], Awaitable[None]]

BATCHES: Final = ("/v1/files", "/v1/batches")
MOST_CALLS_OF_TENANT: Final = 64
TENANT: Final = "sloserve.tenant"
"""Key of a scope under which the tenant of the request stands."""

_METHODS: Final = ("GET", "POST", "DELETE")
_PAGE: Final = "text/plain; version=0.0.4; charset=utf-8"
_MODELS: Final = "/v1/models"
_NOT_KEPT: Final = "this fleet gives no response out again; keep the one that POST /v1/responses returned"
_NO_KEY: Final = "no key of this fleet is shown; send one as Authorization: Bearer KEY, or as x-api-key: KEY"
_AGAIN_S: Final = 5
_STOPPING: Final = f"the gateway stops, and no instance has responded to the request yet; retry in {_AGAIN_S} s"
_ELSEWHERE: Final = "; another gateway of this fleet may have it"
_NOT_AGAIN: Final = ("x-should-retry", "false")
"""Header that keeps OpenAI's clients from repeating a request that may have killed engines."""


class GatewayApp:
    """The ASGI app that clients reach.

    Args:
        parts: State that all requests of the gateway share.
        keys: File of keys, which gives the tenant of a request.
        batches: Routes of files and batches; each finds its tenant at :data:`TENANT` in its scope.
        watching: Routes for clients that have the admin key.
        cors: Pages of other origins that may use the gateway; ``None`` for none.
        start: Called before anything is served.
        stop: Called after everything was served.
        is_ready: Whether requests can be served.
        is_leaving: Whether the process will soon take no more connections, and others should get its requests.
    """

    def __init__(
        self,
        parts: GatewayState,
        keys: KeyFile,
        batches: Router | None,
        watching: WatchRoutes | None = None,
        *,
        cors: CorsSettings | None = None,
        start: Callable[[], Awaitable[None]],
        stop: Callable[[], Awaitable[None]],
        is_ready: Callable[[], bool],
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._parts, self._keys, self._batches, self._watching = parts, keys, batches, watching
        self._start, self._stop, self._is_ready, self._is_leaving = start, stop, is_ready, is_leaving
        self._answering: App = self._answer
        if cors is not None and cors.origins:
            # A preflight shows no key and has no body, so that it is answered before either is looked at.
            self._answering = CORSMiddleware(
                self._answer,
                allow_origins=cors.origins,
                allow_methods=_METHODS,
                allow_headers=("*",),
                expose_headers=(*EXPOSED, CHOSEN_MODEL),
                max_age=cors.max_age_s,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})
        elif scope["type"] == "http" and self._is_watching(scope["path"]):
            assert self._watching is not None
            await self._watching(scope, receive, send)  # for no page of another origin
        elif scope["type"] == "http":
            await self._answering(scope, receive, send)

    def _is_watching(self, path: str) -> bool:
        return self._watching is not None and path.startswith(WATCH_PREFIX) and not path.startswith(REQUESTS)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self._start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path in ("/health", "/ready"):
            is_leaving = self._is_leaving()
            up = not is_leaving and (path == "/health" or self._is_ready())
            status = HTTPStatus.OK if up else HTTPStatus.SERVICE_UNAVAILABLE
            text = "ready" if up else "the gateway is about to end" if is_leaving else "no agent answers"
            await answer_json(send, status, {"status": text})
            return
        if await sent_signpost(scope, send, "a gateway", watched=self._watching is not None):
            return
        request = await open_request(scope, receive, send, BodyLimits(self._parts.settings.max_body_bytes))
        if request is None:
            return
        scope, send = request.scope, request.send
        tenant = self._keys.tenant_of(key_in(scope["headers"]))
        if tenant is not None and path in FORWARDED and scope["method"] == "POST":
            await self._forward(request, tenant)
        elif tenant is None:
            await request.refuse(Unauthorized(_NO_KEY))
        elif path.startswith(REQUESTS):
            await answer_progress(scope, send, self._parts.in_flight, tenant.name, _ELSEWHERE)
        elif path.startswith(BATCHES) and self._batches is not None:
            await self._answer_batches(self._batches, {**scope, TENANT: tenant}, receive, send)
        else:
            await self._answer_other(scope, send, tenant)

    async def _answer_batches(self, batches: Router, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._parts.calls.taken(scope[TENANT].name, MOST_CALLS_OF_TENANT):
                await batches(scope, receive, send)
        except QueueFull as error:
            await refuse_error(send, error)

    async def _forward(self, request: OpenedRequest, tenant: Tenant) -> None:
        forwarded = ForwardedRequest(self._parts, tenant, request)
        try:
            await forwarded.run()
        except (ClientLeft, BrokenResponse):
            pass  # the client is gone, or can no longer be notified: the server closes the connection
        except asyncio.CancelledError:
            # The server stops, and waits for this task no longer. Over HTTP/3 it would wait for a response that is sent
            # now.
            if forwarded.answer.begun or request.scope["http_version"] == "3":
                raise
            await forwarded.refuse(ShuttingDown(_STOPPING, _AGAIN_S))
        except SloServeError as error:
            await forwarded.refuse(error, [_NOT_AGAIN] if isinstance(error, EngineError) else [])
        except Exception:
            logger.exception("request %s failed in the gateway", request.id)
            if forwarded.answer.begun:
                raise
            message = "the gateway failed; its log says why"
            if forwarded.answer.has_early_head:
                await forwarded.answer.end_with_error(HTTPStatus.INTERNAL_SERVER_ERROR, message)
                return
            form = errors.form_of(request.scope["path"])
            await refuse(request.send, HTTPStatus.INTERNAL_SERVER_ERROR, message, headers=request.closing, form=form)

    async def _answer_other(self, scope: Scope, send: Send, tenant: Tenant) -> None:
        method, path = scope["method"], scope["path"]
        models, sets = self._parts.models_of(tenant)
        if path == "/metrics" and method == "GET" and tenant.metrics:
            await answer(send, HTTPStatus.OK, self._parts.metrics.page(), _PAGE)
        elif path == _MODELS and method == "GET":
            known = [*map(self._model, sorted(models)), *(self._set(*one) for one in sets.items())]
            await answer_json(send, HTTPStatus.OK, {"object": "list", "data": known})
        elif path.startswith(f"{_MODELS}/") and method == "GET":
            name = path.removeprefix(f"{_MODELS}/")
            if name in models or name in sets:
                found = self._model(name) if name in models else self._set(name, sets[name])
                await answer_json(send, HTTPStatus.OK, found)
            else:
                await refuse(send, HTTPStatus.NOT_FOUND, str(UnknownModel(name, (*sets, *models))), "model")
        elif path.startswith(f"{RESPONSES}/"):
            await refuse(send, HTTPStatus.NOT_FOUND, _NOT_KEPT, headers=[CLOSE])
        elif path in FORWARDED:
            message, form = f"{path}: the method is POST", errors.form_of(path)
            await refuse(send, HTTPStatus.METHOD_NOT_ALLOWED, message, headers=[("allow", "POST"), CLOSE], form=form)
        else:
            routes = ", ".join((*FORWARDED, _MODELS, *(BATCHES if self._batches is not None else ())))
            message = f"there is no such route; there are {routes}"
            await refuse(send, HTTPStatus.NOT_FOUND, message, headers=[CLOSE], form=errors.form_of(path))

    def _set(self, name: str, models: Collection[str]) -> dict[str, Any]:
        """Return the entry of a set of models; its state is the state of its readiest model."""
        known = {model: self._model(model) for model in models}
        best = min((one["state"] for one in known.values()), key=STATES.index)
        return {**next(iter(known.values())), "id": name, "state": best, "models": list(known)}

    def _model(self, name: str) -> dict[str, Any]:
        state = self._parts.instances.state_of(name, self._parts.clock.monotonic_s())
        return {"id": name, "object": "model", "created": self._parts.created_s, "owned_by": "sloserve", "state": state}
