"""Drafts of speculative decoding in an engine in virtual time: their number, how many are accepted, and their cost.

An engine with a draft head (EAGLE, MTP) verifies some draft tokens beside each sequence that decodes, and a step gives
the sequence the accepted drafts and one token more. Whether a draft is accepted is drawn here for each position of an
output, from its request's id alone. An output is therefore as easy to draft whatever engine serves it and however it is
scheduled: two policies, or vLLM's scheduler and the model of it, differ by what they decide and not by chance.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sloserve.core.errors import ConfigError

MOST_DRAFTS: Final = 64
"""The largest number of draft tokens of a step that is modelled."""

ACCEPTANCE: Final = 0.8
SPREAD: Final = 0.1
ROUND_SHARE: Final = 0.055

AcceptedRuns = NDArray[np.uint8]


def spread_of(acceptance: float) -> float:
    """Return the spread that is assumed for a mean acceptance: the default, or less where the mean leaves less room."""
    return min(SPREAD, 0.5 * float(np.sqrt(max(acceptance * (1.0 - acceptance), 0.0))))


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts of an engine, and which of them are accepted.

    A request's own acceptance is drawn once from a Beta distribution with mean ``acceptance`` and standard deviation
    ``spread``. Published means: 0.85 to 0.90 over topics for DeepSeek-V3's MTP head (technical report, section 5.4.3),
    about 0.8 for EAGLE's head and 0.6 for Medusa's (EAGLE paper). The spread over requests is not published: its
    default is an assumption.

    Args:
        num_tokens: Draft tokens of a sequence and step, vLLM's ``num_speculative_tokens``; 1 to 64.
        acceptance: Probability that a draft is accepted if the drafts before it were; mean over requests, 0..1.
        spread: Standard deviation of a request's own acceptance around the mean; 0 for the same of all requests.
        round_share: Time of one round of drafting, as a share of the time of the profile's smallest step. The smallest
            step reads the weights of the model once, a round the weights of the draft head. Default: EAGLE's head for
            Vicuna 7B has 0.24B parameters (EAGLE paper) and uses the model's output layer of 0.13B: 5.5 % of 6.7B.
        seed: Seed of the acceptance, at least 0; another seed draws another acceptance for the same request ids.
        has_layers: Whether layers with KV of their own draft (EAGLE, MTP): vLLM then reserves slots for the drafts, and
            computes the last block again that the prefix cache has of a prompt. n-grams have neither.

    Raises:
        ConfigError: a value is outside its range, or no distribution with this mean has the spread.
    """

    num_tokens: int
    acceptance: float
    spread: float = SPREAD
    round_share: float = ROUND_SHARE
    seed: int = 0
    has_layers: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.num_tokens <= MOST_DRAFTS:
            raise ConfigError(f"num_speculative_tokens: {self.num_tokens} is not a whole number of 1 to {MOST_DRAFTS}")
        if not 0.0 <= self.acceptance <= 1.0:
            raise ConfigError(f"draft_acceptance: {self.acceptance} is not a probability within 0..1")
        if not 0.0 <= self.spread < 1.0:
            raise ConfigError(f"draft_acceptance_spread: {self.spread} is not a standard deviation within 0..1")
        most = (self.acceptance * (1.0 - self.acceptance)) ** 0.5
        if self.spread and self.spread >= most:
            raise ConfigError(
                f"draft_acceptance_spread: {self.spread} is too large for a mean acceptance of {self.acceptance}; "
                f"give less than {most:.3g}, or 0"
            )
        if not 0.0 <= self.round_share < np.inf:
            raise ConfigError(f"draft_round_share: {self.round_share} is not a finite share >= 0")
        if self.seed < 0:
            raise ConfigError(f"drafts seed: {self.seed} is not a whole number >= 0")

    def accepted_runs(self, request_id: str, tokens: int) -> AcceptedRuns:
        """Return how many drafts in a row are accepted from each position of an output on, ``[tokens]``.

        A step that begins at position p of the output and verifies k drafts accepts ``min(runs[p], k)`` of them. Counts
        end with the output and at ``num_tokens``.
        """
        key = int.from_bytes(blake2b(request_id.encode(errors="surrogatepass"), digest_size=8).digest())
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(key,)))
        own = self._own_acceptance(rng)
        places = np.arange(tokens)
        rejected = np.where(rng.random(tokens) < own, tokens, places)
        next_rejected = np.minimum.accumulate(rejected[::-1])[::-1]
        runs: AcceptedRuns = np.minimum(next_rejected - places, self.num_tokens).astype(np.uint8)
        return runs

    def _own_acceptance(self, rng: np.random.Generator) -> float:
        mean, spread = self.acceptance, self.spread
        if not spread:
            return mean
        concentration = mean * (1.0 - mean) / spread**2 - 1.0
        return float(rng.beta(mean * concentration, (1.0 - mean) * concentration))
