"""Sends one request to an instance, and to another if that one refuses it or is lost before the first byte.

The client sees nothing of such a retry.
"""

import logging
import math
from typing import Final

from sloserve.core.errors import DeadlinePassed, EngineError, QueueFull, Rejected
from sloserve.fleet.contract.door import Refusal, Refused
from sloserve.fleet.gateway.booking import Booking
from sloserve.fleet.gateway.doors import BrokenAnswer, EngineAnswer
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.held import HeldRequest, HoldFull
from sloserve.fleet.gateway.hold import HeldTooLong
from sloserve.fleet.gateway.instances import SentRequest
from sloserve.fleet.gateway.model_choice import ModelChoice
from sloserve.fleet.gateway.parts import GatewayParts
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.gateway.prefixes import beginnings
from sloserve.wire.headers import TTL

logger = logging.getLogger(__name__)

MOST_LOST: Final = 2
"""Engines that may die with a request before it fails with an error: the request may be what kills them."""
MAX_RETRY_AFTER_S: Final = 30


class Dispatch:
    """Sends one request to an instance, and retries on others until the first byte has come."""

    def __init__(self, parts: GatewayParts, request: GatewayRequest, choice: ModelChoice, booking: Booking) -> None:
        self._parts, self._request, self._choice, self._booking = parts, request, choice, booking

    async def first_byte(self) -> tuple[EngineAnswer, bytes, SentRequest]:
        """Return the begin of a response, from whichever instance gives one. Raises: Rejected, Evicted, EngineError."""
        held, lost = self._held(), 0
        while True:
            sent = await self._sent(held)
            answer: EngineAnswer | None = None
            sent_s = self._parts.clock.monotonic_s()
            try:
                answer = await self._asked(sent, held)
                return answer, await answer.read(), sent
            except Refused as error:
                refusal = error.reason
            except BrokenAnswer:
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
        self, sent: SentRequest, answer: EngineAnswer | None, *, refused: bool = False, gone: bool = False
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
        request, slo, limits = self._request, self._request.slo, self._parts.limits
        target_s = slo.targets.next_s()
        ends_s = request.arrival_s + (math.inf if request.ttl_s is None else request.ttl_s)
        output = self._parts.demand.output_tokens(request.model, request.slo_class, request.most_output)
        return HeldRequest(
            model=request.model,
            slo_class=request.slo_class,
            arrival_s=request.arrival_s,
            due_s=request.arrival_s + (slo.slo_class.aged_after_s if target_s is None else target_s),
            rank=slo.slo_class.rank,
            until_s=request.arrival_s + limits.hold_max_s,
            ends_s=ends_s,
            work=Work(1, request.prompt_tokens, output * request.replies),
            prompt=beginnings(request.model, request.messages, request.prompt) if limits.affinity else (),
        )

    async def _sent(self, held: HeldRequest) -> SentRequest:
        """Book the request with an instance, once one has room. Raises: QueueFull, DeadlinePassed."""
        request, limits = self._request, self._parts.limits
        try:
            return await self._parts.hold.flight(held)
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

    async def _asked(self, sent: SentRequest, held: HeldRequest) -> EngineAnswer:
        """Return the response of the instance to which the request was sent. Raises: Refused, BrokenAnswer."""
        parts, request, instance, late_s = self._parts, self._request, sent.instance, held.held_s + held.away_s
        parts.metrics.sent(parts.clock.monotonic_s() - request.arrival_s - late_s, request.slo_class, held.held_s)
        headers = request.headers_after(late_s)
        return await parts.doors.send(instance.door, instance.name, request.route, headers, request.body, request.model)

    def _retry_after_s(self) -> int:
        """Return the seconds until a slot should be free and the model be loaded (Retry-After)."""
        now_s, model = self._parts.clock.monotonic_s(), self._request.model
        place_s = self._parts.admission(model).promise_place(self._request.slo_class, now_s)
        ready_s = self._parts.instances.ready_in_s(model, now_s) or 0.0
        return min(max(place_s, int(ready_s) + 1), MAX_RETRY_AFTER_S)
