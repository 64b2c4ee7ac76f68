"""The ends of prompt chunks for Mamba's states: vLLM's ``_mamba_block_aligned_split``.

States are kept at the ends of chunks, so chunks end at multiples of a block.
"""

from typing import NamedTuple, Self

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.sim.model.model_requests import ModelRequests


class PromptPart(NamedTuple):
    """The part of one request that is computed as a prompt, its output up to now included.

    Args:
        start: Number of leading tokens with KV.
        prompt: Number of prompt tokens.
        tokens: Number of tokens of prompt and output.
        junction: The field of ``Hit`` with this name, in tokens.
    """

    start: int
    prompt: int
    tokens: int
    junction: int

    @classmethod
    def of(cls, counts: ModelRequests, index: int, start: int) -> Self:
        """Return the prompt of a request that has KV of its first ``start`` tokens."""
        return cls(start, int(counts.prompt[index]), int(counts.tokens[index]), int(counts.junction[index]))

    @classmethod
    def unfinished(cls, counts: ModelRequests, members: IntArray, computed: IntArray) -> dict[int, Self]:
        """Return the prompts among ``members`` that are not computed to their ends, by place.

        Args:
            counts: The state of all requests.
            members: Indices of the requests, ``[n]``.
            computed: Tokens of each request with KV, ``[n]``.
        """
        ends = np.maximum(counts.prompt[members], counts.tokens[members] - 1)
        places = (computed < ends).nonzero()[0].tolist()
        return {place: cls.of(counts, int(members[place]), int(computed[place])) for place in places}

    @property
    def end(self) -> int:
        """The number of computed tokens below which the request is no decode."""
        return max(self.prompt, self.tokens - 1)


class ChunkEnds:
    """The rule for where chunks end in one step.

    Args:
        block_size: Tokens of a block of states.
        most: Token limit of a step, or of a chunk if that is lower.
        drops: Whether the last block that is found of a prompt is computed again, for a draft head.
    """

    def __init__(self, block_size: int, most: int, *, drops: bool = False) -> None:
        self._size = block_size
        self._most, self._drops = most, drops

    def within(self, one: PromptPart, new: int) -> int:
        """Return the tokens of the request's next chunk, at most ``new``; 0 where they do not reach an end."""
        start, size = one.start, self._size
        if start >= one.end:
            return new
        end = start + new
        if end < one.end:
            aligned = end // size * size
            if aligned > start or size <= self._most:
                end = aligned
        # The last state that an equal prompt may find.
        stops = [(one.tokens // size - 1) * size if self._drops else (one.tokens - 1) // size * size]
        if start % size:
            stops.append((start // size + 1) * size)
        if start < one.junction < end:
            stops.append(start + (one.junction - start) // size * size)
        end = min((stop for stop in stops if start < stop < end), default=end)
        return max(end - start, 0)

    def of_step(self, prompts: dict[int, PromptPart], new: IntArray, budget: int) -> None:
        """Cut the token counts ``new`` in place so that chunks end where states are kept.

        The share of each request in the budget is known only when the requests before it are cut.

        Args:
            prompts: The requests that are no decodes, by place.
            new: Tokens that each request wants in this step, ``[n]``.
            budget: Tokens that the step may compute.
        """
        for place, tokens in enumerate(new.tolist()):
            taken = min(tokens, budget)
            if taken and place in prompts:
                taken = self.within(prompts[place], taken)
            new[place] = taken
            budget -= taken
