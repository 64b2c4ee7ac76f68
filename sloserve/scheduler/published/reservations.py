"""What KV blocks are promised to whom: three ledgers over vLLM's lazy allocation, from which grants are given.

A grant promises a request its context up to a goal, in tokens: what it holds and all that is to come. Whoever has none
keeps what it holds until further notice. *Exact* counts each promise in full from the start (exact allocation).
*Hosting* lends the second halves of promised spans (KVC pipelining, Sec. 3.2). *Future* counts promises as they grow:
a grant fits if predicted occupancy does at all future steps, which subsumes hosting.

A ledger is stated anew in each plan, from what the requests hold by then: it cannot drift from the engine.
"""

from typing import Final

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray, grown
from sloserve.kernels.kv_reservation import FOREVER, KvHosting, KvReservation
from sloserve.lso.blocks import blocks_of
from sloserve.scheduler.policy import NO_SLOTS
from sloserve.scheduler.published.paper_order import BestFit

_BOUNDLESS: Final = 2**31 - 1
"""Blocks of the hosting kernel: who lends to whom is its part, what there is is counted here."""
_TRIED: Final = 64
"""Candidates tried, at most, where each is a question of its own."""


class Exact:
    """Each promise in full, as long as it lasts.

    free_blocks: not promised, and not held by those without a promise; negative where more is held than there is.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.free_blocks = 0

    def blocks(self, tokens: IntArray) -> IntArray:
        """Blocks that hold so many tokens."""
        return blocks_of(tokens, self.block_size)

    def overrun(self, granted: IntArray, tokens: IntArray, goals: IntArray) -> BoolArray:
        """Which of those granted have used up what they were promised, ``[len(granted)]``."""
        reached: BoolArray = tokens >= goals
        return reached

    def state(
        self, capacity_blocks: int, granted: tuple[IntArray, IntArray, IntArray], waiting: tuple[IntArray, IntArray]
    ) -> None:
        """As of this step. granted: slots, their tokens, their goals; waiting: slots and tokens without a promise."""
        self.free_blocks = capacity_blocks - int(self.blocks(granted[2]).sum()) - int(self.blocks(waiting[1]).sum())

    def grant(self, slots: IntArray, tokens: IntArray, goals: IntArray, reserve_blocks: int) -> int:
        """Promises the first of ``slots``, who wait, their goals; to how many: none behind the first misfit.

        reserve_blocks: to be left free.
        """
        sums = np.cumsum(self.blocks(goals) - self.blocks(tokens))
        fit = int(np.searchsorted(sums, self.free_blocks - reserve_blocks, side="right"))
        self.force(slots[:fit], tokens[:fit], goals[:fit])
        return fit

    def fill(self, slots: IntArray, tokens: IntArray, goals: IntArray, reserve_blocks: int) -> IntArray:
        """Promises the largest that still fits, again and again; places of those in ``slots``."""
        cost = self.blocks(goals) - self.blocks(tokens)
        shelf = BestFit(cost)
        room = self.free_blocks - reserve_blocks
        taken: list[int] = []
        while (place := shelf.take(room)) is not None:
            taken.append(place)
            room -= int(cost[place])
        places = np.array(taken, np.int64)
        self.force(slots[places], tokens[places], goals[places])
        return places

    def force(self, slots: IntArray, tokens: IntArray, goals: IntArray) -> None:
        """Promises them their goals, whether it fits or not."""
        self.free_blocks -= int((self.blocks(goals) - self.blocks(tokens)).sum())

    def host(self, slots: IntArray, tokens: IntArray, goals: IntArray, buffer: float) -> IntArray:
        """Promises spans lent by those granted in this step; places of those in ``slots`` who got one.

        buffer: share of what is to come by which a guest should end before its host needs the span.
        """
        return NO_SLOTS

    def release(self, slot: int) -> None:
        """It has no promise any more."""


class Hosting(Exact):
    """Exact, with guests in the second halves of promised spans.

    A guest goes on past its goal, within the buffer, until its host needs the span. Steps are counted by those who run:
    each gets a token a step, so that whoever got most tokens since its grant tells how many steps there were.
    """

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._spans = KvHosting(_BOUNDLESS, block_size)
        # By slot: the step of the grant less the tokens held then; whether it is a guest.
        self._since: IntArray = NO_SLOTS
        self._guest: BoolArray = np.zeros(0, np.bool_)

    def overrun(self, granted: IntArray, tokens: IntArray, goals: IntArray) -> BoolArray:
        if not granted.size:
            return np.zeros(0, np.bool_)
        self._spans.advance(max(int((self._since[granted] + tokens).max()), self._spans.now))
        guest = self._guest[granted]
        reached: BoolArray = (tokens >= goals) & ~guest
        if guest.any():
            due, _ = self._spans.overrunners()
            reached |= guest & np.isin(granted, due)
        return reached

    def state(
        self, capacity_blocks: int, granted: tuple[IntArray, IntArray, IntArray], waiting: tuple[IntArray, IntArray]
    ) -> None:
        promised = _BOUNDLESS - self._spans.free_blocks
        self.free_blocks = capacity_blocks - promised - int(self.blocks(waiting[1]).sum())

    def force(self, slots: IntArray, tokens: IntArray, goals: IntArray) -> None:
        super().force(slots, tokens, goals)
        if slots.size:
            self._spans.allocate(slots, tokens, grow_steps=np.maximum(goals - tokens, 0))
            self._start(slots, tokens, guest=False)

    def host(self, slots: IntArray, tokens: IntArray, goals: IntArray, buffer: float) -> IntArray:
        grow = goals - tokens
        places, _ = self._spans.host(slots, tokens, grow_steps=grow, buffer_tokens=buffer * grow)
        self._start(slots[places], tokens[places], guest=True)
        return places

    def release(self, slot: int) -> None:
        if slot in self._spans:
            self._spans.remove(slot)

    def _start(self, slots: IntArray, tokens: IntArray, *, guest: bool) -> None:
        if not slots.size:
            return
        most = int(slots.max()) + 1
        if most > self._since.size:
            self._since, self._guest = grown(self._since, 2 * most), grown(self._guest, 2 * most)
        self._since[slots] = self._spans.now - tokens
        self._guest[slots] = guest


class Future(Exact):
    """Promises counted as they grow, one token a step; free is what is at all future steps."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._steps = KvReservation(1, block_size)

    def state(
        self, capacity_blocks: int, granted: tuple[IntArray, IntArray, IntArray], waiting: tuple[IntArray, IntArray]
    ) -> None:
        self._steps = KvReservation(max(capacity_blocks, 1), self.block_size)
        slots, tokens, goals = granted
        if slots.size:
            self._steps.put(slots, tokens, grow_steps=goals - tokens)
        if waiting[0].size:
            self._steps.put(*waiting, hold_steps=FOREVER)
        self._look()

    def grant(self, slots: IntArray, tokens: IntArray, goals: IntArray, reserve_blocks: int) -> int:
        granted = self._admit(slots, tokens, goals, reserve_blocks, stop=True)
        return int(granted.sum())

    def fill(self, slots: IntArray, tokens: IntArray, goals: IntArray, reserve_blocks: int) -> IntArray:
        longest = np.argsort(tokens - goals, kind="stable")[:_TRIED]
        granted = self._admit(slots[longest], tokens[longest], goals[longest], reserve_blocks, stop=False)
        return longest[granted]

    def force(self, slots: IntArray, tokens: IntArray, goals: IntArray) -> None:
        if slots.size:
            self._steps.put(slots, tokens, grow_steps=np.maximum(goals - tokens, 0))
            self._look()

    def _admit(
        self, slots: IntArray, tokens: IntArray, goals: IntArray, reserve_blocks: int, *, stop: bool
    ) -> BoolArray:
        granted = self._steps.admit(
            slots,
            tokens,
            grow_steps=goals - tokens,
            reserve_blocks=min(reserve_blocks, self._steps.capacity_blocks),
            stop_at_misfit=stop,
        )
        if granted.any():
            self._look()
        return granted

    def _look(self) -> None:
        """Blocks left at every future step, by bisection: a question costs one pass over the steps."""
        steps = self._steps
        if steps.first_over() is not None:
            self.free_blocks = min(steps.headroom(steps.now), 0)
            return
        low, high = 0, max(steps.headroom(steps.now), 0)
        while low < high:
            middle = (low + high + 1) // 2
            if steps.first_over(middle) is None:
                low = middle
            else:
                high = middle - 1
        self.free_blocks = low


def make_ledger(pipeline: str, block_size: int) -> Exact:
    """The ledger by the name of its pipelining: ``none``, ``hosting`` or ``future``."""
    if pipeline == "hosting":
        return Hosting(block_size)
    return Future(block_size) if pipeline == "future" else Exact(block_size)
