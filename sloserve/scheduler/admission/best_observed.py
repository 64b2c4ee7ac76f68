"""The best latencies observed recently: no order of service can beat them, since they are the engine's own.

TTFT by length of the prompt, of requests that found no other waiting, and time per output token. A figure is claimed
only once ``MIN_SAMPLES`` stand behind it, and is forgotten within two periods without a sample, so that a claim which
keeps all samples away does not last.

Memory is fixed; an event costs at most a look at ``_BUCKETS`` numbers. Deterministic: time is an argument.
"""

import math
from dataclasses import dataclass, field

PERIOD_S = 300.0
MIN_SAMPLES = 8
MIN_TPOT_TOKENS = 16
"""Output tokens below which all may have passed the front end at once, which says nothing about the engine."""
_BUCKETS = 24
"""Number of buckets, powers of two of prompt tokens; the last holds all longer prompts."""


@dataclass(slots=True)
class _Least:
    """The least sample of this period and of the last."""

    now: tuple[float, int] = (math.inf, 0)
    before: tuple[float, int] = (math.inf, 0)
    begun_s: float | None = None

    def pass_time(self, now_s: float) -> None:
        if self.begun_s is None:
            self.begun_s = now_s
        elif now_s - self.begun_s >= PERIOD_S:
            self.before = self.now if now_s - self.begun_s < 2.0 * PERIOD_S else (math.inf, 0)
            self.now, self.begun_s = (math.inf, 0), now_s

    def add(self, sample: float) -> None:
        self.now = (min(self.now[0], sample), self.now[1] + 1)

    @property
    def both(self) -> tuple[float, int]:
        return min(self.now[0], self.before[0]), self.now[1] + self.before[1]


@dataclass(slots=True)
class Floors:
    """The shortest times that this engine was seen to take."""

    _ttft: list[_Least] = field(default_factory=lambda: [_Least() for _ in range(_BUCKETS)])
    _tpot: _Least = field(default_factory=_Least)

    def saw_ttft(self, prompt_tokens: int, ttft_s: float, now_s: float) -> None:
        """Record the TTFT of a request that found no other waiting."""
        of_length = self._ttft[_bucket(prompt_tokens)]
        of_length.pass_time(now_s)
        of_length.add(ttft_s)

    def saw_tpot(self, output_tokens: int, tpot_s: float, now_s: float) -> None:
        """Record the time per token of an output of that length."""
        if output_tokens >= MIN_TPOT_TOKENS:
            self._tpot.pass_time(now_s)
            self._tpot.add(tpot_s)

    def ttft_s(self, prompt_tokens: int, now_s: float) -> float | None:
        """Return the least TTFT of prompts as long or longer; ``None`` if too little was seen.

        Longer ones count too: part of one may have been in the prefix cache, as may part of this one.
        """
        least, samples = math.inf, 0
        for of_length in self._ttft[_bucket(prompt_tokens) :]:
            of_length.pass_time(now_s)
            value, count = of_length.both
            least, samples = min(least, value), samples + count
        return least if samples >= MIN_SAMPLES else None

    def tpot_s(self, now_s: float) -> float | None:
        """Return the least time per output token in seconds; ``None`` if too little was seen."""
        self._tpot.pass_time(now_s)
        least, samples = self._tpot.both
        return least if samples >= MIN_SAMPLES else None


def _bucket(prompt_tokens: int) -> int:
    return min(max(prompt_tokens, 1).bit_length() - 1, _BUCKETS - 1)
