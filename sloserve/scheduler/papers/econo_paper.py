"""EconoServe in the form of its paper: prompt tasks fill the step, generation tasks fill the KV cache.

A request is a *prompt task* (PT) until its prompt is computed, then a *generation task* (GT). A GT waits, paused with
its KV, until it is granted blocks for its context and its predicted remaining length, padded; then it runs to that goal
without asking for more. After the grants of a step, PTs are admitted up to the step's target size. Some blocks are kept
from grants; PTs may have them, and are confined to them while a GT waits for KV, so that GTs come first.

*Under-prediction* (the goal is reached and the request still runs): its remaining length is predicted again, and it is
granted that from the reserve if there is room; else it waits again with its KV. A GT is preempted only where no request
could run otherwise: then the last in the queue of GTs are preempted until the first fits.

*Time-synced groups*: predicted lengths are rounded up to a multiple; GTs of one length are granted together, as many as
fit. Once KV is full, nothing is granted until all of a group have ended or overrun. *Ordering* is in ``ordering``, *KVC
pipelining* in ``ledger``.

Source: EconoServe, Sec. 3 and Algorithm 1. Differs: the ledger holds reservations, since vLLM allocates blocks as
tokens come; a preempted request is recomputed, not swapped; a GT that has reached its prediction gets a new one, where
the paper's is the difference of the two, 0; a guest waits with what it holds if its host needs the span back, and the
last in the queue is preempted when blocks really run out. Padding follows the errors of prediction, see ``shares``.
Prompts are cut where they would not fit a step alone (``fcfs``: at its end).
"""

import math
from typing import Any

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.rows import Rows
from sloserve.lso.decode_first import PREFILL_COLUMNS, uncomputed_tokens
from sloserve.lso.lengths import LENGTH_COLUMNS
from sloserve.scheduler.papers.generation_queue import GenerationTasks
from sloserve.scheduler.papers.grants import Grants
from sloserve.scheduler.papers.paper_order import ORDER_COLUMNS
from sloserve.scheduler.papers.prompt_queue import AdmittedPrompts, StepRoom, fcfs_prompts, paper_prompts
from sloserve.scheduler.papers.reservations import make_ledger
from sloserve.scheduler.papers.shares import Tuning
from sloserve.scheduler.papers.variants import PaperParts, PaperSettings
from sloserve.scheduler.policy import NO_SLOTS, Plan, PredictingPolicy, Snapshot


class EconoPaper(PredictingPolicy):
    """Admits prompts to fill the step; a request runs once KV for its whole output is reserved, else it is paused."""

    full_attention_only = True
    needs = LENGTH_COLUMNS | ORDER_COLUMNS | PREFILL_COLUMNS

    Settings = PaperSettings

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._parts: PaperParts = self.settings.chosen
        self.tuning: Tuning = self.settings.tuning()
        self._grants = Grants()
        self._tasks: GenerationTasks | None = None

    @property
    def limits_steps(self) -> bool:
        return bool(self.settings.tfs_tokens)

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        self._grants.enter(slot, rows.capacity)

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        super().finished(rows, slot, now_s)
        if self._tasks is not None:
            self._tasks.ended(rows, slot)

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, engine, running, waiting = snapshot.rows, snapshot.engine, snapshot.running, snapshot.waiting
        if not (waiting.size or running.size):
            return Plan.IDENTITY
        if self._tasks is None:
            ledger = make_ledger(self._parts.pipeline, engine.layout.block_size)
            self._tasks = GenerationTasks(self._parts, self.tuning, self._lengths, self._grants, ledger)
        tasks = self._tasks
        left = uncomputed_tokens(rows, running)
        is_gt, computed = left == 0, rows.computed_tokens[running]
        gts, pts = running[is_gt], AdmittedPrompts(running[~is_gt], (computed + left)[~is_gt], left[~is_gt])
        tasks.forget(waiting)
        tasks.forget(pts.slots)
        capacity = engine.capacity_blocks
        # Untracked requests hold KV too.
        untracked = max(capacity - engine.free_blocks - int(tasks.ledger.blocks(computed).sum()), 0)
        queue, preempt = self._grant(tasks, rows, gts, pts, capacity - untracked, now_s)
        served = tasks.granted(gts)
        order, admitted = self._admit(tasks, snapshot, pts, queue, served.size, now_s)
        return Plan(
            # If blocks run out all the same, vLLM preempts the last of the queue.
            running=np.concatenate((_oldest_first(rows, served), _oldest_first(rows, pts.slots), queue)),
            waiting=order,
            preempt=preempt,
            pause=queue,
            max_running=max(running.size - preempt.size + admitted, 1),
            token_budget=self.settings.tfs_tokens or None,
        )

    def _grant(
        self, tasks: GenerationTasks, rows: Rows, gts: IntArray, pts: AdmittedPrompts, capacity: int, now_s: float
    ) -> tuple[IntArray, IntArray]:
        """Return the GTs that still wait after this step's grants, in queue order, and the GTs to preempt."""
        over, preempt = tasks.overrun(rows, gts), NO_SLOTS
        if over.size and self.settings.remedy == "preempt":
            preempt = over[rows.preemptable[over]]
            tasks.forget(preempt)
            gts = gts[~np.isin(gts, preempt)]
        queue = tasks.queue(rows, gts, now_s)
        tasks.state(rows, tasks.granted(gts), queue, pts, capacity)
        reserve = math.ceil(self.tuning.shares.reserve * capacity)
        queue = tasks.grant(rows, queue, over if self.settings.remedy == "reserve" else NO_SLOTS, reserve)
        if queue.size and not len(self._grants) and not pts.slots.size:
            queue, given_up = tasks.serve_first(rows, queue)
            preempt = np.concatenate((preempt, given_up))
        return queue, preempt

    def _admit(
        self,
        tasks: GenerationTasks,
        snapshot: Snapshot,
        pts: AdmittedPrompts,
        queue: IntArray,
        served: int,
        now_s: float,
    ) -> tuple[IntArray, int]:
        """Return the order of admission and how many to admit; at least one while nothing else can be served."""
        rows, engine, waiting, ledger = snapshot.rows, snapshot.engine, snapshot.waiting, tasks.ledger
        busy = served + pts.slots.size > 0
        blocks = ledger.free_blocks
        if queue.size:
            reserve = math.ceil(self.tuning.shares.reserve * engine.capacity_blocks)
            held = int(ledger.blocks(rows.computed_tokens[queue]).sum() + ledger.blocks(pts.tokens).sum())
            blocks = min(blocks, reserve - held)
        step_tokens = min(self.settings.tfs_tokens or engine.token_budget, engine.token_budget)
        tokens = step_tokens - served - int(pts.left.sum())
        room = StepRoom(tokens=tokens, blocks=blocks, block_size=engine.layout.block_size, requests=engine.free_slots)
        if not waiting.size or (busy and min(tokens, blocks, engine.free_slots) < 1):
            return NO_SLOTS, 0
        if self._parts.order == "paper":
            order, fit = paper_prompts(snapshot, room, now_s)
        else:
            order, fit = fcfs_prompts(snapshot, room)
        return order, fit if busy else max(fit, 1)


def _oldest_first(rows: Rows, slots: IntArray) -> IntArray:
    return slots[np.argsort(rows.seq[slots])]
