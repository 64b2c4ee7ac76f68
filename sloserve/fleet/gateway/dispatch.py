"""The way of a request of the gateway to an instance that takes it.

Until the first byte of the response has come the request can go to another instance, if the first one refuses it or is
lost, and its client sees nothing of that.
"""

import logging
from typing import Final

from sloserve.core.errors import DeadlinePassed, EngineError, QueueFull, Rejected
from sloserve.fleet.contract.endpoint import PREFIX_HEADER, Refusal, Refused, stated_prefixes
from sloserve.fleet.contract.reported_tasks import TASK_HEADER
from sloserve.fleet.gateway.accounting import RequestAccounting
from sloserve.fleet.gateway.agent_connections import BrokenResponse, EngineResponse
from sloserve.fleet.gateway.gateway_instance import SentRequest
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.held import HeldTooLong, HoldFull
from sloserve.fleet.gateway.held_request import HeldRequest
from sloserve.fleet.gateway.model_choice import ModelChoice
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.fleet.gateway.prefixes import names_of
from sloserve.fleet.gateway.sessions import Home
from sloserve.scheduler.admission.retry_after import MAX_RETRY_AFTER_S
from sloserve.wire.headers import TTL

logger = logging.getLogger(__name__)

MOST_LOST: Final = 2
"""Engines that may die with a request before it fails with an error: the request may be what kills them."""


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
        if request.reported_task is not None:
            headers.append((TASK_HEADER, request.reported_task))
        body = request.body_with(parts.stored.new_id(request, instance.name))
        return await parts.agents.send(instance.endpoint, instance.name, request.route, headers, body, request.model)

    def _retry_after_s(self) -> int:
        """Return the seconds until a slot should be free and the model be loaded (Retry-After)."""
        now_s, model = self._parts.clock.monotonic_s(), self._request.model
        place_s = self._parts.admission(model).reserve_place(self._request.slo_class, now_s, self._request.tenant.name)
        ready_s = self._parts.instances.ready_in_s(model, now_s) or 0.0
        return min(max(place_s, int(ready_s) + 1), MAX_RETRY_AFTER_S)
