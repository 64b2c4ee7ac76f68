"""Watch the outputs of one request pass through the API process, and report at the end how it fared.

A request is the unit of SLOs, admission, counts and reports; a call of the engine is the unit in which it is computed.
Most requests are one call. A beam search makes one for each beam and token, a request with built-in tools one for each
turn, and the language of a recording is found in a call before the others. Such a request is judged as one: TTFT at the
first token of its first call, e2e at the last token of its last. The time in which none of its calls is in the engine
(its tools run) counts for e2e alone.

A token's time is when it leaves for the client, counted from the arrival at our front end. Outputs that are not
streamed leave in one piece: their TTFT and TPOT are the engine's, back from that moment, since the scheduler can only
affect these; no user reads them as they come, so they have no QoE.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any, Protocol

from sloserve.core.clock import Clock
from sloserve.core.errors import Evicted
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted
from sloserve.core.promises import Promised
from sloserve.core.qoe import expectation
from sloserve.core.served import UNUSED, InEngine, ServedRequest
from sloserve.core.slo import SLO, is_late
from sloserve.core.tasks import TaskCall
from sloserve.engine.metrics.gen_ai_metrics import GENERATE_CONTENT
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.admission.ticket import Ticket, Together
from sloserve.vllm_plugin.server.call_figures import CallFigures, RequestFigures, Span, spans_in_engine

entering: ContextVar["EngineCall | None"] = ContextVar("sloserve_entering", default=None)
"""The call that is entering the engine: set between ``AsyncLLM.generate`` and the end of its ``add_request``, which
begins in the same instant.
"""

_FAILED = frozenset({"error"})
_ABORTED = frozenset({"abort"})


class TaskOfRequest(Protocol):
    """The call of a task that a request is."""

    def ends(self, *, completed: bool, refused: bool, used: InEngine = UNUSED) -> None:
        """Note that the request has ended."""


class Observed:
    """One request: its SLO, the figures of its calls of the engine, and how it ended.

    With n > 1 there is one outcome for all n outputs, streamed or not: the first token of the first, the slowest pace,
    the last token of the last, the least well read, and the preemptions of all.

    It ends with the first call that does not complete. Where all its calls are complete another may still follow, until
    its HTTP response has ended: until then their figures are provisional (``standing``).

    Args:
        in_engine: Looks up what the engine's request of a given id met.
        broken_off: Error to raise in place of a last output that the engine broke off; ``None`` to pass it on.
        started: Called once, at the first token that is seen.
        ended: Called once, with the outcome.

    Attributes:
        ticket: The ticket of its admission.
        together: The requests that are admitted with it or not at all.
        refusal: Why it was refused at its admission, and what it asked for; ``None`` unless it was.
        stop_string_found: Called with the engine's names of requests that a stop string ends; ``None`` for no call.
        predicted: Latency that was predicted at its admission.
        promised: Promise that was given at its admission; ``None`` for none.
        first_seen_s: Seconds from its arrival to the first token that was seen; ``None`` while there is none.
        stated: The keys of ``vllm_xargs`` that state its SLO.
        task: The call of a task that it is, or is a part of; ``None`` if it states no task.
        task_call: The task as the engine gets it; a request of several calls of the engine gets one of its own.
        expired: Whether it was given up because its time to live was over.
        operation: Operation of its route, by the conventions for generative AI.
        is_answered: Whether its HTTP response has ended, or there is none to wait for.
        counts: Called with numbers of output tokens as they become known; ``None`` if they count for nothing.
    """

    refusal: tuple[str | None, ArrivingRequest] | None = None
    stop_string_found: Callable[[str], None] | None = None

    def __init__(
        self,
        slo: SLO,
        tenant: str | None,
        arrival_s: float,
        clock: Clock,
        *,
        in_engine: Callable[[str], InEngine],
        broken_off: Callable[[], Exception | None],
        started: Callable[["Observed"], None],
        ended: Callable[["Observed", ServedRequest], None],
    ) -> None:
        self.slo = slo
        self.tenant = tenant
        self.arrival_s = arrival_s
        self.ticket: Ticket | None = None
        self.together: Together | None = None
        self.predicted: Predicted | None = None
        self.promised: Promised | None = None
        self.first_seen_s: float | None = None
        self.stated: dict[str, Any] = {}
        self.task: TaskOfRequest | None = None
        self.task_call: TaskCall | None = None
        self.expired = False
        self.operation = GENERATE_CONTENT
        self.is_answered = True
        self.counts: Callable[[int], None] | None = None
        self.standing: ServedRequest | None = None
        self.clock = clock
        self.in_engine = in_engine
        self.broken_off = broken_off
        self._started = started
        self._ended: Callable[[Observed, ServedRequest], None] | None = ended
        self._seen = False
        self._open = 0
        self._figures = RequestFigures()

    def call(self, *, arrival_s: float | None = None) -> "EngineCall":
        """Return a call of the engine that is to serve it.

        Args:
            arrival_s: When a further call was made; ``None`` for the first, which arrived with the request.
        """
        self.standing = None
        self._open += 1
        return EngineCall(self, self.arrival_s if arrival_s is None else arrival_s, is_first=arrival_s is None)

    def age_s(self) -> float:
        """Return the time since its arrival."""
        return self.clock.monotonic_s() - self.arrival_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token of the calls that have ended; ``None`` while there is none."""
        return self._figures.first_s

    @property
    def begun(self) -> bool:
        """Whether its first token is known to be out."""
        return self._seen or self.ttft_s is not None

    @property
    def is_read(self) -> bool:
        """Whether any of its calls has entered the engine."""
        return self._figures.rounds > 0

    @property
    def has_ended(self) -> bool:
        """Whether its outcome stands."""
        return self._ended is None

    def sees_token(self) -> None:
        """Note that a token leaves."""
        if not self._seen:
            self._seen = True
            self.first_seen_s = self.age_s()
            self._started(self)

    def call_begins(self) -> None:
        """Note that a call of it enters the engine."""
        self._figures.begins(self.age_s())

    def call_ends(self, outcome: Outcome, figures: CallFigures | None) -> None:
        """Record that a call has ended.

        Args:
            outcome: How it ended.
            figures: Figures of the call; ``None`` if it never entered the engine.
        """
        self._open -= 1
        if self.has_ended:
            return
        if figures is not None:
            self._figures.ends(figures, self.age_s())
        if outcome is not Outcome.COMPLETED:
            self.end(outcome)
        elif not self._open:
            self.standing = self._served(outcome)
            if self.is_answered:
                self.end(outcome)
            elif self.ticket is not None:
                self.ticket.holds()

    def answer_ends(self, *, begun: bool) -> None:
        """Record that its HTTP response has ended, so that no further call follows.

        Args:
            begun: Whether any of the response was sent.
        """
        self.is_answered = True
        if self.standing is not None:
            self.end(Outcome.COMPLETED if begun else Outcome.ABORTED)

    def end(self, outcome: Outcome) -> None:
        """End it with this outcome, unless it has ended."""
        ended, self._ended = self._ended, None  # drops also the HTTP request, which refers to this one
        if ended is None:
            return
        if self.expired and outcome is Outcome.ABORTED:
            outcome = Outcome.EVICTED
        served, self.standing = self.standing, None
        if served is None or served.outcome is not outcome:
            served = self._served(outcome)
        ended(self, served)

    def _served(self, outcome: Outcome) -> ServedRequest:
        found, latency, quality = self._figures, None, None
        if outcome is Outcome.COMPLETED:
            latency, quality = found.latency(), found.qoe(self.slo)
        elif outcome is not Outcome.INVALID and expectation(self.slo.targets) is not None:
            quality = 0.0
        return ServedRequest(
            slo=self.slo,
            tenant=self.tenant,
            outcome=outcome,
            latency=latency,
            qoe=quality,
            prompt_tokens=found.prompt_tokens,
            output_tokens=found.output_tokens,
            waited_s=found.waited_s,
            preemptions=found.preemptions,
            in_engine=found.in_engine,
            predicted=self.predicted,
            promised=self.promised,
            was_late=outcome is Outcome.ABORTED and is_late(self.slo.targets, self.age_s(), begun=self.begun),
        )


