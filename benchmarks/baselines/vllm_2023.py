"""vLLM's scheduler of 2023 and 2024, which the papers measured against: whole prompts first, never beside decodes.

While a prompt can be admitted, a step computes prompts alone, and all decodes wait for it. Prompts are admitted in
order of arrival until one does not fit the step, the KV cache less a watermark, or the seats; with padding, as in
vLLM 0.2, a step holds only prompts of similar length. Otherwise a step is one token for each running request. Where a
decode lacks a block, the request that arrived last is preempted; it is computed again before younger requests are
admitted, or, with swap space, copied back. While a copied request waits, no prompt is admitted.

Source: vLLM 0.2.7, which Andes measured against (core/scheduler.py, core/block_manager.py); with ``max_paddings=0``
the default scheduler of 0.6.0, which the simulated-annealing paper measured against. Differs, since it runs on the
engine of today and lets no request fail:

* the oldest running request decodes beside the prompts, since a plan must leave the engine something to serve;
* a prompt that is longer than a step is computed over several steps, which hold nothing else; vLLM of that time refused
  it. Give ``max_num_batched_tokens`` the length of the longest prompt for whole prompts;
* where the engine does not admit the first prompt, for a reason that no plan sees, decodes go on in every other step;
* padding limits what a step holds, but costs no time, and no time passes between two steps;
* copies to and from the host run beside the steps.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.rows import Rows
from sloserve.lso.decode_first import PREFILL_COLUMNS, uncomputed_tokens, unfinished
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Plan, Policy, Snapshot


class VLLM2023(Policy):
    """Computes whole prompts first, in steps of their own, in order of arrival; preempts the latest arrival."""

    needs = PREFILL_COLUMNS

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        max_paddings: int = 256
        """most padding tokens that the prompts of one step may need, as in vLLM 0.2; 0 for no padding at all, as in
        0.6"""
        watermark: float = 0.01
        """share of the KV blocks that admissions leave free"""

        def __post_init__(self) -> None:
            check_within(self, 0, 1e9, "max_paddings")
            check_within(self, 0.0, 0.5, "watermark")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._stopped_for = -1

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows, engine = snapshot.rows, snapshot.engine
        running, waiting = _by_arrival(rows, snapshot.running), _by_arrival(rows, snapshot.waiting)
        stopped_for, self._stopped_for = self._stopped_for, -1
        if unfinished(rows, running).any():
            prompts = running[unfinished(rows, running)]
            return Plan(running, waiting, pause=_others(running, prompts), max_running=max(running.size, 1))
        swapped = rows.swapped_tokens[waiting] > 0
        order = np.concatenate((waiting[swapped], waiting[~swapped]))
        if swapped.any():
            admitted = self._fit(rows, waiting[swapped], engine)
        else:
            admitted = self._prompts(rows, waiting, engine)
        if not running.size and order.size:
            admitted = max(admitted, 1)
        pause = NO_SLOTS
        if admitted and not swapped.any() and running.size > 1 and stopped_for != rows.seq[order[0]]:
            self._stopped_for = int(rows.seq[order[0]])
            pause = running[1:]
        return Plan(running, order, pause=pause[rows.pausable[pause]], max_running=max(running.size + admitted, 1))

    def _fit(self, rows: Rows, order: IntArray, engine: EngineFacts) -> int:
        """Return how many of ``order``, waiting slots, have seats and blocks above the watermark."""
        blocks = engine.layout.to_admit(rows.prompt_tokens[order] + rows.output_tokens[order])
        room = engine.free_blocks - int(self.settings.watermark * engine.total_blocks)
        return min(int(np.searchsorted(np.cumsum(blocks), room, side="right")), engine.free_slots)

    def _prompts(self, rows: Rows, order: IntArray, engine: EngineFacts) -> int:
        """Return how many of ``order``, waiting slots, have seats and blocks, and are whole prompts of one step."""
        head = order[: self._fit(rows, order, engine)]
        tokens = np.minimum(uncomputed_tokens(rows, head), engine.token_budget)
        count, total = np.arange(1, head.size + 1), np.cumsum(tokens)
        if self.settings.max_paddings:
            padded = count * np.maximum.accumulate(tokens)
            fits = (padded <= engine.token_budget) & (padded - total <= self.settings.max_paddings)
        else:
            fits = total <= engine.token_budget
        return int(np.argmin(fits)) if not fits.all() else int(head.size)


def _by_arrival(rows: Rows, slots: IntArray) -> IntArray:
    found: IntArray = slots[np.argsort(rows.seq[slots])]
    return found


def _others(slots: IntArray, some: IntArray) -> IntArray:
    found: IntArray = slots[~np.isin(slots, some)]
    return found
