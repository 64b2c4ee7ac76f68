"""How a request of the gateway is counted: once in the admission of its model, in the demand, and in the metrics."""

from dataclasses import replace
from http import HTTPStatus

from sloserve.core.errors import PromiseRefused
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.served import ServedRequest
from sloserve.core.slo import SLO, Targets, is_late
from sloserve.engine.metrics.task_table import StartedCall
from sloserve.fleet.client_routes import GENERATING
from sloserve.fleet.gateway.choosing import ResponseTimes
from sloserve.fleet.gateway.gateway_request import GatewayRequest
from sloserve.fleet.gateway.model_choice import ModelChoice
from sloserve.fleet.gateway.parts import GatewayState
from sloserve.fleet.gateway.passing import PassedResponse
from sloserve.fleet.gateway.traffic_log import LoggedRequest
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.ticket import Ticket, Together
from sloserve.wire.headers import PROMISED
from sloserve.wire.progress import RequestProgress, place_at_admission, place_header
from sloserve.wire.rate_limits import RequestUse
from sloserve.wire.response_headers import predictions, promise_header


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
        self._measured: Latency | None = None
        """Latency of a complete response, also of one that generates nothing."""

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

    @property
    def slo_class(self) -> str:
        """Name of the request's class."""
        return self._request.slo_class

    @property
    def _seen_targets(self) -> Targets:
        """Targets of the request that can be judged here: of an output in one piece only the end is seen."""
        targets = self._request.slo.targets
        return targets if self._request.streamed else Targets(e2e_s=targets.e2e_s)

    def has_missed(self, now_s: float) -> bool:
        """Return whether the request has missed the target of its first token or of its whole output by now."""
        targets, first_s, arrival_s = self._seen_targets, self._answer.first_s, self._request.arrival_s
        if first_s is not None and is_late(targets, first_s - arrival_s, begun=False):
            return True
        return is_late(targets, now_s - arrival_s, begun=first_s is not None)

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
        self._parts.attained.admitted(self)
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
        self._measured = latency
        if not tokens:
            latency = None
        elif latency is not None:
            choice.completed(ResponseTimes(latency.e2e_s, tokens, latency.ttft_s if request.streamed else None))
        if self._ticket is not None:
            self._ticket.ended(latency, tokens, now_s)
        self._latency = latency

    def judged(self, outcome: Outcome, use: RequestUse | None) -> None:
        """Count whether the request met its targets, and its promise, if it was given one.

        Args:
            outcome: Outcome of the request.
            use: What the request uses of its tenant's limits; ``None`` if it was not admitted.
        """
        request, slo = self._request, self._request.slo
        now_s = self._parts.clock.monotonic_s()
        self._parts.attained.left(self)
        judged = self._parts.attained.ended(slo, outcome, self._measured, now_s, streamed=request.streamed)
        self._parts.metrics.judged(request.model, judged)
        slo = replace(slo, targets=self._seen_targets)
        age_s = now_s - request.arrival_s
        was_late = outcome is Outcome.ABORTED and is_late(slo.targets, age_s, begun=self._answer.begun)
        served = ServedRequest(slo, outcome, latency=self._latency, promised=request.promised, was_late=was_late)
        if request.promised is not None and served.promise is not None:
            # Without a target that can be judged, a response that came to its end has kept its promise.
            kept = "kept" if served.good is None and self._latency is not None else served.promise
            self._parts.metrics.promise_ended(request.model, request.slo_class, request.promised.level, kept)
            if use is not None:
                use.promise_ended(kept)
