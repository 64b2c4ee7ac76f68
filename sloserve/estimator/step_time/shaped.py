"""Step times of servers with more than one engine's worth of devices: pipeline stages, and prefill/decode pairs.

Each is seen as one engine in which a running request gains one token a step, so that formulas in which an output of
``n`` tokens takes ``n`` steps hold.
"""

import math
from dataclasses import dataclass

from sloserve.estimator.step_time.latency import StepLatency, StepLoad


@dataclass(frozen=True, slots=True)
class StagedLatency:
    """An engine of which the layers are split into stages, over which as many parts of the requests are on their way.

    A part has its turn in each stage, with one of ``stages`` parts of the layers: a token takes as long as a step of
    all layers for this part of the requests. What stages send each other is not counted.

    Args:
        latency: Step time of all layers on the devices of one stage.
        stages: Number of stages.
    """

    latency: StepLatency
    stages: int

    def step_s(self, load: StepLoad) -> float:
        """Return the seconds that a token of each running request takes."""
        return self.latency.step_s(_part(load, self.stages))

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        """Return the most prompt tokens of the time of a token; see StepLatency."""
        return self.stages * self.latency.prefill_within(seconds, _part(base, self.stages), prefix_tokens)


@dataclass(frozen=True, slots=True)
class PairLatency:
    """Engines that compute prompts, and an engine that generates tokens: the slower side sets the pace.

    How long KV takes from one to the other is not counted.

    Args:
        prefill: Step time of an engine that computes prompts.
        engines: Number of these engines.
        decode: Step time of the engine that generates tokens.
    """

    prefill: StepLatency
    engines: int
    decode: StepLatency

    def step_s(self, load: StepLoad) -> float:
        """Return the seconds that a token of each running request takes, and the prompts of the load."""
        return max(self.prefill.step_s(self._prompts(load)), self.decode.step_s(load.decodes))

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        """Return the most prompt tokens of the time of a token; see StepLatency."""
        return self.engines * self.prefill.prefill_within(seconds, self._prompts(base), prefix_tokens)

    def _prompts(self, load: StepLoad) -> StepLoad:
        alone = StepLoad(load.prefill_tokens, load.num_prefills, 0, 0, load.prefill_attention_tokens2)
        return _part(alone, self.engines)


def _part(load: StepLoad, parts: int) -> StepLoad:
    """Return one of ``parts`` equal parts of a load; a part of less than one sequence has one."""
    return StepLoad(
        math.ceil(load.prefill_tokens / parts),
        math.ceil(load.num_prefills / parts),
        math.ceil(load.decode_seqs / parts),
        math.ceil(load.decode_context_tokens / parts),
        math.ceil(load.prefill_attention_tokens2 / parts),
        None if load.draft_tokens is None else math.ceil(load.draft_tokens / parts),
    )
