"""The scheduler's part in swapping that is the same in every engine: which KV is kept, and what a load leaves free.

It decides for each victim at the moment it is preempted whether it is recomputed or swapped. Beside
:mod:`sloserve.lso.swapping`, which compares the two, it keeps what only time shows: how long preempted requests wait
for their turn.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.clock import Clock
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.engine.step_clock import StepClock
from sloserve.engine.swap.beside import BesideCopies
from sloserve.engine.swap.link_clock import LinkClock
from sloserve.engine.swap.retained import Ending, RetainedKV
from sloserve.engine.swap.store import SwapStore
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import Profile
from sloserve.estimator.step_time.running_fit import RunningMean
from sloserve.lso.plan import EngineFacts, SwapFacts
from sloserve.lso.swapping import recompute_s, swap_worth_s

LINK_BYTES_PER_S: Final = 50e9
"""What the link of one rank is taken to carry until copies were timed: a PCIe 5.0 x16 slot. Rather too much than too
little: the first copies correct it, while a link that is taken for slow is not used and teaches nothing.
"""

SLOWEST: Final = 2.0
"""Multiple of the predicted time after which a copy beside steps is taken to have ended.

A step that waits for a copy earlier is held up by what is left of it, though it writes none of its blocks.
"""


def first_bytes_per_s(profile: Profile | None, ranks: int = 1) -> float:
    """Return the rate of the links of all ranks together, in one direction, that is assumed until copies were timed."""
    return LINK_BYTES_PER_S * ranks if profile is None else 1e9 * profile.link_bandwidth_gb_per_s


class TurnWaits:
    """How long preempted requests wait for their turn. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._since_sum_s = 0.0
        self._had_turn = RunningMean()

    def mean_s(self, now_s: float) -> float:
        """Return the mean seconds that recently preempted requests wait for their turn; 0 before the first one.

        Requests that still wait count with the time so far: where victims come last, none may have had its turn yet.
        """
        had, waiting = self._had_turn, len(self._since_s)
        if not waiting:
            return had.value or 0.0
        waited_s = had.total + max(waiting * now_s - self._since_sum_s, 0.0)
        return waited_s / (had.weight + waiting)

    def preempted(self, request_id: str, now_s: float) -> None:
        """Record that a request is preempted, perhaps again."""
        self.ended(request_id)
        self._since_s[request_id] = now_s
        self._since_sum_s += now_s

    def has_turn(self, request_id: str, now_s: float) -> None:
        """Record that a request is admitted, or its KV begins to load; one that was never preempted is ignored."""
        since_s = self._left(request_id)
        if since_s is not None:
            self._had_turn.add(max(now_s - since_s, 0.0))

    def ended(self, request_id: str) -> None:
        """Record that the request will not come back."""
        self._left(request_id)

    def _left(self, request_id: str) -> float | None:
        """Remove a request that does not wait for its turn any more; return when it was preempted, or ``None``."""
        since_s = self._since_s.pop(request_id, None)
        if since_s is not None:
            # Rounding errors end with the last request that waits.
            self._since_sum_s = self._since_sum_s - since_s if self._since_s else 0.0
        return since_s


