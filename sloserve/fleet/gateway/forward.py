"""One request through the gateway: read, admitted, sent to an instance, its response passed on as it arrives.

Until the first byte of the response has come the request can go to another instance, if the first one refuses it or is
lost, and its client sees nothing of that; if a stream breaks off later, it ends with an error event. Each request is
counted once in the admission of its model, in the demand, and in the metrics.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final

from sloserve.core.errors import (
    BadBody,
    DeadlinePassed,
    EngineError,
    Evicted,
    InvalidRequest,
    PromiseRefused,
    QueueFull,
    Rejected,
    SloServeError,
    UnknownModel,
)
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.served import ServedRequest
from sloserve.core.slo import SLO, Targets, is_late
from sloserve.engine.metrics.task_table import StartedCall
from sloserve.fleet.client_routes import AUDIO, GENERATING
from sloserve.fleet.contract.endpoint import PREFIX_HEADER, Refusal, Refused, stated_prefixes
from sloserve.fleet.gateway.agent_connections import BrokenResponse, EngineResponse
from sloserve.fleet.gateway.choosing import ResponseTimes
from sloserve.fleet.gateway.gateway_instance import SentRequest
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.held import HeldRequest, HeldTooLong, HoldFull
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.limits import RequestPlace
from sloserve.fleet.gateway.metrics import NO_MODEL
from sloserve.fleet.gateway.model_choice import ModelChoice
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.fleet.gateway.passing import PassedResponse
from sloserve.fleet.gateway.prefixes import names_of
from sloserve.fleet.gateway.sessions import Home
from sloserve.fleet.gateway.traffic_log import LoggedRequest
from sloserve.scheduler.admission.admission import Admission, Ticket, Together
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.wire import errors
from sloserve.wire.asgi import ClientLeft, report_slo
from sloserve.wire.body import BYTES_PER_TOKEN
from sloserve.wire.client import WhileClientWaits
from sloserve.wire.headers import PROMISED, REQUEST_ID, TTL, predictions, promise_header
from sloserve.wire.opening import OpenedRequest
from sloserve.wire.progress import RequestProgress, place_at_admission, place_header
from sloserve.wire.rate_limits import RequestUse


class RequestAccounting:
    """Counts one request in admission, demand and metrics. The caller must call ``ended()`` exactly once."""

    def __init__(self, parts: GatewayState, request: GatewayRequest, answer: PassedResponse) -> None:
        self._parts, self._request, self._answer = parts, request, answer
        self._ticket: Ticket | None = None
        self._admission: Admission | None = None
        self._task = parts.tasks.arriving(request)
        self._started: StartedCall | None = None
        self._logged: LoggedRequest | None = None
        self._latency: Latency | None = None

    def arrived(self) -> None:
        """Count demand for the model that the request asks for."""
        now_s, request = self._parts.clock.monotonic_s(), self._request
        self._parts.demand.arrived(request.model, request.slo_class, request.prompt_tokens, now_s)
        if self._parts.traffic is not None and request.route in GENERATING:
            most, targets = request.most_output, request.slo.targets
            self._logged = self._parts.traffic.arrived(
                request.model, request.slo_class, targets, request.prompt_tokens, most, now_s
            )

    @property
    def _asked_slo(self) -> SLO:
        """SLO of the request; once it was admitted, it is not refused for want of a promise."""
        slo = self._request.slo
        if self._ticket is None or slo.promise is None:
            return slo
        return replace(slo, promise=replace(slo.promise, falls_back=True))

    def admit(self, model: str) -> None:
        """Let the request wait for this model, and for no other.

        Raises: QueueFull, SLOUnattainable; then nothing has changed.
        """
        now_s, request = self._parts.clock.monotonic_s(), self._request
        task = self._task
        together = Together(is_let_in=task is not None and (task.is_let_in or self._started is not None))
        new = ArrivingRequest(
            self._asked_slo if task is None else task.slo_at_admission(self._asked_slo, request.arrival_s),
            request.arrival_s,
            request.prompt_tokens,
            request.max_tokens,
            request.output_tokens,
            request.num_outputs,
            request.streamed,
            key=lambda: (request.tenant.name, hash(request.body)),
            tenant=request.tenant.name,
        )
        admission = self._parts.admission(model)
        if new.slo.promise is not None:  # of a thousand instances a look at each takes longer than admission does
            admission.serves_with(len(self._parts.instances.serving(model, now_s)))
        try:
            ticket = admission.admit(new, admission.forecast(new, now_s), self._answer, now_s, together)
        except PromiseRefused as error:
            self._parts.metrics.promise_refused(model, request.slo_class, error.why)
            raise
        if request.promised is None:  # a promise stands, also where another model serves the request in the end
            request.promised, request.why_no_promise = ticket.promised, ticket.why_no_promise
        if ticket.why_no_promise is not None and request.promised is None:
            self._parts.metrics.promise_refused(model, request.slo_class, ticket.why_no_promise)
        if self._ticket is not None:
            self._ticket.ended(None, 0, now_s)
        self._ticket, self._admission = ticket, admission
        if self._started is None:
            self._started = self._parts.tasks.begins(task, request)

    def progress(self) -> RequestProgress | None:
        """Return how far the request has come; ``None`` before its admission."""
        ticket, admission, request, first_s = self._ticket, self._admission, self._request, self._answer.first_s
        if ticket is None or admission is None:
            return None
        now_s = self._parts.clock.monotonic_s()
        still = admission.still_waiting(ticket, now_s) if first_s is None else None
        return RequestProgress(
            slo_class=request.slo_class,
            is_waiting=first_s is None,
            waited_s=(now_s if first_s is None else first_s) - request.arrival_s,
            position=None if still is None else still.position,
            remaining=None if still is None else still.remaining,
            predicted=ticket.forecast.predicted,
            promised=request.promised,
        )

    def headers(self) -> list[tuple[str, str]]:
        """Return the headers with the place of the request at its admission, and with what it was promised."""
        found = place_header([] if self._ticket is None else [place_at_admission(self._ticket.forecast.ahead)])
        given = self._request.promised or self._request.why_no_promise
        return found if given is None else [*found, (PROMISED, promise_header([given]))]

    def predictions(self) -> list[tuple[str, str]]:
        """Return the headers with what was predicted at its admission."""
        predicted = None if self._ticket is None else self._ticket.forecast.predicted
        return [] if predicted is None else predictions([predicted])

    def answer_begins(self) -> None:
        """Record that the first byte has come."""
        self._parts.passing_on[self._answer] = None
        request, first_s = self._request, self._answer.first_s
        if self._answer.status == HTTPStatus.OK and request.streamed and first_s is not None:
            assert self._ticket is not None
            self._ticket.started(first_s)
            self._parts.metrics.first_byte(request.model, request.slo_class, first_s - request.arrival_s)

    def ended(self, choice: ModelChoice, *, completed: bool) -> None:
        """Record that the request has ended.

        Args:
            choice: Choice of its model, which learns from the measured time.
            completed: Whether the response came to its end.
        """
        self._parts.passing_on.pop(self._answer, None)
        self._parts.tasks.ends(self._started, completed=completed)
        now_s, tokens, latency = self._parts.clock.monotonic_s(), 0, None
        request, first_s = self._request, self._answer.first_s
        if completed and self._answer.status == HTTPStatus.OK and first_s is not None:
            limit = request.max_tokens if request.num_outputs == 1 else None
            tokens = self._parts.demand.ended(request.model, request.slo_class, self._answer.streamed, limit)
            tpot_s = (now_s - first_s) / (tokens - 1) if tokens > 1 else 0.0
            latency = Latency(first_s - request.arrival_s, tpot_s, now_s - request.arrival_s)
        if self._logged is not None:
            so_far = tokens or self._parts.demand.tokens_so_far(request.model, self._answer.streamed)
            self._logged.over(max(so_far, 0), complete=tokens > 0)
        self._parts.attained.ended(
            request.slo, latency, now_s, streamed=request.streamed, rejected=self._ticket is None
        )
        if not tokens:
            latency = None
        elif latency is not None:
            choice.completed(ResponseTimes(latency.e2e_s, tokens, latency.ttft_s if request.streamed else None))
        if self._ticket is not None:
            self._ticket.ended(latency, tokens, now_s)
        self._latency = latency

    def promise_ended(self, outcome: Outcome, use: RequestUse | None) -> None:
        """Count the promise of the request, if it was given one.

        Args:
            outcome: Outcome of the request.
            use: What the request uses of its tenant's limits; ``None`` if it was not admitted.
        """
        request, slo = self._request, self._request.slo
        if not request.streamed:  # of an output in one piece only the end is seen here
            slo = replace(slo, targets=Targets(e2e_s=slo.targets.e2e_s))
        age_s = self._parts.clock.monotonic_s() - request.arrival_s
        was_late = outcome is Outcome.ABORTED and is_late(slo.targets, age_s, begun=self._answer.begun)
        served = ServedRequest(slo, outcome, latency=self._latency, promised=request.promised, was_late=was_late)
        if request.promised is not None and served.promise is not None:
            # Without a target that can be judged, a response that came to its end has kept its promise.
            kept = "kept" if served.good is None and self._latency is not None else served.promise
            self._parts.metrics.promise_ended(request.model, request.slo_class, request.promised.level, kept)
            if use is not None:
                use.promise_ended(kept)


logger = logging.getLogger(__name__)

MOST_LOST: Final = 2
"""Engines that may die with a request before it fails with an error: the request may be what kills them."""
MAX_RETRY_AFTER_S: Final = 30


class Dispatch:
    """Sends one request to an instance, and retries on others until the first byte has come."""

    def __init__(
        self, parts: GatewayState, request: GatewayRequest, choice: ModelChoice, booking: RequestAccounting
    ) -> None:
        self._parts, self._request, self._choice, self._booking = parts, request, choice, booking

    async def first_byte(self) -> tuple[EngineResponse, bytes, SentRequest]:
        """Return the begin of a response, from whichever instance gives one. Raises: Rejected, Evicted, EngineError."""
        held, lost = self._held(), 0
        while True:
            sent = await self._sent(held)
            answer: EngineResponse | None = None
            sent_s = self._parts.clock.monotonic_s()
            try:
                answer = await self._asked(sent, held)
                return answer, await answer.read(), sent
            except Refused as error:
                refusal = error.reason
            except BrokenResponse:
                refusal = Refusal.DIED
            except BaseException:
                self.over(sent, answer)
                raise
            gone = refusal is not Refusal.FULL
            self.over(sent, answer, refused=True, gone=gone)
            self._parts.metrics.retried(refusal.value)
            held.sent_back(self._parts.clock.monotonic_s() - sent_s)
            lost += refusal is Refusal.DIED
            if lost >= MOST_LOST:
                model = self._request.model
                logger.warning("%d engines broke off with one request of model %s; the request fails", lost, model)
                raise EngineError(
                    f"{lost} engines broke off with this request before its first token; the request fails"
                )
            if gone:
                held = self._elsewhere(held)

    def over(
        self, sent: SentRequest, answer: EngineResponse | None, *, refused: bool = False, gone: bool = False
    ) -> None:
        """Note that the request has left this instance."""
        if answer is not None:
            answer.close()
        sent.end(refused=refused, gone=gone)
        self._parts.hold.let_go((self._request.model,))

    def _elsewhere(self, held: HeldRequest) -> HeldRequest:
        """Return the request for another model if the router chooses one after the engine was lost, else ``held``."""
        chosen = self._choice.another()
        if chosen is None:
            return held
        try:
            self._booking.admit(chosen.model)
        except Rejected:
            return held
        self._choice.take(chosen)
        self._booking.arrived()
        return self._held().after(held)

    def _held(self) -> HeldRequest:
        request, limits = self._request, self._parts.limits
        output = self._parts.demand.output_tokens(request.model, request.slo_class, request.most_output)
        return HeldRequest.of(request, output, limits.hold_max_s, affinity=limits.affinity, home=self._home())

    def _home(self) -> Home | None:
        """Return the instance that served the session of the request last; ``None`` if none is known."""
        request, targets = self._request, self._request.slo.targets
        found = self._parts.sessions.instance_of(request.tenant.name, request.stated_task, request.model)
        if found is None:
            return None
        target_s = targets.next_s()
        due_s = request.slo.slo_class.aged_after_s if target_s is None else target_s
        return Home(found, request.arrival_s + due_s, targets.ttft_s is not None and target_s == targets.ttft_s)

    async def _sent(self, held: HeldRequest) -> SentRequest:
        """Book the request with an instance, once one has room. Raises: QueueFull, DeadlinePassed."""
        request, limits, stored = self._request, self._parts.limits, self._parts.stored
        try:
            only = stored.instance_of(request)
            return await (self._parts.hold.flight(held) if only is None else stored.flight(request, held, only))
        except HoldFull:
            retry_s = self._retry_after_s()
            message = f"{limits.max_held} requests wait for an instance; retry in {retry_s} s"
            raise QueueFull(message, retry_s, request.slo_class) from None
        except HeldTooLong:
            retry_s = self._retry_after_s()
            waited = f"no instance took the request within {self._parts.clock.monotonic_s() - request.arrival_s:.1f} s"
            if request.ttl_s is not None and request.ttl_s <= limits.hold_max_s:
                raise DeadlinePassed(f"{waited}, the time of {TTL}; retry in {retry_s} s", retry_s) from None
            raise QueueFull(f"{waited}; retry in {retry_s} s", retry_s, request.slo_class) from None

    async def _asked(self, sent: SentRequest, held: HeldRequest) -> EngineResponse:
        """Return the response of the instance to which the request was sent. Raises: Refused, BrokenResponse."""
        parts, request, instance, late_s = self._parts, self._request, sent.instance, held.held_s + held.away_s
        parts.metrics.sent(parts.clock.monotonic_s() - request.arrival_s - late_s, request.slo_class, held.held_s)
        headers = request.headers_after(late_s)
        if held.prompt:
            headers.append((PREFIX_HEADER, stated_prefixes(names_of(held.prompt))))
        body = request.body_with(parts.stored.new_id(request, instance.name))
        return await parts.agents.send(instance.endpoint, instance.name, request.route, headers, body, request.model)

    def _retry_after_s(self) -> int:
        """Return the seconds until a slot should be free and the model be loaded (Retry-After)."""
        now_s, model = self._parts.clock.monotonic_s(), self._request.model
        place_s = self._parts.admission(model).reserve_place(self._request.slo_class, now_s, self._request.tenant.name)
        ready_s = self._parts.instances.ready_in_s(model, now_s) or 0.0
        return min(max(place_s, int(ready_s) + 1), MAX_RETRY_AFTER_S)


_REQUEST_ID: Final = REQUEST_ID.encode()


class ForwardedRequest:
    """One request and the response to it."""

    def __init__(self, parts: GatewayState, tenant: Tenant, opened: OpenedRequest) -> None:
        self._parts, self._tenant, self._opened = parts, tenant, opened
        self._arrival_s = parts.clock.monotonic_s()
        self._counted_as = NO_MODEL, ""
        self.answer = PassedResponse(opened.at_once, opened.scope["path"])
        self._use: RequestUse | None = None
        self._booking: RequestAccounting | None = None

    async def run(self) -> None:
        """Serve the request. Raises: SloServeError if nothing of a response was sent; ClientLeft."""
        outcome, choice = Outcome.FAILED, None
        try:
            with self._parts.places.place(self._tenant) as place:
                self._use = self._parts.rates.admit(self._tenant.name, self._tenant.quota)
                request = await self._read(place)
                self._use.estimate(request.prompt_tokens)
                choice = ModelChoice(self._parts, request)
                async with WhileClientWaits(self._opened.body) as client:
                    outcome = await self._serve(request, choice, place, client)
        except (InvalidRequest, BadBody, UnknownModel, Rejected):
            outcome = Outcome.REJECTED
            raise
        except Evicted:
            outcome = Outcome.EVICTED
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
                self._booking.promise_ended(outcome, self._use)
            is_refused_by_engine = outcome is Outcome.REJECTED and self.answer.begun
            if choice is not None and not is_refused_by_engine:  # the client's fault says nothing about the choice
                choice.ended(has_left=outcome is Outcome.ABORTED)

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
        if not completed or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Outcome.FAILED
        return Outcome.REJECTED if answer.status >= HTTPStatus.BAD_REQUEST else Outcome.COMPLETED

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
