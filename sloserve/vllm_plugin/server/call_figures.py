"""Combine the engine calls that serve one request into its latency, QoE, tokens and waits.

All times are seconds from the request's arrival. Calls that overlap (the beams of one step, the pieces of a recording)
are a round; what they compute at the same time counts once: a round has as many tokens as the longest of its outputs.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sloserve.core.finished import Latency
from sloserve.core.qoe import expectation, qoe
from sloserve.core.served import InEngine
from sloserve.core.slo import SLO

Span = tuple[float, float, int]
"""Times of one output: seconds to its first token, seconds from there to its last, and its number of tokens."""


@dataclass(frozen=True, slots=True)
class CallFigures:
    """Figures of one call.

    Args:
        spans: Spans of its outputs that have tokens.
        last_s: When its last token left.
        times_s: When each token of a streamed call left, by output.
        waited_s: Seconds in the engine's queue; ``None`` if they are not known.
    """

    spans: Sequence[Span] = ()
    last_s: float = 0.0
    times_s: Mapping[int, "array[float]"] | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    waited_s: float | None = None
    preemptions: int = 0
    in_engine: InEngine = InEngine()


@dataclass(slots=True)
class RequestFigures:
    """The figures of one request, combined from the figures of its calls.

    Args:
        rounds: Number of rounds that have begun.
        first_s: Seconds to the first token of the calls that have ended; ``None`` while there is none.
        gaps_s: Seconds after the first token in which no call was in the engine.
    """

    rounds: int = 0
    first_s: float | None = None
    gaps_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    waited_s: float | None = None
    preemptions: int = 0
    in_engine: InEngine = InEngine()
    _reading: int = 0
    _idle_since_s: float = 0.0
    _of_one_call: Latency | None = None
    _last_s: float = 0.0
    _tokens: int = 0
    _round_tokens: int = 0
    _times_s: "dict[int, array[float]] | None" = field(default_factory=dict)
    """When each token left, without the gaps; ``None`` if the outputs are not read one after the other."""

    def begins(self, now_s: float) -> None:
        """Record that a call enters the engine."""
        if self._reading:
            self._times_s = None
        else:
            if self.first_s is not None:
                self.gaps_s += now_s - self._idle_since_s
            self.rounds += 1
        self._reading += 1

    def ends(self, call: CallFigures, now_s: float) -> None:
        """Record that a call that entered the engine has ended, completely or not."""
        if call.spans:
            self._of_one_call = latency_of(call.spans, call.last_s) if self.first_s is None else None
            first_s = min(first_s for first_s, _, _ in call.spans)
            self.first_s = first_s if self.first_s is None else min(self.first_s, first_s)
            self._last_s = max(self._last_s, call.last_s)
            self._round_tokens = max(self._round_tokens, *(tokens for _, _, tokens in call.spans))
        self._reading -= 1
        if not self._reading:
            self._idle_since_s = now_s
            self._tokens, self._round_tokens = self._tokens + self._round_tokens, 0
        self._take_times(call)
        if self.rounds == 1 and self.waited_s is None:
            self.waited_s = call.waited_s
        self.prompt_tokens = self.prompt_tokens or call.prompt_tokens
        self.output_tokens += call.output_tokens
        self.preemptions += call.preemptions
        self.in_engine += call.in_engine

    def _take_times(self, call: CallFigures) -> None:
        if call.times_s is None:
            self._times_s = None
        elif self._times_s is not None:
            for index, times_s in call.times_s.items():
                if self.gaps_s:
                    times_s = array("d", (at_s - self.gaps_s for at_s in times_s))
                if index in self._times_s:
                    self._times_s[index].extend(times_s)
                else:
                    self._times_s[index] = times_s

    def latency(self) -> Latency | None:
        """Return the latency of the calls so far, ``None`` if they have no token."""
        if self.first_s is None or self._of_one_call is not None:
            return self._of_one_call
        decode_s = max(self._last_s - self.first_s - self.gaps_s, 0.0)
        return Latency(self.first_s, decode_s / max(self._tokens - 1, 1), self._last_s)

    def qoe(self, slo: SLO) -> float | None:
        """Return the QoE of the output that is least well read; ``None`` if the request has none."""
        expected = expectation(slo.targets)
        timelines = [times_s for times_s in (self._times_s or {}).values() if times_s]
        if expected is None or not timelines:
            return None
        ttft_s, tds = expected
        return min(qoe(np.array(times_s), ttft_s=ttft_s, tds=tds) for times_s in timelines)


def latency_of(outputs: Sequence[Span], e2e_s: float) -> Latency:
    """Return the latency of one call, all of its outputs together."""
    return Latency(
        ttft_s=min(float(first_s) for first_s, _, _ in outputs),
        tpot_s=max(float(decode_s) / max(tokens - 1, 1) for _, decode_s, tokens in outputs),
        e2e_s=e2e_s,
    )


def spans_in_engine(figures: Iterable[Any], e2e_s: float) -> list[Span]:
    """Return the spans of the outputs that have tokens; the last token of the call has just come.

    Args:
        figures: vLLM's figures (``RequestStateStats``) of each output.
        e2e_s: Seconds since the request's arrival.
    """
    timed = [one for one in figures if one.first_token_ts]
    # The engine's clock starts elsewhere; its last token is the one that has just come.
    ended_ts = max((one.last_token_ts for one in timed), default=0.0)
    return [
        (
            max(e2e_s - (ended_ts - one.first_token_ts), 0.0),
            one.last_token_ts - one.first_token_ts,
            one.num_generation_tokens,
        )
        for one in timed
    ]
