"""The lengths of prompts and outputs: discrete distributions with exactly the stated mean, minimum and maximum.

Datasets are known by their published average, minimum and maximum (EconoServe, Table 2), which leave the shape of the
distribution open:

- A **lognormal cut to [min, max]**, for ShareGPT, Alpaca and BookCorpus's outputs: request lengths are positive,
  skewed, and spread over orders of magnitude. Its log-standard deviation is set to 1, as measured on production
  conversations (Azure 2023: 0.99 for prompts, 0.87 for outputs); its other parameter is solved so that the mean of the
  cut distribution is the published one.
- **Chunks**, for BookCorpus's prompts: books are cut into 2048-token chunks (EconoServe, Sec. 2.1), so a prompt is a
  full chunk or, uniformly, a remainder; the share of full chunks is solved from the published mean.

Prompt and output are drawn independently.
"""

import functools
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy.optimize import brentq

from sloserve.core.arrays import FloatArray, IntArray

LOG_STD = 1.0
"""Log-standard deviation of the uncut lognormal; see the module's docstring."""


class TokenLengths(Protocol):
    """A distribution of the prompt and output lengths of a workload."""

    def draw(self, n: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return the prompt and output tokens of ``n`` requests, ``[n]`` each, at least 1."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class TokenCount:
    """A distribution of one length: ``probability[i]`` is the probability of ``minimum + i`` tokens; sums to 1."""

    minimum: int
    probability: FloatArray
    _steps: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        steps = np.cumsum(self.probability)
        object.__setattr__(self, "_steps", steps / steps[-1])

    @property
    def maximum(self) -> int:
        return self.minimum + self.probability.size - 1

    @property
    def mean(self) -> float:
        """The expected number of tokens."""
        return float(self.probability @ np.arange(self.minimum, self.maximum + 1))

    def draw(self, n: int, rng: np.random.Generator) -> IntArray:
        """Draw ``n`` independent lengths, ``[n]``, by inversion: each takes one uniform number."""
        return self.minimum + np.searchsorted(self._steps, rng.random(n), side="right").astype(np.int64)


@dataclass(frozen=True, slots=True)
class IndependentLengths:
    """The prompt and output lengths, each drawn from its own distribution."""

    prompt: TokenCount
    output: TokenCount

    def draw(self, n: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        prompt_rng, output_rng = rng.spawn(2)
        return self.prompt.draw(n, prompt_rng), self.output.draw(n, output_rng)


def fixed(tokens: int) -> TokenCount:
    """Return a distribution that always gives ``tokens``, at least 1."""
    return uniform(tokens, tokens)


def uniform(minimum: int, maximum: int) -> TokenCount:
    """Return a distribution where each whole number from ``minimum`` (at least 1) to ``maximum`` is equally likely.

    Raises: ValueError if the range is empty or starts below 1.
    """
    if not 1 <= minimum <= maximum:
        raise ValueError(f"lengths from {minimum} to {maximum}: the range starts at 1 or later and is not empty")
    count = maximum - minimum + 1
    return TokenCount(minimum, np.full(count, 1.0 / count))


@functools.lru_cache(maxsize=64)
def truncated_lognormal(mean: float, minimum: int, maximum: int, log_std: float = LOG_STD) -> TokenCount:
    """Return a lognormal distribution cut to ``minimum``..``maximum`` that has the mean ``mean`` after the cut.

    With its log-standard deviation fixed to ``log_std`` the family is exponential in mu / log_std**2, so the mean grows
    with mu and there is one solution.

    Raises: ValueError if ``mean`` does not lie inside the range, or so close to its end that no such distribution
    exists.
    """
    if not 1 <= minimum < mean < maximum:
        raise ValueError(f"a mean of {mean} is not inside {minimum}..{maximum}")
    tokens = np.arange(minimum, maximum + 1, dtype=np.float64)
    log_tokens = np.log(tokens)

    def probability(tilt: float) -> FloatArray:
        log_weight = (tilt - 1.0) * log_tokens - (log_tokens / log_std) ** 2 / 2.0
        weight = np.exp(log_weight - log_weight.max())
        return np.asarray(weight / weight.sum(), np.float64)

    # This is not a dot product: BLAS would compute a long one in threads, and the rounding would depend on their
    # number.
    solved = brentq(lambda tilt: float((probability(tilt) * tokens).sum()) - mean, -1000.0, 1000.0, xtol=1e-12)
    return TokenCount(minimum, probability(float(solved)))


def chunks(mean: float, minimum: int, chunk: int) -> TokenCount:
    """Return a mixture of full chunks of ``chunk`` tokens and shorter remainders that has the mean ``mean``.

    Remainders are uniform over ``minimum``..``chunk - 1`` tokens.

    Raises: ValueError if ``mean`` lies outside what such a mixture can have.
    """
    remainder_mean = (minimum + chunk - 1) / 2.0
    full = (mean - remainder_mean) / (chunk - remainder_mean)
    if not (1 <= minimum < chunk and 0.0 <= full <= 1.0):
        raise ValueError(f"a mean of {mean} is not between {remainder_mean} and {chunk}")
    probability = np.full(chunk - minimum + 1, (1.0 - full) / (chunk - minimum))
    probability[-1] = full
    return TokenCount(minimum, probability)


def alpaca() -> IndependentLengths:
    """Return the lengths of Alpaca.

    Source: EconoServe, Table 2: input 19.31 / 9 / 2.47K, output 58.41 / 13 / 292 (average / minimum / maximum).
    """
    return IndependentLengths(truncated_lognormal(19.31, 9, 2470), truncated_lognormal(58.41, 13, 292))


def sharegpt() -> IndependentLengths:
    """Return the lengths of ShareGPT.

    Source: EconoServe, Table 2: input 161.31 / 16 / 3.2K, output 337.99 / 19 / 991.
    """
    return IndependentLengths(truncated_lognormal(161.31, 16, 3200), truncated_lognormal(337.99, 19, 991))


def multiround() -> IndependentLengths:
    """Return the lengths of ShareGPT with prompts that carry the earlier rounds, cut at 1k tokens.

    Prompts are about three times as long as in :func:`sharegpt`, outputs alike.

    Source: Andes, Sec. 6.1 and Fig. 9, in words only; three times the mean of :func:`sharegpt` is our reading of them.
    """
    return IndependentLengths(truncated_lognormal(3 * 161.31, 16, 1024), sharegpt().output)


def bookcorpus() -> IndependentLengths:
    """Return the lengths of BookCorpus.

    Source: EconoServe, Table 2: input 1952.11 / 18 / 461K before, 2048 after chunking, output 681.2 / 32 / 1041.
    """
    return IndependentLengths(chunks(1952.11, 18, 2048), truncated_lognormal(681.2, 32, 1041))


def reasoning() -> IndependentLengths:
    """Return the lengths of requests with reasoning before the visible output.

    Outputs have a median of 1,500 tokens and a tail that is cut at 30,000; prompts have 300 tokens on average.

    No open trace of such outputs has lengths; median and tail are our choice, the spread is the ``LOG_STD`` of this
    module.
    """
    return IndependentLengths(truncated_lognormal(300.0, 16, 4000), truncated_lognormal(2440.0, 20, 30_000))