class EngineCall:
    """One call of the engine for a request: when its tokens left, and how it ended.

    Attributes:
        arrival_s: When it was made.
        is_first: Whether it is the request's first.
        engine_request_id: Name in the engine, once the call is there.
        figures: vLLM's figures (``RequestStateStats``) of each of its n outputs, by the output's own name in the
            engine; empty under ``--disable-log-stats``.
    """

    def __init__(self, request: Observed, arrival_s: float, *, is_first: bool) -> None:
        self.request = request
        self.arrival_s = arrival_s
        self.is_first = is_first
        self.engine_request_id: str | None = None
        self.figures: dict[str, Any] = {}
        self._token_times_s: dict[int, array[float]] = {}
        self._begun = self._seen = self._over = False
        self._counted = 0

    async def watch(self, outputs: AsyncIterator[Any], *, streamed: bool, cumulative: bool) -> AsyncIterator[Any]:
        """Pass ``outputs`` on, untouched. The outcome of the call stands before the last of them is passed on."""
        last = None
        self._begun = True
        self.request.call_begins()
        entering.set(self)
        try:
            async for last in outputs:
                if streamed:
                    self._passes(last, cumulative)
                if self.request.stop_string_found is not None:
                    self._note_stop_strings(last, self.request.stop_string_found)
                if last.finished:
                    self._check_whole(last)
                    self._finish(last, streamed)
                yield last
        except BaseException as error:  # also the consumer's leaving
            self._end(outcome_of(error), last, streamed)
            raise
        self._end(Outcome.ABORTED, last, streamed)

    def abandoned(self) -> None:
        """Record that the outputs will not be read any more; does nothing once the outcome stands."""
        self._end(Outcome.ABORTED, None, streamed=True)

    def _passes(self, output: Any, cumulative: bool) -> None:
        request, come = self.request, 0
        now_s = request.clock.monotonic_s() - request.arrival_s
        for one in output.outputs:
            times_s = self._token_times_s.get(one.index)
            if times_s is None:
                times_s = self._token_times_s[one.index] = array("d")
            new = len(one.token_ids) - (len(times_s) if cumulative else 0)
            if new == 1:
                times_s.append(now_s)
            elif new > 1:
                times_s.extend((now_s,) * new)
            come += new
        if request.counts is not None:
            self._count(come)
        if not self._seen and any(self._token_times_s.values()):
            self._seen = True
            request.sees_token()

    def _count(self, tokens: int) -> None:
        """Count further tokens of the output."""
        if self.request.counts is not None and tokens > 0:
            self._counted += tokens
            self.request.counts(tokens)

    def _check_whole(self, output: Any) -> None:
        if any(one.finish_reason in _ABORTED for one in output.outputs):
            error = self.request.broken_off()
            if error is not None:
                raise error

    def _note_stop_strings(self, output: Any, found: Callable[[str], None]) -> None:
        for one in output.outputs:
            if self.engine_request_id is not None and isinstance(one.stop_reason, str):
                found(self.engine_request_id)
                found(
                    f"{one.index}_{self.engine_request_id}"
                )  # its name in the engine, if it is one of several outputs

    def _finish(self, output: Any, streamed: bool) -> None:
        reasons = {one.finish_reason for one in output.outputs}
        if reasons & _FAILED:
            self._end(Outcome.FAILED, output, streamed)
        elif reasons & _ABORTED:
            self._end(Outcome.ABORTED, output, streamed)
        else:
            self._end(Outcome.COMPLETED, output, streamed)

    def _end(self, outcome: Outcome, output: Any, streamed: bool) -> None:
        if self._over:
            return
        self._over = True
        # Of a call that was broken off vLLM knows tokens that did not leave.
        computed = sum(getattr(one, "num_generation_tokens", 0) for one in self.figures.values())
        self._count(max(self._output_tokens(output), computed) - self._counted)
        figures = self._figures(outcome, output, streamed) if self._begun and not self.request.has_ended else None
        self.request.call_ends(outcome, figures)

    def _figures(self, outcome: Outcome, output: Any, streamed: bool) -> CallFigures:
        spans: list[Span] = []
        last_s = 0.0
        if streamed:
            timelines = [times_s for times_s in self._token_times_s.values() if times_s]
            spans = [(times_s[0], times_s[-1] - times_s[0], len(times_s)) for times_s in timelines]
            last_s = max((times_s[-1] for times_s in timelines), default=0.0)
        elif outcome is Outcome.COMPLETED and any(one.token_ids for one in output.outputs):
            last_s = self.request.age_s()
            # Without vLLM's figures all came with the whole.
            spans = spans_in_engine(self.figures.values(), last_s) or [(last_s, 0.0, 1)]
        in_engine = InEngine()
        if self.engine_request_id is not None:
            in_engine = self.request.in_engine(self.engine_request_id)
        return CallFigures(
            spans=spans,
            last_s=last_s,
            times_s=self._token_times_s if streamed else None,
            prompt_tokens=len(getattr(output, "prompt_token_ids", None) or ()),
            output_tokens=self._output_tokens(output),
            waited_s=self._waited_s(),
            preemptions=sum(one.num_preemptions for one in self.figures.values()),
            in_engine=in_engine,
        )

    def _waited_s(self) -> float | None:
        """Return the time in the engine's queue before the first step that served the call; vLLM's own figures."""
        served = [one for one in self.figures.values() if one.scheduled_ts and one.queued_ts]
        if not served:
            return None
        return float(min(one.scheduled_ts for one in served) - min(one.queued_ts for one in served))

    def _output_tokens(self, output: Any) -> int:
        if self._token_times_s:
            return sum(len(times_s) for times_s in self._token_times_s.values())
        return sum(len(one.token_ids) for one in getattr(output, "outputs", ()))


def outcome_of(error: BaseException) -> Outcome:
    """Return how a request ends that raised ``error``."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return Outcome.ABORTED
    if isinstance(error.__cause__, Evicted):
        return Outcome.EVICTED
    limits, mistakes = refusals()
    if isinstance(error, limits):
        return Outcome.REJECTED
    return Outcome.INVALID if isinstance(error, mistakes) else Outcome.FAILED


def refusals() -> tuple[type[Exception], tuple[type[Exception], ...]]:
    """Return vLLM's error for its queue limits, and its errors for what it finds wrong with a request."""
    from vllm.exceptions import GracefulHTTPError, VLLMClientError

    return GracefulHTTPError, (VLLMClientError, ValueError)
