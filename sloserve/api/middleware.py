"""The ASGI middleware around vLLM's server: it reads headers and bodies, limits bodies, and completes responses.

It changes no request: the body is looked at as it passes, and the SLO travels in a context variable to the wrapper
around ``AsyncLLM.generate`` (:mod:`sloserve.vllm_plugin.server.install`), which also refuses what cannot be read, in
the error format of the route at hand. vLLM puts it outside its own authentication; it reads nothing before the server
does. vLLM's CORS middleware is put outside of it in turn.

``sloserve serve`` adds it; under plain vLLM it is ``--middleware sloserve.api.middleware.SLOMiddleware``.
"""

import asyncio
import functools
import logging
import math
import os
from collections.abc import Awaitable, Iterable
from contextlib import ExitStack
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sloserve.api import cors
from sloserve.api.admin import PREFIX, AdminApp, engine_of
from sloserve.api.callers import Caller, Callers
from sloserve.api.lifecycle import LINGER_S, READY_PATH, readiness, refused_for_stopping, started, unless_overtaken
from sloserve.api.report import Reporter
from sloserve.api.request_progress import answer_progress_to
from sloserve.api.tenant_limits import TenantLimits
from sloserve.api.time_to_live import TimeToLive
from sloserve.api.websockets import refuse_websocket, refused_websocket
from sloserve.core.clock import Clock, SystemClock
from sloserve.core.errors import BodyTooLarge, Rejected, SloServeError
from sloserve.engine.metrics.tenant_page import TenantPage
from sloserve.engine.recording.events import BODY_TOO_LARGE, TENANT_LIMIT
from sloserve.scheduler.settings import ADMIN_KEY, PluginSettings, plugin_settings
from sloserve.vllm_plugin.server.front_end_of import api_processes, count_unread, live_settings_of
from sloserve.vllm_plugin.server.stated import warn_operator
from sloserve.wire import context, errors
from sloserve.wire.asgi import first, refuse_error, report_slo, route_path, unsent
from sloserve.wire.body import BYTES_PER_TOKEN
from sloserve.wire.context import HTTPContext
from sloserve.wire.headers import PROMISED, TTL
from sloserve.wire.in_flight import REQUESTS, RequestsInFlight
from sloserve.wire.opening import BodyLimits, BoundedBody, OpenedRequest, open_request
from sloserve.wire.optional_http3 import Http3Front
from sloserve.wire.peers import record_peers
from sloserve.wire.progress import place_header
from sloserve.wire.response_headers import predictions, promise_header
from sloserve.wire.waiting_comments import WaitingComments, may_have_comments
from sloserve.wire.watch_page import sent_signpost

logger = logging.getLogger(__name__)


