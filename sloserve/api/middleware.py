"""The ASGI middleware around vLLM's server: it reads what headers and bodies state, bounds bodies, completes answers.

It changes no request: the body is looked at as it passes, and the SLO travels in a context variable to the wrapper
around ``AsyncLLM.generate`` (:mod:`sloserve.vllm_plugin.server.front_end`), which also answers for what cannot be read,
in the error format of the route at hand. vLLM puts it outside its own authentication; it reads nothing before the
server does.

``sloserve serve`` adds it; under plain vLLM it is ``--middleware sloserve.api.middleware.SLOMiddleware``.
"""

import asyncio
import functools
import os
from collections.abc import Awaitable, Iterable
from http import HTTPStatus

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sloserve.api.admin import PREFIX, AdminApp, engine_of
from sloserve.api.http3 import Http3Front
from sloserve.api.lifecycle import LINGER_S, READY_PATH, readiness, refused_for_stopping, started, unless_overtaken
from sloserve.api.report import Reporter
from sloserve.api.time_to_live import TimeToLive
from sloserve.core.clock import Clock, SystemClock
from sloserve.settings import ADMIN_KEY, PluginSettings, plugin_settings
from sloserve.vllm_plugin.server.stated import tell_operator
from sloserve.wire import context, errors
from sloserve.wire.asgi import CLOSE, BodyTooLarge, declares_more, first, opened, refuse, tell_slo
from sloserve.wire.context import HTTPContext
from sloserve.wire.headers import TTL, predictions


class SLOMiddleware:
    """Serves ``app`` with SLOs read from requests and outcomes told in answers."""

    def __init__(self, app: ASGIApp, clock: Clock | None = None) -> None:
        self._app = app
        self._clock = clock or SystemClock()
        self._settings: PluginSettings | None = None
        self._starting: asyncio.Task[None] | None = None
        self._http3 = Http3Front()
        admin_key = os.environ.get(ADMIN_KEY)
        self._admin = AdminApp(admin_key) if admin_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._watching_start(scope, send))
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = self._http3.advertising(scope, send)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path == READY_PATH:
            await (await readiness(engine_of(scope)))(scope, receive, send)
            return
        if self._admin is not None and path.startswith(PREFIX):
            await self._admin(scope, receive, send)
            return
        request = await opened(scope, send)
        if request is None:
            return
        scope, send, _ = request
        http = HTTPContext(self._clock.now_s(), on_slo=functools.partial(tell_slo, scope))
        if scope["method"] == "POST":
            if await refused_for_stopping(engine_of(scope), send):
                return
            send = unless_overtaken(engine_of(scope), http, send)
        exchange = Exchange(http, self._settings_of(scope), receive, send)
        exchange.begin(scope)
        if exchange.too_large:
            await exchange.refuse_too_large()
            return
        token = context.current.set(exchange.http)
        try:
            await exchange.run(self._app(scope, exchange.receive, exchange.send))
        except BodyTooLarge:
            pass
        finally:
            context.current.reset(token)
        if exchange.too_large:
            await exchange.refuse_too_large()

    def _watching_start(self, scope: Scope, send: Send) -> Send:
        async def watching(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete" and "app" in scope:
                self._starting = asyncio.create_task(started(scope["app"], self._http3))
            elif message["type"].startswith("lifespan.shutdown."):
                if self._starting is not None:
                    await asyncio.wait([self._starting])  # else it might begin to listen after that
                await self._http3.stop(LINGER_S)
            await send(message)

        return watching

    def _settings_of(self, scope: Scope) -> PluginSettings:
        if self._settings is None:
            engine = engine_of(scope)
            self._settings = plugin_settings(None if engine is None else engine.vllm_config.additional_config)
        return self._settings


class Exchange:
    """One request and its answer, as they pass. too_large: its body is, or says that it will be."""

    def __init__(self, http: HTTPContext, settings: PluginSettings, receive: Receive, send: Send) -> None:
        self.http = http
        self.too_large = False
        self._max_body_bytes = settings.max_body_bytes
        self._header_rules = settings.header_rules
        self._receive = receive
        self._send = self._send_at_once = send
        self._ttl: TimeToLive | None = None
        self._body: list[bytes] = []
        self._received_bytes = 0
        self._answering = False
        self._content_type = b""
        self._reporter: Reporter | None = None

    def begin(self, scope: Scope) -> None:
        """Reads the headers. What is wrong with an SLO is said later, by a route that has any use for it."""
        headers = scope["headers"]
        self.http.read_headers(headers, self._header_rules)
        if self.http.headers.ttl_s is not None and scope["method"] == "POST":
            self._ttl = TimeToLive(self.http.headers.ttl_s, lambda: self.http.is_waiting, self._receive, self._send)
            self._receive, self._send = self._ttl.receive, self._ttl.send
        self.too_large = declares_more(headers, self._max_body_bytes)
        self._content_type = first(headers, b"content-type")

    async def run(self, app: Awaitable[None]) -> None:
        """Runs what serves the request, no longer than it has to live."""
        if self._ttl is None:
            await app
        else:
            await self._ttl.run(app, self._refuse_expired)

    async def _refuse_expired(self) -> None:
        self._answering = False  # what of an answer had begun is still held
        error = self.http.expire()
        await self.refuse(errors.status(error), str(error), TTL, errors.headers(error))

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not self._answering:
            part = message.get("body", b"")
            self._received_bytes += len(part)
            if self._received_bytes > self._max_body_bytes:
                self.too_large = True
                self._body.clear()
                raise BodyTooLarge
            self._body.append(part)
            if not message.get("more_body", False):
                self.http.read_body(b"".join(self._body), self._content_type)
                self._body.clear()
        return message

    async def send(self, message: Message) -> None:
        if self.too_large:
            return  # whatever the server made of the broken body: :meth:`refuse_too_large` answers
        if message["type"] == "http.response.start":
            self._answering = True
            headers = MutableHeaders(raw=message["headers"])
            if self.http.rejection is not None:
                for name, value in errors.headers(self.http.rejection):
                    headers[name] = value
            for name, value in predictions(self.http.predicted):
                headers[name] = value
            if self.http.wants_report or self.http.tier is not None:
                self._reporter = Reporter.of(message, self.http)
                if self._reporter is not None:
                    return  # a body that grows needs another length: the reporter sends the head as well
        if self._reporter is None:
            await self._send(message)
        else:
            for changed in self._reporter.pass_on(message):
                await self._send(changed)

    async def refuse_too_large(self) -> None:
        tell_operator(f"clients send more than the {self._max_body_bytes} bytes of max_body_bytes, and get 413")
        message = f"request body: more than {self._max_body_bytes} bytes; send less"
        await self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, None)

    async def refuse(
        self, status: HTTPStatus, message: str, param: str | None, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Answers in place of the server, unless its answer has begun."""
        if not self._answering:
            self._answering = True
            await refuse(self._send_at_once, status, message, param, [CLOSE, *headers])
