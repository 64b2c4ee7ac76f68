"""The front end of a virtual engine: what vLLM's refuses, what admission refuses, and what admission learns.

All is decided when a request arrives, from what has left the engine by then, as live. An output's length is not known
before it ends. Every output is streamed, so every first token is seen.
"""

from collections.abc import Callable

from sloserve.core.errors import Rejected
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted
from sloserve.core.promises import Promised
from sloserve.core.request import WorkloadRequest
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.length.at_admission import LengthAtAdmission
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.ticket import Ticket


class VirtualFrontEnd:
    """The front end that decides whether a request is taken in.

    Args:
        admission: Admission of requests; ``None`` for vLLM's checks alone.
        lengths: Predictor of the lengths of outputs; ``None`` for none.
    """

    def __init__(
        self, settings: EngineSettings, admission: Admission | None, lengths: LengthAtAdmission | None = None
    ) -> None:
        self._settings = settings
        self._lengths = lengths
        self._admission = admission
        self._tickets: dict[str, Ticket] = {}
        self._predicted: dict[str, Predicted | None] = {}
        self._promised: dict[str, Promised] = {}
        self._queued_tokens: dict[str, int] = {}
        self._queued_tokens_sum = 0
        self._in_flight = 0
        self.on_started: Callable[[str], object] | None = None
        """Function that is called with the id of each request when its first token leaves."""
        self.on_ended: Callable[[str, Outcome], object] | None = None
        """Function that is called with the id and the outcome of each request that ended, for what stands before the
        engine.
        """

    def takes(self, item: WorkloadRequest, now_s: float) -> bool:
        """Return whether the request is taken in; if so it is counted as waiting."""
        # vLLM answers 400 to a prompt that leaves no room for a single output token, and 503 at its caps.
        if self.max_tokens(item) < 1 or self._at_cap():
            return False
        if self._admission is not None:
            length = self.length(item, now_s)
            new = ArrivingRequest(
                item.slo,
                now_s,
                item.prompt_tokens,
                self.max_tokens(item),
                length_quantiles=length,
                tenant=item.tenant,
            )
            forecast = self._admission.forecast(new, now_s)
            try:
                ticket = self._admission.admit(new, forecast, item.request_id, now_s)
            except Rejected:
                self._predicted[item.request_id] = forecast.predicted
                return False
            self._predicted[item.request_id] = ticket.forecast.predicted
            self._tickets[item.request_id] = ticket
            if ticket.promised is not None:
                self._promised[item.request_id] = ticket.promised
        self._queued_tokens[item.request_id] = item.prompt_tokens
        self._queued_tokens_sum += item.prompt_tokens
        self._in_flight += 1
        return True

    def max_tokens(self, item: WorkloadRequest) -> int:
        """Return the most tokens of its output; less than 1 if the prompt fills the context."""
        room = self._settings.max_model_len - item.prompt_tokens
        return room if item.max_tokens is None else min(room, item.max_tokens)

    def length(self, item: WorkloadRequest, now_s: float) -> list[float] | None:
        """Return quantiles of its output's length, as live but without its text: prompts are made up."""
        if self._lengths is None:
            return None
        return self._lengths.quantiles(
            item.slo.slo_class.name,
            arrival_s=now_s,
            prompt_tokens=item.prompt_tokens,
            max_tokens=self.max_tokens(item),
        )

    def predicted(self, request_id: str) -> Predicted | None:
        """Return the latency that was predicted for a request at its admission."""
        return self._predicted.get(request_id)

    def promised(self, request_id: str) -> Promised | None:
        """Return the promise that a request was given at its admission; ``None`` for none."""
        return self._promised.get(request_id)

    def first_after_s(self, item: WorkloadRequest) -> float | None:
        """Return the seconds from its arrival after which a promised request comes first; ``None`` for any other.

        Without an admission a promise that the request brings along holds, as in the replay of a recording.
        """
        promised = self._promised.get(item.request_id)
        if promised is not None:
            return promised.first_after_s
        wish = item.slo.promise if self._admission is None else None
        return None if wish is None else wish.given_after_s

    def started(self, request_id: str, now_s: float) -> None:
        """Record that the first token leaves the engine."""
        self._queued_tokens_sum -= self._queued_tokens.pop(request_id, 0)
        if self._admission is not None:
            self._tickets[request_id].started(now_s)
        if self.on_started is not None:
            self.on_started(request_id)

    def ended(self, request_id: str, latency: Latency | None, tokens: int, now_s: float) -> None:
        """Record that a request that was taken in is over.

        Args:
            request_id: Id of the request.
            latency: Latency of the request; ``None`` if it was not completed.
            tokens: Tokens of its output.
            now_s: The present time, in seconds.
        """
        self._queued_tokens_sum -= self._queued_tokens.pop(request_id, 0)
        self._in_flight -= 1
        if self._admission is not None:
            self._tickets.pop(request_id).ended(latency, tokens, now_s)

    def notify(self, request_id: str, outcome: Outcome) -> None:
        """Call :attr:`on_ended`, if there is such a function."""
        if self.on_ended is not None:
            self.on_ended(request_id, outcome)

    def _at_cap(self) -> bool:
        """Return whether vLLM's caps are reached: on requests, this one counted, or on tokens before this one's."""
        reqs, tokens = self._settings.max_num_queued_reqs, self._settings.max_num_queued_tokens
        if reqs is not None and self._in_flight + 1 > reqs:
            return True
        return tokens is not None and self._queued_tokens_sum >= tokens