class SLOMiddleware:
    """Serves ``app`` with SLOs read from requests and outcomes reported in responses."""

    def __init__(self, app: ASGIApp, clock: Clock | None = None) -> None:
        self._app, found = cors.taken_out(app)
        self._answering: ASGIApp = self._answer if found is None else cors.put_around(found, self._answer)
        self._clock = clock or SystemClock()
        self._rules: tuple[BodyLimits, Callers] | None = None
        self._comments_every_s = 0.0
        self._in_flight = RequestsInFlight()
        self._limits = TenantLimits(self._clock)
        self._exchanging: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._http3 = Http3Front()
        admin_key = os.environ.get(ADMIN_KEY)
        self._admin = AdminApp(admin_key) if admin_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._watching_start(scope, send))
            return
        if scope["type"] == "websocket":
            await self._serve_websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = self._http3.advertising(scope, send)
        path = route_path(scope)
        if self._admin is not None and path.startswith(PREFIX) and not path.startswith(REQUESTS):
            await self._admin(scope, receive, send)  # for no page of another origin
            return
        await self._answering(scope, receive, send)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        engine = engine_of(scope)
        with ExitStack() as held:
            try:
                caller = self._admitted(scope, engine, held)
            except SloServeError as error:
                await refuse_websocket(error, scope, receive, send)
                return
            if not await refused_websocket(engine, caller.rules, scope, receive, send):
                await self._app(caller.scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request that pages of other origins may send."""
        if route_path(scope) == READY_PATH:
            await (await readiness(engine_of(scope)))(scope, receive, send)
            return
        if await sent_signpost(scope, send, "a server", watched=self._admin is not None):
            return
        engine = engine_of(scope)
        request = await open_request(scope, receive, send, self._rules_of(engine)[0])
        if request is None:
            return
        form = errors.form_of(route_path(scope))
        with ExitStack() as held:
            try:
                caller = self._admitted(request.scope, engine, held)
            except SloServeError as error:
                await refuse_error(request.send, error, request.closing, form=form)
                return
            if route_path(scope).startswith(REQUESTS):
                await answer_progress_to(caller, request.send, self._in_flight, api_processes(engine))
                return
            await self._serve(request, caller, engine, form)

    async def _serve(self, request: OpenedRequest, caller: Caller, engine: Any, form: errors.ErrorBody) -> None:
        scope, send = caller.scope, request.send
        on_slo = functools.partial(report_slo, scope)
        http = HTTPContext(self._clock.monotonic_s(), says_end=True, on_slo=on_slo, path=route_path(scope))
        if scope["method"] == "POST":
            if await refused_for_stopping(engine, send, form=form):
                return
            send = unless_overtaken(engine, http, send, form)
        passing = PassingRequest(http, caller, request.body, send, form, self._comments_every_s)
        passing.begin(scope)
        tenant = http.headers.tenant
        if passing.use is not None:
            passing.use.estimate(_prompt_tokens(scope["headers"]))
        token = context.current.set(http)
        try:
            request.body.check_length()
            with self._in_flight.entered(tenant, request.id, http.progress):
                await passing.run(self._app(scope, passing.receive, passing.send))
        except BodyTooLarge as error:
            passing.too_large = error
        except asyncio.CancelledError:
            # When uvicorn stops, it no longer waits for what a client still sends; it would respond with 500. A
            # response sent over HTTP/3 now would be waited for.
            if (
                not passing.awaits_body
                or scope["http_version"] == "3"
                or not await refused_for_stopping(engine, send, form=form)
            ):
                raise
        finally:
            context.current.reset(token)
            passing.ended()
            http.answer_ends(begun=passing.is_answering)
        if passing.too_large is not None:
            limits, callers = self._rules_of(engine)
            most_bytes = limits.most_bytes
            count_unread(engine, BODY_TOO_LARGE, passing.http.headers.tenant, callers.stated_class(caller))
            warn_operator(f"clients send more than the {most_bytes} bytes of max_body_bytes, and get 413")
            await passing.refuse(passing.too_large)

    def _watching_start(self, scope: Scope, send: Send) -> Send:
        async def watching(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete" and "app" in scope:
                # A fault in the file of keys keeps the server from starting.
                callers = self._rules_of(engine_of(scope))[1]
                record_peers(getattr(scope["app"].state, "server", None))
                self._share_limits(engine_of(scope), callers)
                self._starting = asyncio.create_task(started(scope["app"], self._http3, callers.classify))
            elif message["type"].startswith("lifespan.shutdown."):
                if self._exchanging is not None:
                    self._exchanging.cancel()
                self._limits.close()
                if self._starting is not None:
                    await asyncio.wait([self._starting])  # else it might begin to listen after that
                await self._http3.stop(LINGER_S)
            await send(message)

        return watching

    def _share_limits(self, engine: Any, callers: Callers) -> None:
        """Count limits of tenants together with the other API processes of the server, if there are any."""
        others = api_processes(engine) - 1 if callers.has_keys else 0
        if others:
            try:
                self._limits.share(TenantPage.create(engine.vllm_config.parallel_config._api_process_rank), others)
            except OSError as error:
                logger.warning("limits of tenants hold for each API process by itself: %s", error)
                return
            self._exchanging = asyncio.create_task(self._limits.keep_exchanging(callers.tenants))

    def _rules_of(self, engine: Any) -> tuple[BodyLimits, Callers]:
        if self._rules is None:
            live = live_settings_of(engine)
            if live is None:
                settings = plugin_settings(None if engine is None else engine.vllm_config.additional_config)
            else:
                settings = live.now.settings
                live.tell(self._follow)
            self._rules = _body_limits(settings), Callers(settings, self._clock)
            self._comments_every_s = settings.waiting_comments_s
        return self._rules

    def _follow(self, settings: PluginSettings) -> None:
        """Serve the requests to come by other settings."""
        if self._rules is not None:
            callers = self._rules[1]
            callers.follow(settings)
            self._rules = _body_limits(settings), callers
            self._comments_every_s = settings.waiting_comments_s

    def _admitted(self, scope: Scope, engine: Any, held: ExitStack) -> Caller:
        """Return the sender of a request, and hold what it takes of its tenant's limits until ``held`` is left.

        Raises: Unauthorized, Forbidden, QueueFull, RateLimited.
        """
        callers = self._rules_of(engine)[1]
        caller = callers.caller(scope)
        tenant = caller.tenant
        if tenant is not None and scope.get("method") != "GET":
            try:
                use = self._limits.admit(tenant, held)
            except Rejected:
                count_unread(engine, TENANT_LIMIT, tenant.name, callers.stated_class(caller))
                raise
            held.callback(context.request_use.reset, context.request_use.set(use))
        held.callback(context.key_tenant.reset, context.key_tenant.set(tenant))
        return caller


def _body_limits(settings: PluginSettings) -> BodyLimits:
    return BodyLimits(settings.max_body_bytes, whole_s=math.inf)


def _prompt_tokens(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return an estimate of a prompt's tokens by the length that a body of JSON declares; 0 for other bodies."""
    headers = list(headers)
    declared = first(headers, b"content-length")[:20]
    is_json = first(headers, b"content-type").strip().lower().startswith(b"application/json")
    return int(declared) // BYTES_PER_TOKEN if is_json and declared.isdigit() else 0


class PassingRequest:
    """One request and its response, as they pass through the middleware.

    ``too_large`` is set if the body of the request is too large, or its headers announce that it will be.
    """

    def __init__(
        self,
        http: HTTPContext,
        caller: Caller,
        body: BoundedBody,
        send: Send,
        form: errors.ErrorBody = errors.body,
        comments_every_s: float = 0.0,
    ) -> None:
        """Build the passage of one request.

        Args:
            http: What belongs to the request.
            caller: Sender of the request.
            body: Body of the request.
            send: Sends messages to the client.
            form: Makes the body of a refusal.
            comments_every_s: Seconds between comments in the stream of a request that waits; 0 for no comments.
        """
        self.http = http
        self.too_large: BodyTooLarge | None = None
        self._caller, self._form = caller, form
        self._body = body
        self._receive: Receive = body
        self._send = self._send_at_once = send
        self._ttl: TimeToLive | None = None
        self.use = context.request_use.get()
        self._parts: list[bytes] = []
        self._answering = False
        self._content_type = b""
        self._reporter: Reporter | None = None
        self._comments_every_s = comments_every_s
        self._comments: WaitingComments | None = None

    @property
    def is_answering(self) -> bool:
        """Whether a response has begun."""
        return self._answering

    @property
    def awaits_body(self) -> bool:
        """Whether more of the body is to come, and nothing of a response has been sent."""
        return not (self._body.is_whole or self._answering)

    def begin(self, scope: Scope) -> None:
        """Read the headers. A fault in an SLO is reported later, by a route that uses the SLO."""
        headers = scope["headers"]
        self.http.read_headers(headers, self._caller.rules)
        if (tenant := self._caller.tenant) is not None:
            self.http.headers.tenant, self.http.slo_class = tenant.name, tenant.slo_class
        if self.http.headers.ttl_s is not None and scope["method"] == "POST":
            self._ttl = TimeToLive(self.http.headers.ttl_s, lambda: self.http.is_waiting, self._receive, self._send)
            self._receive, self._send = self._ttl.receive, self._ttl.send
        self._content_type = first(headers, b"content-type")

    async def run(self, app: Awaitable[None]) -> None:
        """Run what serves the request, for at most the request's time to live."""
        if self._ttl is None:
            await app
        else:
            await self._ttl.run(app, self._refuse_expired)

    async def _refuse_expired(self) -> None:
        self._answering = False  # the part of a response that had begun is still held
        await self.refuse(self.http.expire(), TTL)

    async def receive(self) -> Message:
        try:
            message = await self._receive()
        except BodyTooLarge as error:
            self.too_large = error.to_keep()
            self._parts.clear()
            raise
        if message["type"] == "http.request" and not self._answering:
            self._parts.append(message.get("body", b""))
            if self._body.is_whole:
                self.http.read_body(b"".join(self._parts), self._content_type)
                self._parts.clear()
        return message

    def send(self, message: Message) -> Awaitable[None]:
        if self.too_large is not None:
            return unsent()  # whatever the server made of the broken body: it is refused once that has ended
        if message["type"] == "http.response.start":
            self._answering = True
            self._body.is_answered()
            headers = MutableHeaders(raw=message["headers"])
            if self.http.rejection is not None:
                for name, value in errors.headers(self.http.rejection):
                    headers[name] = value
            task = None if self.http.task is None else self.http.task.predicted
            for name, value in predictions(self.http.predicted, task):
                headers[name] = value
            if self.http.promised:
                headers[PROMISED] = promise_header(self.http.promised)
            for name, value in place_header(self.http.places):
                headers[name] = value
            for name, value in () if self.use is None else self.use.headers():
                headers.append(name, value)
            if self._may_comment(message):
                self._comments = WaitingComments(self._send, self.http.progress, self._comments_every_s)
                self._send = self._comments.send
            if self.http.wants_report or self.http.tier is not None:
                self._reporter = Reporter.of(message, self.http)
                if self._reporter is not None and not self._reporter.streamed:
                    return unsent()  # a body that grows needs another length: the reporter sends the head as well
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.http.answer_ends(begun=True)  # before its client can ask what was counted
        if self._reporter is None or message["type"] == "http.response.start":
            return self._send(message)
        changed = self._reporter.pass_on(message)
        return self._send(changed[0]) if len(changed) == 1 else self._send_all(changed)

    def _may_comment(self, start: Message) -> bool:
        """Return whether comments may stand in the response; with a time to live its status may still change."""
        is_asked = self._comments_every_s > 0.0 and self.http.wants_updates
        return is_asked and self._ttl is None and may_have_comments(start)

    def ended(self) -> None:
        """Note that the response has ended, or that its client has left."""
        if self._comments is not None:
            self._comments.stop()

    async def _send_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            await self._send(message)

    async def refuse(self, error: SloServeError, param: str | None = None) -> None:
        """Send an error in place of the server's response, unless that has begun."""
        if not self._answering:
            self._answering = True
            await refuse_error(self._send_at_once, error, param=param, form=self._form)
