"""How the time of an engine's steps divides between the requests in them, and what one request used of the engine.

A step takes as long as its decodes alone would take, and its prompt tokens the rest, by the times of steps as they are
known (:mod:`sloserve.estimator.step_time.online`). The decodes have equal parts of their time, the prompt tokens of
theirs. So a request's *engine seconds* are

    prompt tokens computed x seconds of a prompt token in recent steps + its parts of the decodes' time while it ran,

and the engine seconds of all requests add up to about the time in which the engine computes. Prompt tokens that a cache
had take no time; tokens that are computed again after a preemption count as prompt tokens. A request's *KV-seconds* are
the share of the KV cache that it held on average, times the time for which it was running or paused: between its
admission and its end it grows evenly from its prompt to its prompt and output. A block that several requests share
counts for each of them.

A step costs one more look at the known times if prompts and decodes meet in it, else two additions; all else is done
once for each request, when it ends.
"""

from dataclasses import dataclass
from typing import Final

from sloserve.estimator.step_time.latency import StepLatency, StepLoad

_KEPT: Final = 0.98
"""What a step with prompts leaves of the weight of the steps before it: the latest 50 count."""


@dataclass(slots=True)
class StepShares:
    """The parts that requests had in the steps so far.

    Args:
        decode_s: Seconds of the engine that a request would have which decoded in every step.
    """

    decode_s: float = 0.0
    _prompt_s: float = 0.0
    _prompt_tokens: float = 0.0

    @property
    def prompt_token_s(self) -> float:
        """Seconds that a prompt token took in recent steps; 0 before there was one."""
        return self._prompt_s / self._prompt_tokens if self._prompt_tokens else 0.0

    def add(self, load: StepLoad, seconds: float, latency: StepLatency) -> None:
        """Divide the time of one step.

        Args:
            load: What the step computes.
            seconds: Time that it takes, as the times of steps are known.
            latency: The times of steps.
        """
        of_decodes_s = seconds
        if load.prefill_tokens:
            of_decodes_s = min(latency.step_s(load.decodes), seconds) if load.decode_seqs else 0.0
            self._prompt_s = _KEPT * self._prompt_s + seconds - of_decodes_s
            self._prompt_tokens = _KEPT * self._prompt_tokens + load.prefill_tokens
        if load.decode_seqs:
            self.decode_s += of_decodes_s / load.decode_seqs


def kv_seconds(share: float, prompt_tokens: int, output_tokens: int, held_s: float) -> float:
    """Return the KV-seconds of a request.

    Args:
        share: Share of the KV cache that it holds at its end.
        prompt_tokens: Tokens of its prompt.
        output_tokens: Tokens of its output.
        held_s: Seconds for which it held KV.
    """
    at_end = prompt_tokens + output_tokens
    return share * held_s * (prompt_tokens + 0.5 * output_tokens) / at_end if at_end else 0.0
