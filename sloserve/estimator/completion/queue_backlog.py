"""What flows through :mod:`sloserve.estimator.completion.queue_flow`: the engine's size, requests that run or wait,
arrivals.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sloserve.core.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class EngineSize:
    """The engine's limits: requests at once, tokens a step, tokens of KV cache; and the depth of its pipeline.

    steps_ahead: steps until what arrives now can be scheduled; with two in flight, half of the present one and the
    whole next one. idle_steps: steps a slot stays empty between two requests; with two in flight, one.
    """

    max_num_seqs: int
    token_budget: int
    kv_tokens: int
    steps_ahead: float = 1.5
    idle_steps: float = 1.0

    @property
    def prompt_budget(self) -> float:
        """Prompt tokens a step may compute when all slots decode; at least half the budget."""
        return float(max(self.token_budget - min(self.max_num_seqs, self.token_budget // 2), 1))


@dataclass(frozen=True, slots=True, eq=False)
class Backlog:
    """Requests in the order in which they are served, columns ``[n]``.

    prefill_tokens: still to be computed before the next output token; 0 for one that decodes. context_tokens: in the KV
    cache now; 0 for one that waits. output_mean, output_sd: tokens still to come, at least 1, and how sure that is.
    """

    prefill_tokens: FloatArray
    context_tokens: FloatArray
    output_mean: FloatArray
    output_sd: FloatArray

    def __len__(self) -> int:
        return self.prefill_tokens.size


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests that are expected to arrive. They keep the batch full, which slows the requests ahead of them."""

    rate_per_s: float
    prompt_tokens: float
    output_mean: float
    output_sd: float


NO_ARRIVALS = Arrivals(0.0, 1.0, 1.0, 0.0)


class Sums(NamedTuple):
    """Over consecutive requests: prompt tokens, output tokens, their expected squares, their variances."""

    prompt: float
    output: float
    output2: float
    variance: float

    def minus(self, other: "Sums") -> "Sums":
        return Sums(*(a - b for a, b in zip(self, other, strict=True)))


class Queue:
    """The waiting requests, then the arriving ones: sums up to any index, also between two requests."""

    def __init__(self, waiting: Backlog, arrivals: Arrivals) -> None:
        mean, sd = waiting.output_mean, waiting.output_sd
        columns = (waiting.prefill_tokens, mean, mean**2 + sd**2, sd**2)
        self._sums = [[0.0, *np.cumsum(column).tolist()] for column in columns]
        of_one = arrivals.output_mean**2 + arrivals.output_sd**2
        self._behind = (arrivals.prompt_tokens, arrivals.output_mean, of_one, arrivals.output_sd**2)

    def to(self, place: float) -> Sums:
        """Sums over the requests before ``place``, an index; a fraction counts that share of one request."""
        last = len(self._sums[0]) - 1
        if place >= last:
            return Sums(
                *(sums[last] + (place - last) * one for sums, one in zip(self._sums, self._behind, strict=True))
            )
        whole = int(place)
        part = place - whole
        return Sums(*(sums[whole] + part * (sums[whole + 1] - sums[whole]) for sums in self._sums))

    def place_of(self, prompt_tokens: float) -> float:
        """The index before which prompts sum to this many tokens, a fraction included."""
        sums = self._sums[0]
        if prompt_tokens >= sums[-1]:
            return float(len(sums) - 1 + (prompt_tokens - sums[-1]) / max(self._behind[0], 1.0))
        at = bisect_right(sums, prompt_tokens) - 1
        return float(at + (prompt_tokens - sums[at]) / (sums[at + 1] - sums[at]))
