"""An engine's limits, and the requests that run or wait on it."""

from dataclasses import dataclass

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
class RequestLengths:
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
