"""The queue of generation tasks: which wait with their KV, what each is predicted to need, and which run next.

Grants are booked in the ledger; the order is the paper's or the order of arrival.
"""

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.rows import Rows
from sloserve.lso.lengths import Lengths
from sloserve.scheduler.papers.grants import NO_GROUP, Grants
from sloserve.scheduler.papers.paper_order import grouped, paper_order
from sloserve.scheduler.papers.prompt_queue import AdmittedPrompts
from sloserve.scheduler.papers.reservations import Exact
from sloserve.scheduler.papers.shares import Tuning
from sloserve.scheduler.papers.variants import PaperParts
from sloserve.scheduler.policy import NO_SLOTS


class GenerationTasks:
    """The generation tasks: grants KV to GTs and takes grants back.

    Args:
        ledger: What each admitted request has reserved or holds.
    """

    def __init__(self, parts: PaperParts, tuning: Tuning, lengths: Lengths, grants: Grants, ledger: Exact) -> None:
        self._parts = parts
        self._tuning = tuning
        self._lengths = lengths
        self._grants = grants
        self.ledger = ledger
        # Whether a GT still waited for KV after the last round of grants.
        self._full = False

    def forget(self, slots: IntArray) -> None:
        """Forget requests that have ended or lost their KV."""
        known = slots[self._grants.goal[slots] > 0]
        if known.size:
            self._release(known)
            self._grants.goal[known] = 0

    def ended(self, rows: Rows, slot: int) -> None:
        """Record that a request has ended; its prediction is compared with its length."""
        left, before = float(self._grants.first_left[slot]), int(self._grants.first_output[slot])
        if left:
            came = int(rows.output_tokens[slot]) - before
            self._tuning.observe(left, came, int(rows.prompt_tokens[slot]) + before)
        self.forget(np.array([slot]))

    def granted(self, slots: IntArray) -> IntArray:
        """Return the tasks of ``slots`` that run."""
        running: IntArray = slots[self._grants.group[slots] != NO_GROUP]
        return running

    def overrun(self, rows: Rows, slots: IntArray) -> IntArray:
        """Return the GTs of ``slots`` that have used up their grants, which are taken back.

        The remaining length of these GTs and of new ones is predicted as well.
        """
        grants = self._grants
        granted = self.granted(slots)
        over: IntArray = granted[self.ledger.overrun(granted, rows.computed_tokens[granted], grants.goal[granted])]
        self._release(over)
        unknown = (grants.group[slots] == NO_GROUP) & (rows.computed_tokens[slots] >= grants.goal[slots])
        if unknown.any():
            self._predict(rows, slots[unknown])
        return over

    def state(self, rows: Rows, granted: IntArray, queue: IntArray, pts: AdmittedPrompts, capacity: int) -> None:
        """Set in the ledger what requests hold in this step; a prompt counts whole.

        Args:
            rows: The request table.
            granted: Slots of the GTs with a grant.
            queue: Slots of the GTs that wait.
            pts: The admitted prompts.
            capacity: KV blocks in all.
        """
        tokens = np.concatenate((rows.computed_tokens[queue], pts.tokens))
        self.ledger.state(capacity, (granted, *self._need(rows, granted)), (np.concatenate((queue, pts.slots)), tokens))

    def queue(self, rows: Rows, slots: IntArray, now_s: float) -> IntArray:
        """Return the tasks of ``slots`` that wait, the first to be granted first."""
        grants = self._grants
        waiting: IntArray = slots[grants.group[slots] == NO_GROUP]
        if waiting.size < 2:
            return waiting
        if self._parts.order == "paper":
            order = paper_order(rows, waiting, rows.computed_tokens[waiting], grants.rest[waiting], now_s)
        else:
            order = np.argsort(rows.seq[waiting])
        if self._parts.sync_tokens:
            order = grouped(order, grants.rest[waiting])
        ordered: IntArray = waiting[order]
        return ordered

    def grant(self, rows: Rows, queue: IntArray, first: IntArray, reserve_blocks: int) -> IntArray:
        """Make a round of grants, if one is due; return the GTs that still wait.

        GTs that cannot be paused are granted in any case.

        Args:
            rows: The request table.
            queue: Slots of the GTs that wait, in order.
            first: Slots of GTs that may use the reserve.
            reserve_blocks: KV blocks that other grants leave free.
        """
        grants = self._grants
        fixed = queue[~rows.pausable[queue]]
        self.ledger.force(fixed, *self._need(rows, fixed))
        grants.grant(fixed, None)
        started = fixed.size
        for slot in first[np.argsort(rows.seq[first])].tolist():
            one = np.array([slot])
            if grants.group[slot] == NO_GROUP and self.ledger.grant(one, *self._need(rows, one), 0):
                grants.grant(one, None)
                started += 1
        queue = queue[grants.group[queue] == NO_GROUP]
        if self._parts.sync_tokens and self._full and len(grants) and not grants.group_ended:
            return queue
        chosen = self._round(rows, queue, reserve_blocks, started=bool(started))
        grants.grant(chosen, grants.rest[chosen] if self._parts.sync_tokens else None)
        grants.group_ended = False
        queue = queue[grants.group[queue] == NO_GROUP]
        self._full = queue.size > 0
        return queue

    def serve_first(self, rows: Rows, queue: IntArray) -> tuple[IntArray, IntArray]:
        """Grant the first GT while no other is granted; return the GTs that still wait, and the GTs to preempt for it.

        If even all KV of the others is not enough, its goal is lowered to what there is.
        """
        ledger, grants = self.ledger, self._grants
        first, others = queue[:1], queue[1:]
        tokens, goal = self._need(rows, first)
        missing = int((ledger.blocks(goal) - ledger.blocks(tokens))[0]) - ledger.free_blocks
        given_up = NO_SLOTS
        if missing > 0:
            last = others[rows.preemptable[others]][::-1]
            held = np.cumsum(ledger.blocks(rows.computed_tokens[last]))
            given_up = last[: int(np.searchsorted(held, missing)) + 1]
            missing -= int(held[given_up.size - 1]) if given_up.size else 0
            self.forget(given_up)
            others = others[~np.isin(others, given_up)]
        if missing > 0:
            goal = np.maximum((ledger.blocks(goal) - missing) * ledger.block_size, tokens + 1)
            grants.goal[first] = goal
        ledger.force(first, tokens, goal)
        grants.grant(first, None)
        return others, given_up

    def _round(self, rows: Rows, queue: IntArray, reserve_blocks: int, *, started: bool) -> IntArray:
        ledger = self.ledger
        if not queue.size:
            return queue
        fit = ledger.grant(queue, *self._need(rows, queue), reserve_blocks)
        chosen, queue = queue[:fit], queue[fit:]
        if queue.size and self._parts.order == "paper":
            places = ledger.fill(queue, *self._need(rows, queue), reserve_blocks)
            chosen, queue = np.concatenate((chosen, queue[places])), np.delete(queue, places)
        if queue.size and (started or chosen.size):
            places = ledger.host(queue, *self._need(rows, queue), self._tuning.shares.buffer)
            chosen = np.concatenate((chosen, queue[places]))
        return chosen

    def _need(self, rows: Rows, slots: IntArray) -> tuple[IntArray, IntArray]:
        return rows.computed_tokens[slots], self._grants.goal[slots]

    def _predict(self, rows: Rows, slots: IntArray) -> None:
        output = rows.output_tokens[slots]
        left = np.clip(self._lengths.left(rows, slots), 1, np.maximum(rows.max_tokens[slots] - output, 1))
        self._grants.predicted(slots, left, output)
        rest = np.ceil(left * (1.0 + self._tuning.shares.padding)).astype(np.int64)
        if self._parts.sync_tokens:
            rest = -(-rest // self._parts.sync_tokens) * self._parts.sync_tokens
        most = rows.prompt_tokens[slots] + rows.max_tokens[slots]
        goal = np.minimum(rows.prompt_tokens[slots] + output + rest, most)
        self._grants.goal[slots] = np.maximum(goal, rows.computed_tokens[slots] + 1)
        self._grants.rest[slots] = rest

    def _release(self, slots: IntArray) -> None:
        self._grants.leave(slots)
        for slot in slots.tolist():
            self.ledger.release(slot)
