"""What a step with prompts beside decodes computes, and how long it takes: see :mod:`sloserve.lso.step_budget`."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.requests import split_running
from sloserve.core.kernels.step_budget import PromiseColumns, StepPrompts, step_prompts
from sloserve.core.rows import Rows
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.decode_first import progress_columns
from sloserve.lso.plan import EngineFacts

SPREAD_COST: Final = 1.5
"""Most cost of a prompt token for the decodes if it is spread, in multiples of its cost in a full step.

The decodes also end sooner.
"""
NEARLY_FREE: Final = 1.03
"""Factor by which a step of spread prompts may be longer than its decodes alone.

Reading the weights leaves room for some prompt tokens.
"""
HEADROOM: Final = 0.95
"""Share of the time that a request can bear which is planned for: step times are predictions."""
LEAST_SHARE: Final = 0.1
"""Least share of the full rate at which prompts are computed, whatever decodes or would pass them."""
LEAST_CHUNK: Final = 64
"""Tokens of the smallest chunk that the least share pays out: each chunk reads its prefix again."""


@dataclass(frozen=True, slots=True)
class StepContents:
    """What the next step can serve: decodes, prompts in progress, and the prompts that can start.

    Args:
        decodes: Slots of the requests that decode.
        in_progress: Slots of the running requests with prompt tokens to compute, in order of service.
        num_heads: Number of waiting requests that have a slot, from the first in order on.
        found: The prompts in order of service: prompts in progress, then the first that can start.
        beside: The step without prompts.
        most: Prompt tokens that the step can compute at most.
    """

    decodes: IntArray
    in_progress: IntArray
    num_heads: int
    found: StepPrompts
    beside: StepLoad
    most: int


def step_contents(
    rows: Rows, running: IntArray, waiting: IntArray, engine: EngineFacts, admits: int
) -> StepContents | None:
    """Return what the next step can serve; ``None`` if its prompts cannot be limited, or if there are none.

    Args:
        rows: The request table, up to date for ``running``.
        running: Slots of the running requests that the step serves, in order of service.
        waiting: Slots of the first waiting requests, in order of admission.
        engine: What the engine can do now.
        admits: Number of requests of ``waiting`` that may be admitted.
    """
    progress = progress_columns(rows)
    decodes, in_progress, context_tokens = split_running(progress, running)
    most = engine.token_budget - decodes.size * engine.decode_tokens
    if not (engine.chunked_prefill and most > 0 and (in_progress.size or waiting.size)):
        return None
    heads = waiting[: min(engine.free_slots, admits)]
    num_heads = heads.size
    heads = heads[: engine.encoded(rows.first_item_tokens[heads], rows.left_item_tokens[heads])]
    found = step_prompts(progress, in_progress, heads, layout=engine.layout, free_blocks=engine.admission_blocks)
    beside = StepLoad(decode_seqs=decodes.size, decode_context_tokens=context_tokens + decodes.size)
    return StepContents(decodes, in_progress, num_heads, found, beside, most)


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


def promise_columns(rows: Rows) -> PromiseColumns:
    """Return the columns that say what requests were promised and how far they are."""
    return PromiseColumns(
        arrival_s=rows.arrival_s,
        ttft_s=rows.ttft_s,
        tpot_s=rows.tpot_s,
        tds=rows.tds,
        e2e_s=rows.own_e2e_s,
        first_token_s=rows.first_token_s,
        output_tokens=rows.output_tokens,
        in_flight_tokens=rows.in_flight_tokens,
    )
