"""One admitted request: its events teach the predictor and free its place."""

import functools
from dataclasses import dataclass, field, replace

from sloserve.core.finished import Latency
from sloserve.core.promises import Promised
from sloserve.scheduler.admission.prediction import ArrivingRequest, Forecast, Predictor
from sloserve.scheduler.admission.promising import Promising
from sloserve.scheduler.admission.target_use import OpenUse
from sloserve.scheduler.admission.waiting_queue import WaitingPlace


class Ticket:
    """One admitted request, from which the predictor learns.

    Every event counts once, so that ``ended`` may be called at the end of every request.

    Attributes:
        why_no_promise: Why it is served without the promise that it asks for; ``None`` if it has it, or asks for none.
    """

    __slots__ = (
        "new",
        "forecast",
        "place",
        "why_no_promise",
        "_predictor",
        "_promising",
        "_use",
        "_judged",
        "_is_typical",
    )

    def __init__(
        self,
        new: ArrivingRequest,
        forecast: Forecast,
        place: WaitingPlace,
        *,
        predictor: Predictor,
        promising: Promising,
        use: OpenUse | None,
        why_no_promise: str | None,
    ) -> None:
        self.new = new
        self.forecast = forecast
        self.place = place
        self.why_no_promise = why_no_promise
        self._predictor, self._promising, self._use = predictor, promising, use
        self._judged = False
        self._is_typical = True
        if use is not None:
            place.on_start = functools.partial(promising.begins, use)

    @property
    def promised(self) -> Promised | None:
        """The promise that was given; ``None`` for none."""
        return None if self._use is None else self._use.promised

    def started(self, now_s: float) -> None:
        """Record that the first token leaves now."""
        self.place.started(now_s)
        self._judge(max(now_s - self.new.arrival_s, 0.0), now_s)

    def is_not_alone(self) -> None:
        """Note that others began with it, so that its TTFT is not the TTFT of an idle engine."""
        self.forecast = replace(self.forecast, alone=False)

    def holds(self) -> None:
        """Note that it is complete, unless it goes on: its e2e latency has stopped growing."""
        if self.forecast.e2e is not None:
            self.forecast.e2e.prediction.over = True
        if self._use is not None:
            self._promising.holds(self._use)

    def goes_on(self, ttft_s: float | None, now_s: float) -> None:
        """Note that the request makes a further call of the engine.

        Its TTFT counts, if its first token is out after ``ttft_s``. How long it takes, and how many tokens it has, says
        nothing of requests of one call, which alone are predicted.
        """
        self._is_typical = False
        if ttft_s is not None:
            self.place.started(now_s)
            self._judge(ttft_s, now_s)
        self._predictor.gave_up(self.forecast)
        if self._use is not None:
            self._promising.ended(self._use, None, now_s)

    def ended(self, latency: Latency | None, output_tokens: int, now_s: float) -> None:
        """Record that the request has ended.

        Args:
            latency: Latency of the request; ``None`` unless it was completed with at least one token.
            output_tokens: Tokens of its output.
            now_s: The present time, in seconds.
        """
        if latency is None:
            self.place.left(now_s)
            self._predictor.gave_up(self.forecast)
        else:
            self.place.started(now_s)
            if self._is_typical:
                self._judge(latency.ttft_s, now_s)
                self._predictor.completed(self.new, self.forecast, latency, output_tokens, now_s)
        if self._use is not None:
            self._promising.ended(self._use, latency if self._is_typical else None, now_s)

    def _judge(self, ttft_s: float, now_s: float) -> None:
        if not self._judged:
            self._judged = True
            if self._use is not None:
                self._promising.started(self._use, ttft_s, now_s)
            self._predictor.started(self.new, self.forecast, ttft_s, now_s)


@dataclass(slots=True)
class Together:
    """The requests of one HTTP request that begin at once, as a list of prompts does: all are admitted or none.

    Args:
        tickets: Tickets of the requests admitted so far.
        found_none_waiting: Whether no other request of the class waited when the first of them came, and no place was
            kept for one.
        is_decided: Whether the HTTP request is being served, so that its further requests are admitted.
        is_let_in: Whether they are admitted whatever waits, as calls of a task of which a call was admitted before.
    """

    tickets: list[Ticket] = field(default_factory=list)
    found_none_waiting: bool = False
    is_decided: bool = False
    is_let_in: bool = False

    def add(self, ticket: Ticket) -> None:
        """Add one that was admitted."""
        if len(self.tickets) == 1:
            self.tickets[0].is_not_alone()
        self.tickets.append(ticket)
