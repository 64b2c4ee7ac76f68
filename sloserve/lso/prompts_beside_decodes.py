"""What a step with prompts beside decodes computes, and how long it takes: see :mod:`sloserve.lso.step_budget`."""

from bisect import bisect_right
from typing import Final

from sloserve.core.kernels.step_budget import StepPrompts
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.plan import EngineFacts

SPREAD_COST: Final = 1.5
"""Most cost of a prompt token for the decodes if it is spread, in multiples of its cost in a full step.

The decodes also end sooner.
"""
NEARLY_FREE: Final = 1.03
"""Factor by which a step of spread prompts may be longer than its decodes alone.

Reading the weights leaves room for some prompt tokens.
"""
LEAST_CHUNK: Final = 64
"""Tokens of the smallest chunk that the least share pays out: each chunk reads its prefix again."""


class PromptsBesideDecodes:
    """Prompts in order of service, beside the decodes of a step.

    Args:
        found: The prompts.
        decodes: The step without prompts.
        engine: What the engine can do.
    """

    def __init__(self, found: StepPrompts, decodes: StepLoad, engine: EngineFacts) -> None:
        self.found, self.decodes, self.latency = found, decodes, engine.step_latency
        self._multiple, self._longest = engine.layout.chunk_multiple, engine.chunk_tokens
        self._decode_tokens = decodes.decode_seqs * engine.decode_tokens

    @property
    def left(self) -> int:
        """Tokens to compute of all of them."""
        return self.found.end(len(self.found) - 1)

    def load(self, tokens: int) -> StepLoad:
        """Return the step that computes ``tokens`` prompt tokens, in order."""
        # A step below one multiple may end a chunk anywhere.
        multiple = self._multiple if self._decode_tokens + tokens >= self._multiple else 1
        if multiple == 1 and self._longest is None:
            done, chunks, pairs = self.found.load(tokens)
        else:
            done, chunks, pairs = self.found.in_chunks(tokens, self._longest or max(tokens, 1), multiple)
        decodes = self.decodes
        return StepLoad(done, chunks, decodes.decode_seqs, decodes.decode_context_tokens, pairs)

    def within(self, seconds: float, most: int) -> int:
        """Return the prompt tokens of the largest step of at most ``seconds`` and ``most`` prompt tokens."""
        # What the latency promises for one chunk bounds them all: that is where it says how far it can be trusted.
        most = min(most, self.latency.prefill_within(seconds, self.decodes, 0))
        if self._longest is not None:  # in chunks the order of service says nothing of what a step computes whole
            return bisect_right(range(1, most + 1), seconds, key=lambda tokens: self.latency.step_s(self.load(tokens)))
        found = self.found
        low, high = 0, bisect_right(range(len(found)), most, key=found.end)
        while low < high:  # how many prompts fit as a whole
            middle = (low + high + 1) // 2
            if self.latency.step_s(self.load(found.end(middle - 1))) <= seconds:
                low = middle
            else:
                high = middle - 1
        done = found.end(low - 1) if low else 0
        if low == len(found) or done >= most:
            return min(done, most)
        part = self.latency.prefill_within(seconds, self.load(done), found.prefix(low))
        return min(done + min(part, found.end(low) - done), most)

    def spread(self, steps: int, full: StepLoad, full_s: float, alone_s: float) -> int:
        """Return the prompt tokens of a step if all prompts are computed evenly over the next ``steps``.

        If a prompt becomes late by that, the result is the prompt tokens of ``full``. Where every step with prompts
        takes longer, however few their tokens (no CUDA graph holds it, say), they are computed over fewer steps, see
        ``SPREAD_COST``.

        Args:
            steps: Number of steps, at least 1.
            full: The largest step.
            full_s: Seconds that it takes.
            alone_s: Seconds that the decodes take alone.
        """
        nearly_free = self.latency.prefill_within(NEARLY_FREE * alone_s, self.decodes, 0)
        tokens, step_s = max(self.left // steps, nearly_free, LEAST_CHUNK), full_s
        while tokens < full.prefill_tokens:
            step_s = self.latency.step_s(self.load(tokens))
            if (step_s - alone_s) * full.prefill_tokens <= SPREAD_COST * (full_s - alone_s) * tokens:
                break
            tokens *= 2
        if tokens >= full.prefill_tokens or self.found.late_by_token(step_s / tokens, full_s / full.prefill_tokens):
            return full.prefill_tokens
        return tokens
