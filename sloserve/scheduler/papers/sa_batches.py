"""Simulated annealing in batches, as in its paper: the batch planned first limits how many requests may run.

Source: SLO-aware scheduling by simulated annealing, Algorithm 1. On line it is a loss (docs/benchmarks/sa.md): a slot
stays empty until the batch has ended.
"""

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.anneal import anneal
from sloserve.scheduler.policy import Snapshot
from sloserve.scheduler.sa.policy import SA, cooling_for
from sloserve.scheduler.sa.times import RemainingWork, batch_times


class SABatches(SA):
    """Annealing in batches as its paper plans them, the first of which limits how many requests may run."""

    def _best_order(
        self, snapshot: Snapshot, present: IntArray, work: RemainingWork, max_batch: int, now_s: float
    ) -> tuple[IntArray, int | None]:
        rows, fixed = snapshot.rows, snapshot.running.size
        requests = self._requests(rows, present, work, batch_times(self._fit, work), now_s)
        cooling = cooling_for(present.size, max_batch, self.settings.effort)
        plan = anneal(requests, max_batch, fixed=fixed, cooling=cooling, seed=self.seed)
        # Within a batch the model knows no order; prompts are computed one after another: the most urgent first.
        batch = np.repeat(np.arange(plan.sizes.size), plan.sizes)
        slots = present[plan.order]
        due = rows.arrival_s[slots] + np.fmin(rows.ttft_s[slots], rows.e2e_s[slots])
        order = plan.order[np.lexsort((rows.seq[slots], due, batch))]
        return present[order[order >= fixed]], int(plan.sizes[0])
