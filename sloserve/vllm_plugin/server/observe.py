"""Watches one request's replies pass through the API process, and says at the end how it fared.

Times are those at which a reply leaves for the client, counted from the arrival at our front end. Replies that are not
streamed leave in one piece: their TTFT and TPOT are the engine's, back from that moment, since those are what the
scheduler can do something about, and no user reads them as they come, so they have no QoE.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from sloserve.admission.admission import Ticket
from sloserve.core.clock import Clock
from sloserve.core.errors import Evicted
from sloserve.core.finished import Latency
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted
from sloserve.core.qoe import expectation, qoe
from sloserve.core.served import Interruptions, ServedRequest
from sloserve.core.slo import SLO

entering: ContextVar["Observed | None"] = ContextVar("sloserve_entering", default=None)
"""The request that is entering the engine: set between ``AsyncLLM.generate`` and the end of its ``add_request``, which
begins in the same instant.
"""

_FAILED = frozenset({"error"})
_ABORTED = frozenset({"abort"})


class Observed:
    """One call of the engine: its SLO, when its tokens left, how it ended.

    With n > 1 there is one outcome for all n replies, streamed or not: the first token of the first, the slowest pace,
    the last token of the last, the least well read, and the preemptions of all.

    engine_request_id: its name in the engine, once it is there. figures: vLLM's (``RequestStateStats``) of each of its
    n replies, by that one's own name in the engine; empty under ``--disable-log-stats``. ticket: of its admission.
    predicted: what was predicted then. expired: whether it was given up, its time to live being over.

    Args:
        interruptions: looks up what the engine's request of a given id met.
        broken_off: what to raise in place of a last reply that the engine broke off; ``None`` to pass it on.
        started, ended: called once each: at the first token that is seen, and with the outcome.
    """

    def __init__(
        self,
        slo: SLO,
        tenant: str | None,
        arrival_s: float,
        clock: Clock,
        *,
        interruptions: Callable[[str], Interruptions],
        broken_off: Callable[[], Exception | None],
        started: Callable[["Observed"], None],
        ended: Callable[["Observed", ServedRequest], None],
    ) -> None:
        self.slo = slo
        self.tenant = tenant
        self.arrival_s = arrival_s
        self.engine_request_id: str | None = None
        self.figures: dict[str, Any] = {}
        self.ticket: Ticket | None = None
        self.predicted: Predicted | None = None
        self.expired = False
        self._clock = clock
        self._interruptions = interruptions
        self._broken_off = broken_off
        self._started = started
        self._ended: Callable[[Observed, ServedRequest], None] | None = ended
        self._token_times_s: dict[int, array[float]] = {}
        self._begun = False

    async def watch(self, replies: AsyncIterator[Any], *, streamed: bool, cumulative: bool) -> AsyncIterator[Any]:
        """Passes ``replies`` on, untouched. The outcome stands before the last of them is passed on."""
        last = None
        entering.set(self)
        try:
            async for last in replies:
                if streamed:
                    self._passes(last, cumulative)
                if last.finished:
                    self._check_whole(last)
                    self._finish(last, streamed)
                yield last
        except BaseException as error:  # also the consumer's leaving
            self._end(_outcome_of(error), last)
            raise
        self._end(Outcome.ABORTED, last)

    def abandoned(self) -> None:
        """The replies will not be read any more; does nothing once the outcome stands."""
        self._end(Outcome.ABORTED, None)

    def _passes(self, reply: Any, cumulative: bool) -> None:
        now_s = self._clock.monotonic_s()
        for one in reply.outputs:
            times_s = self._token_times_s.get(one.index)
            if times_s is None:
                times_s = self._token_times_s[one.index] = array("d")
            new = len(one.token_ids) - (len(times_s) if cumulative else 0)
            if new == 1:
                times_s.append(now_s)
            elif new > 1:
                times_s.extend((now_s,) * new)
        if not self._begun and any(self._token_times_s.values()):
            self._begun = True
            self._started(self)

    def _check_whole(self, reply: Any) -> None:
        if any(one.finish_reason in _ABORTED for one in reply.outputs):
            error = self._broken_off()
            if error is not None:
                raise error

    def _finish(self, reply: Any, streamed: bool) -> None:
        reasons = {one.finish_reason for one in reply.outputs}
        if reasons & _FAILED:
            self._end(Outcome.FAILED, reply)
        elif reasons & _ABORTED:
            self._end(Outcome.ABORTED, reply)
        elif streamed:
            self._end(Outcome.COMPLETED, reply, *self._streamed())
        else:
            self._end(Outcome.COMPLETED, reply, self._whole(reply))

    def _streamed(self) -> tuple[Latency | None, float | None]:
        timelines = [times_s for times_s in self._token_times_s.values() if times_s]
        if not timelines:
            return None, None
        arrival_s = self.arrival_s
        latency = _latency(
            [(t[0] - arrival_s, t[-1] - t[0], len(t)) for t in timelines], max(t[-1] for t in timelines) - arrival_s
        )
        expected = expectation(self.slo.targets)
        if expected is None:
            return latency, None
        ttft_s, tds = expected
        return latency, min(qoe(np.array(t) - arrival_s, ttft_s=ttft_s, tds=tds) for t in timelines)

    def _whole(self, reply: Any) -> Latency | None:
        if not any(one.token_ids for one in reply.outputs):
            return None
        e2e_s = self.age_s()
        # Without vLLM's figures all came with the whole.
        return latency_in_engine(self.figures.values(), e2e_s) or _latency([(e2e_s, 0.0, 1)], e2e_s)

    def age_s(self) -> float:
        """Time since its arrival."""
        return self._clock.monotonic_s() - self.arrival_s

    @property
    def begun(self) -> bool:
        """Whether a token was seen to leave."""
        return self._begun

    def _end(self, outcome: Outcome, reply: Any, latency: Latency | None = None, quality: float | None = None) -> None:
        ended, self._ended = self._ended, None  # with what it refers to, its HTTP request, which refers to this one
        if ended is None:
            return
        if self.expired and outcome is Outcome.ABORTED:
            outcome = Outcome.EVICTED
        if outcome is not Outcome.COMPLETED and expectation(self.slo.targets) is not None:
            quality = 0.0
        served = ServedRequest(
            slo=self.slo,
            tenant=self.tenant,
            outcome=outcome,
            latency=latency,
            qoe=quality,
            prompt_tokens=len(getattr(reply, "prompt_token_ids", None) or ()),
            output_tokens=self._output_tokens(reply),
            waited_s=self._waited_s(),
            preemptions=sum(one.num_preemptions for one in self.figures.values()),
            interruptions=(
                Interruptions() if self.engine_request_id is None else self._interruptions(self.engine_request_id)
            ),
            predicted=self.predicted,
        )
        ended(self, served)

    def _waited_s(self) -> float | None:
        """Time in the engine's queue before the first step that served the request; vLLM's own figures."""
        served = [one for one in self.figures.values() if one.scheduled_ts and one.queued_ts]
        if not served:
            return None
        return float(min(one.scheduled_ts for one in served) - min(one.queued_ts for one in served))

    def _output_tokens(self, reply: Any) -> int:
        if self._token_times_s:
            return sum(len(times_s) for times_s in self._token_times_s.values())
        return sum(len(one.token_ids) for one in getattr(reply, "outputs", ()))


def latency_in_engine(figures: Iterable[Any], e2e_s: float) -> Latency | None:
    """The latency of replies whose last token has just come; ``None`` where none has any.

    figures: vLLM's (``RequestStateStats``) of each. e2e_s: time since the request's arrival.
    """
    told = [one for one in figures if one.first_token_ts]
    if not told:
        return None
    # The engine's clock starts elsewhere; its last token is the one that has just come.
    ended_ts = max(one.last_token_ts for one in told)
    spans = (
        (max(e2e_s - (ended_ts - one.first_token_ts), 0.0), one.last_token_ts - one.first_token_ts, one) for one in told
    )
    return _latency([(first_s, decode_s, one.num_generation_tokens) for first_s, decode_s, one in spans], e2e_s)


def _latency(replies: Sequence[tuple[float, float, int]], e2e_s: float) -> Latency:
    """Returns the latency of a request, all of its replies together.

    replies: (first_s, decode_s, tokens) of each: seconds from the request's arrival to its first token, and from that
    to its last.
    """
    return Latency(
        ttft_s=min(float(first_s) for first_s, _, _ in replies),
        tpot_s=max(float(decode_s) / max(tokens - 1, 1) for _, decode_s, tokens in replies),
        e2e_s=e2e_s,
    )


def _outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return Outcome.ABORTED
    if isinstance(error.__cause__, Evicted):
        return Outcome.EVICTED
    return Outcome.REJECTED if isinstance(error, refusals()) else Outcome.FAILED


def refusals() -> tuple[type[Exception], ...]:
    """What vLLM raises for a request that it does not take: its queue limits, and what it finds wrong with it."""
    from vllm.exceptions import GracefulHTTPError, VLLMClientError

    return GracefulHTTPError, VLLMClientError, ValueError
