"""One request through the gateway: read, admitted, sent to an instance, its response passed on as it arrives.

Until the first byte of the response has come the request can go elsewhere, and its client sees nothing of that; if a
stream breaks off later, it ends with an error event.
"""

import asyncio
from http import HTTPStatus
from typing import Final

from sloserve.core.errors import BadBody, Evicted, InvalidRequest, Rejected, UnknownModel
from sloserve.core.outcome import Outcome
from sloserve.fleet.gateway.booking import Booking
from sloserve.fleet.gateway.dispatch import Dispatch
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.limits import RequestPlace
from sloserve.fleet.gateway.metrics import NO_MODEL
from sloserve.fleet.gateway.model_choice import ModelChoice
from sloserve.fleet.gateway.parts import GatewayParts
from sloserve.fleet.gateway.passing import PassedAnswer
from sloserve.wire.asgi import ClientLeft, tell_slo
from sloserve.wire.client import WhileClientWaits
from sloserve.wire.headers import REQUEST_ID
from sloserve.wire.opening import OpenedRequest

_REQUEST_ID: Final = REQUEST_ID.encode()


class ForwardedRequest:
    """One request and the response to it."""

    def __init__(self, parts: GatewayParts, tenant: Tenant, opened: OpenedRequest) -> None:
        self._parts, self._tenant, self._opened = parts, tenant, opened
        self._arrival_s = parts.clock.monotonic_s()
        self._counted_as = NO_MODEL, ""
        self.answer = PassedAnswer(opened.at_once)

    async def run(self) -> None:
        """Serve the request. Raises: SloServeError if nothing of a response was sent; ClientLeft."""
        outcome = Outcome.FAILED
        try:
            with self._parts.places.place(self._tenant) as place:
                request = await self._read(place)
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
            self._parts.metrics.ended(*self._counted_as, outcome)

    async def _read(self, place: RequestPlace) -> GatewayRequest:
        scope, body = self._opened.scope, await self._opened.body.read(place.take)
        request = self._parts.reader.read(
            scope["headers"], body, self._tenant, self._opened.id, scope["path"], self._arrival_s
        )
        tell_slo(scope, request.slo)
        return request

    async def _serve(
        self, request: GatewayRequest, choice: ModelChoice, place: RequestPlace, client: WhileClientWaits
    ) -> Outcome:
        parts, answer, completed = self._parts, self.answer, False
        booking = Booking(parts, request, answer)
        booking.arrived()
        dispatch = Dispatch(parts, request, choice, booking)
        try:
            booking.admit(request.model)
            from_engine, first, sent = await dispatch.first_byte()
            try:
                answer.begin(from_engine.status, request.model, client, parts.clock.monotonic_s())
                booking.answer_begins()
                place.forget_body()
                request.forget_body()
                headers = [(_REQUEST_ID, self._opened.id.encode()), *choice.headers]
                completed = await answer.pass_on(from_engine, first, headers, client)
            finally:
                dispatch.over(sent, from_engine)
        finally:
            self._counted_as = request.model, request.slo_class
            booking.ended(choice, completed=completed)
        if not completed or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return Outcome.FAILED
        return Outcome.REJECTED if answer.status >= HTTPStatus.BAD_REQUEST else Outcome.COMPLETED
