"""The requests that wait, then those that are expected to arrive: sums over any first part of them."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sloserve.estimator.completion.queue_backlog import RequestLengths


@dataclass(frozen=True, slots=True)
class ExpectedArrivals:
    """Requests that are expected to arrive. They keep the batch full, which slows the requests ahead of them."""

    rate_per_s: float
    prompt_tokens: float
    output_mean: float
    output_sd: float


NO_ARRIVALS = ExpectedArrivals(0.0, 1.0, 1.0, 0.0)


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

    def __init__(self, waiting: RequestLengths, arrivals: ExpectedArrivals) -> None:
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
