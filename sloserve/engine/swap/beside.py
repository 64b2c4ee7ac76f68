"""Copies of ended requests' KV to the host that go on beside the engine's steps.

A preempted request loses its blocks to a request of the very next step, which waits until they are copied. The blocks
of a request that ends are the last ones that vLLM uses again, after all that were free before. So its copy goes on
beside the steps until one of them may write a block of it, and only that step waits for what is left.

Such a block is known by its content in the prefix cache: who may write a block first takes this from it.

Each step looks at the blocks of all copies, :data:`MOST_BLOCKS` at most, since the engine waits meanwhile.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

MOST_BLOCKS: Final = 16_384
"""Blocks at which one step looks, newest copies first: the step waits for older ones. They take about 0.5 ms."""
_BLOCKS_OF_A_LOOK: Final = 32
"""Blocks that take as long as the look at a copy without blocks."""


class _Copy(NamedTuple):
    """A copy that no step has waited for.

    Args:
        number: The place of the copy among all copies, from 1.
        ends_s: When it is taken to have ended.
        num_blocks: Number of its blocks.
        is_there: Returns whether its blocks still have their content.
    """

    number: int
    ends_s: float
    num_blocks: int
    is_there: Callable[[], bool]


class BesideCopies:
    """The copies beside the steps, numbered from 1 in the order in which they begin. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._copies: list[_Copy] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._copies)

    def begins(self, ends_s: float, num_blocks: int, is_there: Callable[[], bool]) -> int:
        """Note a copy that begins with the next step; return its number.

        Args:
            ends_s: When it is taken to have ended.
            num_blocks: Number of its blocks.
            is_there: Returns whether all its blocks have the content that is copied.
        """
        self._number += 1
        self._copies.append(_Copy(self._number, ends_s, num_blocks, is_there))
        return self._number

    def awaited(self, now_s: float) -> int:
        """Return the number of the last copy that a step must wait for, and for those before it; 0 for none.

        Call it once the step has its blocks. A copy that is taken to have ended is waited for too, which takes no
        time if it has.
        """
        unseen = MOST_BLOCKS
        for place in range(len(self._copies) - 1, -1, -1):
            one = self._copies[place]
            unseen -= one.num_blocks + _BLOCKS_OF_A_LOOK
            if one.ends_s <= now_s or unseen < 0 or not one.is_there():
                del self._copies[: place + 1]
                return one.number
        return 0
