"""Batch sizes that Andes considers, and the test whether steps are too slow for its readers.

Source: Andes, Sec. 4.2, optimizations 1 and 2. Differs: of the sizes between the least and the largest, BATCH_SIZES are
considered, not all.
"""

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.scheduler.andes.outlook import Outlook, reading_tds
from sloserve.scheduler.andes.policy import Andes
from sloserve.scheduler.policy import EngineFacts, Snapshot

BATCH_SIZES = 8
"""Candidates between the least and the largest batch size."""


class AndesOfBatches(Andes):
    """Andes with the parts of its paper that depend on how many requests are served together."""

    def _is_slow(self, snapshot: Snapshot) -> bool:
        """Return whether a step of the running requests takes longer than the fastest reader's token."""
        rows, running = snapshot.rows, snapshot.running
        if not running.size:
            return False
        fastest = float(reading_tds(rows, np.concatenate((snapshot.waiting, running))).max())
        context = float(rows.computed_tokens[running].mean())
        return float(self._token_s(snapshot.engine, np.array([float(running.size)]), context)[0]) * fastest > 1.0

    def _batch_sizes(self, engine: EngineFacts, all_: Outlook, blocks: IntArray) -> FloatArray:
        """Return the candidate batch sizes, ascending whole numbers.

        The least is the largest that is still fast enough for the fastest reader, the largest what fits the KV cache.

        Args:
            engine: What the engine can do.
            all_: The outlook of all requests.
            blocks: KV blocks that each request of ``all_`` needs, ``[len(all_)]``.
        """
        most = int(np.searchsorted(np.cumsum(np.sort(blocks)), engine.total_blocks, side="right"))
        most = max(min(most, engine.max_num_seqs), 1)
        sizes = np.arange(1, most + 1).astype(np.float64)
        fast = self._token_s(engine, sizes, float(all_.context_tokens.mean())) * all_.tds.max() <= 1.0
        least = max(int(fast.sum()), 1)
        return np.unique(np.geomspace(least, most, BATCH_SIZES).round()).astype(np.float64)
