"""One request through the gateway: read, admitted, sent to an instance, its response passed on as it arrives.

If a stream breaks off after its first byte, it ends with an error event.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from http import HTTPStatus
from typing import Final

from sloserve.core.errors import BadBody, Evicted, InvalidRequest, Rejected, SloServeError, UnknownModel
from sloserve.core.outcome import REFUSED, Outcome
from sloserve.core.slo import SLO
from sloserve.core.tenants import NONE
from sloserve.engine.recording.events import TENANT_LIMIT
from sloserve.engine.recording.front_end import reason_of
from sloserve.fleet.client_routes import AUDIO, GENERATING
from sloserve.fleet.gateway.accounting import RequestAccounting
from sloserve.fleet.gateway.dispatch import Dispatch
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.limits import RequestPlace
from sloserve.fleet.gateway.metrics import NO_MODEL
from sloserve.fleet.gateway.model_choice import ModelChoice
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.fleet.gateway.passing import PassedResponse
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.wire import errors
from sloserve.wire.asgi import ClientLeft, report_slo
from sloserve.wire.body import BYTES_PER_TOKEN
from sloserve.wire.client import WhileClientWaits
from sloserve.wire.headers import REQUEST_ID
from sloserve.wire.opening import OpenedRequest
from sloserve.wire.rate_limits import RequestUse
from sloserve.wire.resolve import stated_slo

_REQUEST_ID: Final = REQUEST_ID.encode()


class ForwardedRequest:
    """One request and the response to it."""

    def __init__(self, parts: GatewayState, tenant: Tenant, opened: OpenedRequest) -> None:
        self._parts, self._tenant, self._opened = parts, tenant, opened
        self._arrival_s = parts.clock.monotonic_s()
        self._counted_as = NO_MODEL, NONE
        self.answer = PassedResponse(opened.at_once, opened.scope["path"])
        self._use: RequestUse | None = None
        self._request: GatewayRequest | None = None
        self._booking: RequestAccounting | None = None

    async def run(self) -> None:
        """Serve the request. Raises: SloServeError if nothing of a response was sent; ClientLeft."""
        outcome, choice = Outcome.FAILED, None
        try:
            with self._parts.places.place(self._tenant) as place:
                self._use = self._parts.rates.admit(self._tenant.name, self._tenant.quota)
                request = self._request = await self._read(place)
                self._use.estimate(request.prompt_tokens)
                choice = ModelChoice(self._parts, request)
                async with WhileClientWaits(self._opened.body) as client:
                    outcome = await self._serve(request, choice, place, client)
        except (InvalidRequest, BadBody, UnknownModel, Rejected) as error:
            outcome = Outcome.REJECTED if isinstance(error, Rejected) else Outcome.INVALID
            self._count_refusal(error)
            raise
        except Evicted as error:
            outcome = Outcome.EVICTED
            self._count_refusal(error)
            raise
        except (ClientLeft, asyncio.CancelledError):
            outcome = Outcome.ABORTED
            raise
        finally:
            self.answer.ended()
            if self._use is not None:
                self._use.ended()
            self._parts.metrics.ended(*self._counted_as, outcome)
            if self._booking is not None:
                self._booking.judged(outcome, self._use)
            is_refused_by_engine = outcome in REFUSED and self.answer.begun
            if choice is not None and not is_refused_by_engine:  # the client's fault says nothing about the choice
                choice.ended(has_left=outcome is Outcome.ABORTED)

    def _count_refusal(self, error: SloServeError) -> None:
        """Count why the request is refused, by the class that its headers name if its body was not read.

        Such a request counts in the attainment of its class if the gateway is full: its targets are missed like those
        of a request that is refused later. A tenant that exceeds a limit of its own misses none.
        """
        parts, reason = self._parts, reason_of(error)
        slo = self._stated_slo() if self._request is None else self._request.slo
        name = NONE if slo is None else slo.slo_class.name
        if self._booking is None:
            self._counted_as = NO_MODEL, name
        parts.metrics.rejected(self._counted_as[0], name, reason)
        is_full = isinstance(error, Rejected) and reason != TENANT_LIMIT
        if slo is not None and self._request is None and is_full:
            judged = parts.attained.ended(slo, Outcome.REJECTED, None, parts.clock.monotonic_s(), streamed=True)
            parts.metrics.judged(NO_MODEL, judged)
        self._record_refusal(error)

    def _stated_slo(self) -> SLO | None:
        """Return the SLO of a request with an unread body; ``None`` if its headers name no class."""
        reader, tenant = self._parts.reader, self._tenant
        headers = self._opened.scope["headers"]
        return stated_slo(reader.rules_of(tenant), reader.header_rules, headers, tenant.name)

    def _record_refusal(self, error: SloServeError) -> None:
        """Record that the request is refused, if the settings ask for recordings."""
        parts, request = self._parts, self._request
        if parts.refusals is None:
            return
        at_s = parts.clock.now_s() - (parts.clock.monotonic_s() - self._arrival_s)
        asked, model = None, self._counted_as[0]
        if request is not None:
            model = request.model if isinstance(request.model, str) and request.model in parts.models else NO_MODEL
            sizes = request.prompt_tokens, request.max_tokens, request.output_tokens
            asked = ArrivingRequest(request.slo, self._arrival_s, *sizes)
        slo = None if request is None else request.slo
        parts.refusals.refused(reason_of(error), at_s, self._tenant.name, slo, asked, model)

    async def _read(self, place: RequestPlace) -> GatewayRequest:
        scope, body = self._opened.scope, await self._opened.body.read(place.take)
        read = partial(self._parts.reader.read, scope["headers"], body, self._tenant, self._opened.id)
        if scope["path"] in AUDIO:  # a recording may be large: it is taken apart, and put together again
            with place.copies(2 * len(body)):
                request = await asyncio.to_thread(read, scope["path"], self._arrival_s)
        else:
            request = read(scope["path"], self._arrival_s)
        report_slo(scope, request.slo)
        return request

    async def _serve(
        self, request: GatewayRequest, choice: ModelChoice, place: RequestPlace, client: WhileClientWaits
    ) -> Outcome:
        parts, answer, completed = self._parts, self.answer, False
        booking = self._booking = RequestAccounting(parts, request, answer)
        booking.arrived()
        dispatch = Dispatch(parts, request, choice, booking)
        try:
            booking.admit(request.model)
            with parts.in_flight.entered(request.tenant.name, self._opened.id, booking.progress):
                self._comment(request, choice, booking)
                from_engine, first, sent = await dispatch.first_byte()
                try:
                    answer.begin(from_engine.status, request.model, client, parts.clock.monotonic_s())
                    booking.answer_begins()
                    name = sent.instance.name
                    parts.sessions.served(request.tenant.name, request.stated_task, request.model, name)
                    place.forget_body()
                    request.forget_body()
                    headers = self._headers(choice, booking, self._limits(request))
                    completed = await answer.pass_on(from_engine, first, headers, client)
                finally:
                    dispatch.over(sent, from_engine)
        finally:
            self._counted_as = request.model, request.slo_class
            self._count(request)
            booking.ended(choice, completed=completed)
        return errors.outcome(answer.status) if completed else Outcome.FAILED

    def _comment(self, request: GatewayRequest, choice: ModelChoice, booking: RequestAccounting) -> None:
        """Send comments until the first byte if the client asks for them, and the status may be known before that."""
        every_s = self._parts.settings.waiting_comments_s
        if not (every_s > 0.0 and request.updates and request.streamed and request.route in GENERATING):
            return
        if request.ttl_s is None:
            limits = [] if self._use is None else self._use.headers()
            stated = [(name.encode(), value.encode()) for name, value in (*limits, *booking.predictions())]
            self.answer.comment(booking.progress, every_s, self._headers(choice, booking, stated))

    def _headers(
        self, choice: ModelChoice, booking: RequestAccounting, more: list[tuple[bytes, bytes]]
    ) -> list[tuple[bytes, bytes]]:
        """Return the headers of the response beside the engine's, ``more`` with them."""
        place = [(name.encode(), value.encode()) for name, value in booking.headers()]
        return [(_REQUEST_ID, self._opened.id.encode()), *choice.headers, *place, *more]

    async def refuse(self, error: SloServeError, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Answer the request with an error; if a comment began the response, the error is an event of the stream."""
        if self.answer.has_early_head:
            await self.answer.end_with_error(errors.status(error), str(error))
        else:
            await self._opened.refuse(error, headers)

    def _limits(self, request: GatewayRequest) -> list[tuple[bytes, bytes]]:
        """Return headers with the tenant's limits, and count the tokens of a stream in them as they come."""
        if self._use is None:
            return []
        if self._tenant.quota.tokens_per_minute is not None and self.answer.status == HTTPStatus.OK:
            demand, streamed, use = self._parts.demand, self.answer.streamed, self._use
            prompt, model = request.prompt_tokens, request.model
            self.answer.on_part = lambda: use.totals(prompt, demand.tokens_so_far(model, streamed))
        return [(name.encode(), value.encode()) for name, value in self._use.headers()]

    def _count(self, request: GatewayRequest) -> None:
        """Count the tokens that the request has used, as its response states them, else as they are estimated."""
        answer, use = self.answer, self._use
        if use is None or not answer.begun or answer.status != HTTPStatus.OK:
            return
        prompt, output = answer.streamed.stated_prompt_tokens(), 0
        if request.route in GENERATING:
            limit = request.max_tokens if request.num_outputs == 1 else None
            stated = answer.streamed.stated_tokens(limit)
            output = self._estimated(request) if stated is None else stated
            prompt = request.prompt_tokens if prompt is None else prompt
        use.totals(prompt or 0, output)

    def _estimated(self, request: GatewayRequest) -> int:
        """Return about how many tokens an output has that does not state it."""
        if request.streamed:
            return self._parts.demand.tokens_so_far(request.model, self.answer.streamed)
        return self.answer.streamed.size // BYTES_PER_TOKEN
