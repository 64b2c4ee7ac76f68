"""Reservations of KV blocks by requests: three ledgers over vLLM's lazy allocation.

A grant reserves a request's context up to a goal in tokens: what it holds and all that is to come. A request without a
grant keeps what it holds. *Exact* counts each reservation in full from the start (exact allocation). *Hosting* lends
the second halves of reserved spans (KVC pipelining, Sec. 3.2). *Future* counts reservations as they grow: a grant fits
if predicted occupancy does at all future steps, which subsumes hosting.

Each plan sets the ledger again from what the requests hold by then, so it cannot drift from the engine.
"""

from typing import Final

import numpy as np

from sloserve.core.arrays import BoolArray, IntArray, grown
from sloserve.core.kernels.kv_reservation import FOREVER, KvHosting, KvReservation
from sloserve.lso.blocks import blocks_of
from sloserve.scheduler.papers.paper_order import BestFit
from sloserve.scheduler.policy import NO_SLOTS

_BOUNDLESS: Final = 2**31 - 1
"""Blocks of the hosting kernel: it decides which request lends to which; the real number is counted here."""
_TRIED: Final = 64
"""Candidates tried, at most, where each is a question of its own."""


class Exact:
    """Counts each reservation in full, as long as it lasts.

    ``free_blocks`` is the number of blocks that are neither reserved nor held by requests without a reservation. It is
    negative if more is held than there is.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.free_blocks = 0

    def blocks(self, tokens: IntArray) -> IntArray:
        """Return the blocks that hold ``tokens`` tokens."""
        return blocks_of(tokens, self.block_size)

    def overrun(self, granted: IntArray, tokens: IntArray, goals: IntArray) -> BoolArray:
        """Return which of the granted requests have used up their reservations, ``[len(granted)]``."""
        reached: BoolArray = tokens >= goals
        return reached

    def state(
        self, capacity_blocks: int, granted: tuple[IntArray, IntArray, IntArray], waiting: tuple[IntArray, IntArray]
    ) -> None:
        """Set the ledger to this step.

        Args:
            capacity_blocks: KV blocks in all.
            granted: Slots, tokens and goals of the requests with a grant.
            waiting: Slots and tokens of the requests without a grant.
        """
        self.free_blocks = capacity_blocks - int(self.blocks(granted[2]).sum()) - int(self.blocks(waiting[1]).sum())

    def grant(self, slots: IntArray, tokens: IntArray, goals: IntArray, reserve_blocks: int) -> int:
        """Reserve the goals of the first of ``slots``, which wait; return how many fit, none after the first misfit.

        Args:
            slots: Slots of the requests in order.
            tokens: Tokens that each holds.
            goals: Tokens up to which each reserves.
            reserve_blocks: KV blocks to leave free.
        """
        sums = np.cumsum(self.blocks(goals) - self.blocks(tokens))
        fit = int(np.searchsorted(sums, self.free_blocks - reserve_blocks, side="right"))
        self.force(slots[:fit], tokens[:fit], goals[:fit])
        return fit

    def fill(self, slots: IntArray, tokens: IntArray, goals: IntArray, reserve_blocks: int) -> IntArray:
        """Reserve for the largest that still fits, again and again; return their indices in ``slots``."""
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
        """Reserve the goals of these requests, whether they fit or not."""
        self.free_blocks -= int((self.blocks(goals) - self.blocks(tokens)).sum())

    def host(self, slots: IntArray, tokens: IntArray, goals: IntArray, buffer: float) -> IntArray:
        """Lend spans of the requests that were granted in this step; return the indices in ``slots`` of their guests.

        Args:
            slots: Slots of the requests that wait, in order.
            tokens: Tokens that each holds.
            goals: Tokens up to which each reserves.
            buffer: Share of what is to come by which a guest should end before its host needs the span.
        """
        return NO_SLOTS

    def release(self, slot: int) -> None:
        """Drop the reservation of a request."""


class Hosting(Exact):
    """Exact, with guests in the second halves of reserved spans.

    A guest goes on past its goal, within the buffer, until its host needs the span. Each running request gets a token a
    step, so the most tokens that any got since its grant tell how many steps there were.
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
        reserved = _BOUNDLESS - self._spans.free_blocks
        self.free_blocks = capacity_blocks - reserved - int(self.blocks(waiting[1]).sum())

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
    """Counts reservations as they grow, one token a step; a block is free if it is at all future steps."""

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
        """Set the blocks left at every future step, by bisection: a question costs one pass over the steps."""
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
    """Return the ledger by the name of its pipelining: ``none``, ``hosting`` or ``future``."""
    if pipeline == "hosting":
        return Hosting(block_size)
    return Future(block_size) if pipeline == "future" else Exact(block_size)