class SwapControl:
    """Control of one engine's swapping. Times are seconds of the monotonic clock.

    Args:
        layout: Layout of the KV cache.
        block_bytes: Bytes of one KV block, over all layers and ranks.
        swapping: ``cost`` keeps KV where that takes less of the engine's time than computing it again; ``always``
            keeps it.
        bytes_per_s: Rate of the link in one direction that is assumed until copies were timed.
    """

    def __init__(
        self,
        store: SwapStore,
        layout: KVLayout,
        *,
        block_bytes: int,
        swapping: Literal["cost", "always"],
        bytes_per_s: float,
        steps: StepClock,
        clock: Clock,
    ) -> None:
        self.store, self.link, self._waits = store, LinkClock(bytes_per_s), TurnWaits()
        self.retained, self.beside = RetainedKV(store), BesideCopies()
        self._always = swapping == "always"
        self._layout, self._block_bytes = layout, block_bytes
        self._steps, self._clock = steps, clock

    def worth_s(self, request_id: str, tokens: int, engine: EngineFacts) -> float | None:
        """Return the engine seconds that recomputing a preempted request takes, or ``None`` to recompute it.

        What the pool keeps is ranked by these seconds a block.

        Args:
            request_id: Id of the request that is preempted.
            tokens: Tokens of the request that have KV.
            engine: What the engine can do; its ``swap`` is :meth:`facts`.
        """
        self._waits.preempted(request_id, self._clock.monotonic_s())
        running = self._steps.decodes
        if engine.swap is None or tokens <= 0:
            return None
        if not self._always and swap_worth_s(tokens, running, engine) <= 0.0:
            return None
        return recompute_s(tokens, running, engine)

    def is_worth_retaining(self, request_id: str, ending: Ending, engine: EngineFacts) -> bool:
        """Return whether to copy what the host does not have yet of the KV of a request that ends.

        Args:
            request_id: Id of the request.
            ending: The request.
            engine: What the engine can do; its ``swap`` is :meth:`facts`.
        """
        self.retained.claim(request_id, ending)
        kept_tokens = self.store.tokens_of(request_id)
        return self.retained.is_worth_keeping(ending, kept_tokens, self._steps.decodes, engine)

    def ended(self, request_id: str, ending: Ending | None = None) -> None:
        """Record that a request will not come back.

        Args:
            request_id: Id of the request.
            ending: The request, if its KV may serve others.
        """
        self._waits.ended(request_id)
        if ending is not None:
            self.retained.ended(request_id, ending)

    def stores(self, num_blocks: int) -> float:
        """Record that ``num_blocks`` blocks go to the host; return when that is predicted to end."""
        return self.link.out(num_blocks * self._block_bytes, self._clock.monotonic_s())

    def stores_beside(self, num_blocks: int, is_there: Callable[[], bool]) -> int:
        """Record that ``num_blocks`` blocks of a request that ends go to the host; return the number of their copy.

        Args:
            num_blocks: Number of blocks, above 0.
            is_there: Returns whether all of them have the content that is copied.
        """
        now_s, ends_s = self._clock.monotonic_s(), self.stores(num_blocks)
        return self.beside.begins(now_s + SLOWEST * (ends_s - now_s), num_blocks, is_there)

    def awaited(self) -> int:
        """Return the number of the last copy that the step which has just got its blocks must wait for; 0 for none."""
        return self.beside.awaited(self._clock.monotonic_s())

    def loads(self, request_id: str, num_blocks: int) -> None:
        """Record that ``num_blocks`` blocks of what is kept for a request come back.

        Blocks that it finds in the prefix cache need not.
        """
        self._waits.has_turn(request_id, self._clock.monotonic_s())
        self.link.in_(num_blocks * self._block_bytes, self._clock.monotonic_s())

    def admitted(self, request_ids: Iterable[str]) -> None:
        """Record that these requests run."""
        for request_id in request_ids:
            self._waits.has_turn(request_id, self._clock.monotonic_s())

    def timed(self, *traffic: tuple[int, float]) -> None:
        """Record how long copies took: one pair of bytes and seconds for each direction."""
        for num_bytes, seconds in traffic:
            self.link.observed(num_bytes, seconds)

    def growth_blocks(self, computed: IntArray, num_blocks: int) -> int:
        """Return the blocks to keep free beside a load of ``num_blocks`` that begins now.

        These are the blocks that running requests grow by until it ends, and the block more that its own next token may
        need in each group.

        Args:
            computed: Tokens with KV of each running request, ``[running]``.
            num_blocks: Blocks of the load.
        """
        if not computed.size:
            return 0
        layout = self._layout
        block_size = min(one.block_size for one in layout.groups)
        load = StepLoad(decode_seqs=computed.size, decode_context_tokens=int(computed.sum()))
        step_s = self._steps.latency.step_s(load)
        load_s = self.facts().in_s + num_blocks * self._block_bytes / self.link.bytes_per_s
        steps = min(1 + math.ceil(load_s / step_s) if step_s > 0.0 else block_size, block_size)
        grown = layout.growth(computed + 1, steps)
        own = sum(one.num_groups for one in layout.groups if one.block_size < layout.max_model_len)
        return int(np.add.reduce(grown)) + own

    def facts(self) -> SwapFacts:
        """Return the pool and the link, as of now."""
        store = self.store
        facts = self.link.facts(
            self._clock.monotonic_s(),
            block_bytes=self._block_bytes,
            total_blocks=store.host_blocks,
            free_blocks=store.free_blocks,
        )
        wait_s = self._waits.mean_s(self._clock.monotonic_s())
        return replace(facts, wait_s=wait_s, yielding_blocks=store.yielding_blocks)
