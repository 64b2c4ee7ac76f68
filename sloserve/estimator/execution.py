"""How long a batch of equal requests runs once started, by any step latency: the simulated-annealing paper's view.

Source: SLO-aware scheduling by simulated annealing, Eq. 16 to 19. The batch's prompts are computed in one step, then
each step yields one token a request.
"""

from dataclasses import dataclass

from sloserve.estimator.step_time.latency import StepLatency, StepLoad


@dataclass(frozen=True, slots=True)
class Execution:
    """A batch that does not wait. prefill_s: its TTFT (Eq. 18). decode_s: all its decode steps (Eq. 16)."""

    prefill_s: float
    decode_s: float
    output_tokens: int

    @property
    def e2e_s(self) -> float:
        """Eq. 17."""
        return self.prefill_s + self.decode_s

    @property
    def tpot_s(self) -> float:
        """Eq. 19."""
        return self.decode_s / self.output_tokens


def execution(latency: StepLatency, requests: int, prompt_tokens: int, output_tokens: int) -> Execution:
    """A batch of ``requests`` with prompts and outputs of these lengths, each at least 1.

    The sum over decode steps is the mean of the first and the last times their number, which is exact where a step's
    time is linear in context, as all forms' are.

    Raises: ValueError for a number below 1.
    """
    if min(requests, prompt_tokens, output_tokens) < 1:
        raise ValueError(f"{requests} requests of {prompt_tokens} and {output_tokens} tokens: each is at least 1")

    def decode_s(context: int) -> float:
        return latency.step_s(StepLoad(decode_seqs=requests, decode_context_tokens=requests * context))

    prefill = StepLoad(
        prefill_tokens=requests * prompt_tokens,
        num_prefills=requests,
        prefill_attention_tokens2=requests * prompt_tokens**2,
    )
    ends_s = decode_s(prompt_tokens + 1) + decode_s(prompt_tokens + output_tokens)
    return Execution(latency.step_s(prefill), output_tokens * ends_s / 2.0, output_tokens)
