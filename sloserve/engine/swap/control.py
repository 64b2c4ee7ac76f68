"""The scheduler's part in swapping that is the same in every engine: pool, link, and what a load has to leave free."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.clock import Clock
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.engine.step_clock import StepClock
from sloserve.engine.swap.link_clock import LinkClock
from sloserve.engine.swap.rule import SwapRule
from sloserve.engine.swap.store import SwapStore
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import Profile
from sloserve.lso.plan import EngineFacts, SwapFacts

LINK_BYTES_PER_S: Final = 50e9
"""What the link of one rank is taken to carry until copies were timed: a PCIe 5.0 x16 slot. Rather too much than too
little: the first copies correct it, while a link that is taken for slow is not used and teaches nothing.
"""


def first_bytes_per_s(profile: Profile | None, ranks: int = 1) -> float:
    """Return the rate of the links of all ranks together, in one direction, that is assumed until copies were timed."""
    return LINK_BYTES_PER_S * ranks if profile is None else 1e9 * profile.link_bandwidth_gb_per_s


class SwapControl:
    """Control of one engine's swapping. Times are seconds of the monotonic clock.

    Args:
        layout: Layout of the KV cache.
        block_bytes: Bytes of one KV block, over all layers and ranks.
        link: Clock that predicts when copies end.
    """

    def __init__(
        self,
        store: SwapStore,
        layout: KVLayout,
        block_bytes: int,
        rule: SwapRule,
        link: LinkClock,
        steps: StepClock,
        clock: Clock,
    ) -> None:
        self.store, self.rule, self.link = store, rule, link
        self._layout, self._block_bytes = layout, block_bytes
        self._steps, self._clock = steps, clock

    def worth_s(self, request_id: str, tokens: int, engine: EngineFacts) -> float | None:
        """Return the engine seconds that it saves to keep the KV of a preempted request, ``None`` if it is not kept.

        Args:
            request_id: Id of the request that is preempted.
            tokens: Tokens of the request that have KV.
            engine: What the engine can do, with ``swap``.
        """
        return self.rule.worth_s(request_id, tokens, self._steps.decodes, engine, self._clock.monotonic_s())

    def stores(self, num_blocks: int) -> None:
        """Record that ``num_blocks`` blocks go to the host."""
        self.link.out(num_blocks * self._block_bytes, self._clock.monotonic_s())

    def loads(self, request_id: str, num_blocks: int) -> None:
        """Record that ``num_blocks`` blocks of what is kept for a request come back.

        Blocks that it finds in the prefix cache need not.
        """
        self.rule.has_turn(request_id, self._clock.monotonic_s())
        self.link.in_(num_blocks * self._block_bytes, self._clock.monotonic_s())

    def admitted(self, request_ids: Iterable[str]) -> None:
        """Record that these requests run."""
        for request_id in request_ids:
            self.rule.has_turn(request_id, self._clock.monotonic_s())

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
        return replace(facts, wait_s=self.rule.wait_s(self._clock.monotonic_s()))
