"""How long the engine's steps take, as a line in the batch size, learnt from when tokens came.

For policies of engines that name no profile. A step's time is the gap between two outputs, prompts computed beside the
decoding included: what a running request really waits for its next token.

Source: Andes, App. B, which drops the context length for the same reason: it goes with the batch size.
"""

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.estimator.step_time.latency import StepLatency, StepLoad
from sloserve.estimator.step_time.running_fit import RunningLine

BEFORE_ANY_S = 0.03
"""Time of a step before one was seen: a usual one of a model of some ten billion weights on a GPU."""


class StepPace:
    """Times of engine steps; seconds of one clock."""

    def __init__(self) -> None:
        self._line = RunningLine()
        self._last_s: float | None = None

    def idle(self) -> None:
        """The engine had nothing to do since the last step."""
        self._last_s = None

    def stepped(self, batch: int, now_s: float) -> None:
        """A step gave ``batch`` requests a token each at ``now_s``."""
        if self._last_s is not None and now_s > self._last_s:
            self._line.add(float(batch), now_s - self._last_s)
        self._last_s = now_s

    def step_s(self, batches: FloatArray) -> FloatArray:
        """Expected time of a step of each of ``batches`` requests, all ``[num_batches]``."""
        return np.array([self._line.at(batch) or BEFORE_ANY_S for batch in batches.tolist()])


def decode_step_s(latency: StepLatency, batches: FloatArray, context_tokens: float) -> FloatArray:
    """The same by a profile, for requests that attend to ``context_tokens`` each on average."""
    loads = [StepLoad(decode_seqs=int(b), decode_context_tokens=int(b * context_tokens)) for b in batches.tolist()]
    return np.array([latency.step_s(load) for load in loads])
