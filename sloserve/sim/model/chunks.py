"""Where chunks of prompts end for Mamba's states, which are kept at the ends of chunks, at multiples of a block: vLLM's
``_mamba_block_aligned_split``.
"""

from typing import NamedTuple, Self

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.sim.model.model_requests import ModelRequests


class Prompt(NamedTuple):
    """What is computed at once of one request, its output so far included.

    start: tokens with KV. prompt, tokens: of the prompt, and in all. junction: see ``Hit``.
    """

    start: int
    prompt: int
    tokens: int
    junction: int

    @classmethod
    def of(cls, counts: ModelRequests, index: int, start: int) -> Self:
        """The request's, with KV of its first ``start`` tokens."""
        return cls(start, int(counts.prompt[index]), int(counts.tokens[index]), int(counts.junction[index]))

    @classmethod
    def unfinished(cls, counts: ModelRequests, members: IntArray, computed: IntArray) -> dict[int, Self]:
        """Return the prompts among ``members`` that are not computed to their ends, by place. computed: ``[n]``."""
        ends = np.maximum(counts.prompt[members], counts.tokens[members] - 1)
        places = (computed < ends).nonzero()[0].tolist()
        return {place: cls.of(counts, int(members[place]), int(computed[place])) for place in places}

    @property
    def end(self) -> int:
        """Before which it is no decode."""
        return max(self.prompt, self.tokens - 1)


class ChunkEnds:
    """The rule for one step. block_size: tokens of a block of states. most: tokens of a step, or a chunk if fewer."""

    def __init__(self, block_size: int, most: int) -> None:
        self._size = block_size
        self._most = most

    def within(self, one: Prompt, new: int) -> int:
        """Tokens of the request's next chunk, of at most ``new``; 0 where they do not reach an end."""
        start, size = one.start, self._size
        if start >= one.end:
            return new
        end = start + new
        if end < one.end:
            aligned = end // size * size
            if aligned > start or size <= self._most:
                end = aligned
        stops = [(one.tokens - 1) // size * size]  # the last that a like prompt may find
        if start % size:
            stops.append((start // size + 1) * size)
        if start < one.junction < end:
            stops.append(start + (one.junction - start) // size * size)
        end = min((stop for stop in stops if start < stop < end), default=end)
        return max(end - start, 0)

    def of_step(self, prompts: dict[int, Prompt], new: IntArray, budget: int) -> None:
        """Cuts ``new`` in place, ``[n]``: what each takes of the ``budget`` is known when those before it are cut.

        prompts: by place, those that are no decodes.
        """
        for place, tokens in enumerate(new.tolist()):
            taken = min(tokens, budget)
            if taken and place in prompts:
                taken = self.within(prompts[place], taken)
            new[place] = taken
            budget -= taken
