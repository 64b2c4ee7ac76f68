"""What a gateway counts of one request: in the admission of its model, in the demand, and in the metrics."""

from http import HTTPStatus

from sloserve.core.finished import Latency
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.model_choice import ModelChoice
from sloserve.fleet.gateway.parts import GatewayParts
from sloserve.fleet.gateway.passing import PassedAnswer
from sloserve.scheduler.admission.admission import Ticket
from sloserve.scheduler.admission.prediction import ArrivingRequest


class Booking:
    """Counts one request in admission, demand and metrics. The caller must call ``ended()`` exactly once."""

    def __init__(self, parts: GatewayParts, request: GatewayRequest, answer: PassedAnswer) -> None:
        self._parts, self._request, self._answer = parts, request, answer
        self._ticket: Ticket | None = None

    def arrived(self) -> None:
        """Count demand for the model that the request asks for."""
        now_s, request = self._parts.clock.monotonic_s(), self._request
        self._parts.demand.arrived(request.model, request.slo_class, request.prompt_tokens, now_s)

    def admit(self, model: str) -> None:
        """Let the request wait for this model, and for no other.

        Raises: QueueFull, SLOUnattainable; then nothing has changed.
        """
        now_s, request = self._parts.clock.monotonic_s(), self._request
        new = ArrivingRequest(
            request.slo,
            request.arrival_s,
            request.prompt_tokens,
            request.max_tokens,
            request.output_tokens,
            request.replies,
            request.streamed,
            key=lambda: (request.tenant.name, hash(request.body)),
        )
        admission = self._parts.admission(model)
        ticket = admission.admit(new, admission.forecast(new, now_s), self._answer, now_s)
        if self._ticket is not None:
            self._ticket.ended(None, 0, now_s)
        self._ticket = ticket

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
        now_s, tokens, latency = self._parts.clock.monotonic_s(), 0, None
        request, first_s = self._request, self._answer.first_s
        if completed and self._answer.status == HTTPStatus.OK and first_s is not None:
            limit = request.max_tokens if request.replies == 1 else None
            tokens = self._parts.demand.ended(request.model, request.slo_class, self._answer.streamed, limit)
            tpot_s = (now_s - first_s) / (tokens - 1) if tokens > 1 else 0.0
            latency = Latency(first_s - request.arrival_s, tpot_s, now_s - request.arrival_s)
        self._parts.attained.ended(
            request.slo, latency, now_s, streamed=request.streamed, rejected=self._ticket is None
        )
        if not tokens:
            latency = None
        elif latency is not None:
            choice.completed(latency.e2e_s, tokens)
        if self._ticket is not None:
            self._ticket.ended(latency, tokens, now_s)
