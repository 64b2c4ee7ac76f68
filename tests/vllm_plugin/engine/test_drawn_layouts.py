"""Blocks held and wanted in KV caches that Hypothesis draws, against vLLM's own KVCacheManager, call by call.

The tests beside this one ask the whole scheduler; here drafts, spare states, lookahead, sizes of blocks and prefix hits
come in combinations that no engine of theirs has.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sloserve.core.kernels.kv_layout import KVLayout
from tests.other_vllm import IS_0_30, IS_0_31, has_mamba_all

pytestmark = pytest.mark.vllm

BUDGET = 48
"""Tokens of a step."""
BLOCKS = 900
KINDS = (
    "full", "window", "chunk", "none", "align",
    *(["all"] if has_mamba_all() else []),
    # For a state inside a chunk vLLM 0.30 and 0.31 want one block more than they take.
    *([] if IS_0_30 or IS_0_31 else ["align with checkpoints"]),
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """Groups alike. reach: of a window, or of a local chunk. retained: tokens that a window keeps besides."""

    name: str
    count: int
    block_size: int
    reach: int
    retained: int
    spare: int

    @property
    def is_aligned(self) -> bool:
        return self.name.startswith("align")


@dataclass(frozen=True)
class Cache:
    """steps: in flight at once, 2 with asynchronous scheduling. is_dense: whether the cache keeps every state."""

    kinds: tuple[Kind, ...]
    steps: int
    drafts: int
    lookahead: int
    max_model_len: int
    caches: bool
    is_dense: bool

    @property
    def chunk_multiple(self) -> int:
        return max((kind.block_size for kind in self.kinds if kind.is_aligned), default=1)


@st.composite
def caches(draw: st.DrawFn) -> Cache:
    """With a prefix cache, blocks of one size and full attention, as vLLM makes them."""
    names = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique_by=lambda name: name[:5]))
    cached = draw(st.booleans()) and "none" not in names
    # A block of states is longer than a step of decode in every engine, of which blocks of one token would be none.
    one_size = draw(st.sampled_from([4, 16] if any(name.startswith("align") for name in names) else [1, 4, 16]))
    drafts, max_model_len = draw(st.integers(0, 3)), draw(st.integers(40, 260))
    kinds = []
    for name in names:
        is_mamba = name not in ("full", "window", "chunk")
        same = cached or name.startswith("align")
        size = max_model_len if name == "none" else one_size if same else draw(st.sampled_from([1, 3, 4, 16]))
        # vLLM keeps one spare state for each draft.
        kinds.append(
            Kind(
                name,
                draw(st.integers(1, 2)),
                size,
                reach=draw(st.integers(2, 70)),
                retained=draw(st.integers(0, 2)) if name == "window" else 0,
                spare=drafts if is_mamba else 0,
            )
        )
    if cached and "full" not in names:
        kinds.append(Kind("full", 1, one_size, 2, 0, 0))
    # vLLM refuses to keep few states where there are neither windows nor states.
    dense = draw(st.booleans()) or not {"window", "none", "all", "align", "align with checkpoints"}.intersection(names)
    return Cache(
        tuple(kinds), draw(st.integers(1, 3)), drafts, draw(st.integers(0, 4)), max_model_len, cached, is_dense=dense
    )


def spec_of(kind: Kind) -> Any:
    import torch
    from vllm.v1 import kv_cache_interface as vllm

    shape: dict[str, Any] = {"block_size": kind.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
    if kind.name == "full":
        return vllm.FullAttentionSpec(**shape)
    if kind.name == "window":
        more = {"extra_retained_tokens": kind.retained} if kind.retained else {}
        return vllm.SlidingWindowSpec(**shape, sliding_window=kind.reach, **more)
    if kind.name == "chunk":
        return vllm.ChunkedLocalAttentionSpec(**shape, attention_chunk_size=kind.reach)
    more = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1} if "with" in kind.name else {}
    return vllm.MambaSpec(
        block_size=kind.block_size,
        shapes=((1,),),
        dtypes=(torch.float32,),
        mamba_cache_mode=kind.name.split()[0],
        num_speculative_blocks=kind.spare,
        **more,
    )


@dataclass
class Served:
    """One request in vLLM's hands. flying: of each step in flight, its tokens, and how many of them are drafts."""

    request: Any
    flying: deque[tuple[int, int]] = field(default_factory=deque)
    was_rejected: bool = False
    hit: int = 0

    @property
    def next_tokens(self) -> int:
        return int(self.request.num_prompt_tokens - self.request.num_computed_tokens)


class Engine:
    """vLLM's KVCacheManager, called as its scheduler calls it, and the layout read from it."""

    def __init__(self, cache: Cache) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

        from sloserve.vllm_plugin.kv_groups import layout_of

        self.cache = cache
        specs = [spec_of(kind) for kind in cache.kinds for _ in range(kind.count)]
        sizes = [spec.block_size for spec in specs]
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(math.gcd(*sizes), sha256) if cache.caches else None
        self.manager = KVCacheManager(
            KVCacheConfig(
                num_blocks=BLOCKS,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec([f"layer.{i}"], spec) for i, spec in enumerate(specs)],
                **({} if cache.is_dense else {"prefix_cache_retention_interval": 0}),
            ),
            max_model_len=cache.max_model_len,
            scheduler_block_size=math.lcm(*sizes),
            hash_block_size=math.gcd(*sizes),
            max_in_flight_tokens=cache.steps * BUDGET,
            enable_caching=cache.caches,
        )
        config = SimpleNamespace(max_concurrent_batches=cache.steps)
        scheduler = SimpleNamespace(
            kv_cache_manager=self.manager,
            num_lookahead_tokens=cache.lookahead,
            max_model_len=cache.max_model_len,
            vllm_config=config,
        )
        self.layout: KVLayout = layout_of(scheduler)
        self.wanted: list[tuple[bool, int]] = []  # whether it was to admit, and the blocks
        ask = self.manager.coordinator.get_num_blocks_to_allocate

        def asked(*args: Any, **kwargs: Any) -> int:
            wanted: int = ask(*args, **kwargs)
            self.wanted.append((kwargs.get("apply_admission_cap", False), wanted))
            return wanted

        self.manager.coordinator.get_num_blocks_to_allocate = asked

    @property
    def is_exact(self) -> bool:
        return not any(kind.is_aligned for kind in self.cache.kinds)

    def request(self, name: str, prompt: int) -> Served:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        params = SamplingParams(max_tokens=1000, temperature=0.0)
        return Served(Request(name, [7] * prompt, params, None, block_hasher=self.hasher))

    def held(self, request: Any) -> int:
        tables: Any = self.manager.coordinator.get_blocks(request.request_id)
        return sum(not block.is_null for table in tables for block in table)

    def chunk(self, served: Served, tokens: int) -> int:
        """Tokens of the next step: chunks of a prompt end where vLLM's scheduler lets them end."""
        request, size = served.request, self.cache.chunk_multiple
        start, end = request.num_computed_tokens, min(request.num_computed_tokens + tokens, self.cache.max_model_len)
        if served.next_tokens <= 0:
            return int(min(1 + tokens % (self.cache.drafts + 1), self.cache.max_model_len - start))
        end = min(end, request.num_prompt_tokens)
        if size > 1:
            aligned = end // size * size
            if end < request.num_prompt_tokens and (aligned > start or size <= BUDGET):
                end = aligned
            last = (request.num_tokens - 1) // size * size
            stops = [last] + [(start // size + 1) * size] * (start % size != 0)
            end = min([stop for stop in stops if start < stop < end], default=end)
        return int(end - start)

    def admit_or_go_on(self, served: Served, tokens: int) -> None:
        request = served.request
        computed = request.num_computed_tokens
        self.wanted.clear()
        if computed == 0 and not served.flying:
            blocks, hit, *_ = self.manager.get_computed_blocks(request)
            request.num_computed_tokens = hit
            tokens = self.chunk(served, tokens)
            request.num_computed_tokens = 0
            self.manager.new_step_starts()
            if (
                not tokens
                or self.manager.allocate_slots(
                    request, tokens, hit, blocks, self.cache.lookahead, full_sequence_must_fit=True
                )
                is None
            ):
                return
            request.num_computed_tokens = served.hit = hit
            (_, to_admit), (_, first) = self.wanted
            most = int(self.layout.to_admit(np.array([request.num_tokens]))[0])
            assert to_admit <= most
            if not hit:
                foreseen = int(self.layout.growth(np.array([0]), tokens)[0])
                assert first <= foreseen <= self.layout.most_growth(tokens, 1)
                assert not self.is_exact or (to_admit, first) == (most, foreseen)
        else:
            tokens = self.chunk(served, tokens)
            self.manager.new_step_starts()
            if (
                not tokens
                or self.manager.allocate_slots(request, tokens, num_lookahead_tokens=self.cache.lookahead) is None
            ):
                return
            foreseen = int(self.layout.growth(np.array([computed]), tokens)[0])
            ((_, wanted),) = self.wanted
            assert wanted <= foreseen <= self.layout.most_growth(tokens, 1)
            assert not self.is_exact or served.was_rejected or wanted == foreseen
        drafts = max(tokens - 1, 0) if request.num_computed_tokens >= request.num_prompt_tokens else 0
        request.num_computed_tokens += tokens
        request.num_in_flight_tokens += tokens
        served.flying.append((tokens, drafts))
        self.look(served)

    def look(self, served: Served) -> None:
        request = served.request
        counted = self.layout.held(np.array([request.num_computed_tokens]), np.array([request.num_in_flight_tokens]))
        held = self.held(request)
        # Of a prefix that it finds vLLM takes what a window sees, and not what it retains besides.
        found_less = served.hit and any(kind.retained for kind in self.cache.kinds)
        if served.was_rejected:
            assert held >= counted[0] or found_less or not self.is_exact  # blocks of drafts stay
        else:
            assert held <= counted[0]
            assert held == counted[0] or found_less or not self.is_exact

    def settle(self, served: Served, rejected: int) -> None:
        """The oldest step ends; vLLM takes back as many drafts as were rejected."""
        request = served.request
        tokens, drafts = served.flying.popleft()
        rejected = min(rejected, drafts)
        served.was_rejected |= rejected > 0
        request.num_in_flight_tokens -= tokens
        request.num_computed_tokens -= rejected
        reached = request.num_computed_tokens + rejected - request.num_in_flight_tokens
        if reached >= request.num_prompt_tokens:
            request.append_output_token_ids([9] * (1 + drafts - rejected))


Moves = list[tuple[int, int, int]]
"""Of each: which request, the tokens that its next step may compute, and drafts that are rejected."""


@settings(max_examples=150)
@given(
    caches(),
    st.lists(st.integers(1, 200), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, BUDGET), st.integers(0, 3)), min_size=5, max_size=60),
)
def test_held_and_wanted_are_those_of_vllm_s_manager(cache: Cache, prompts: list[int], moves: Moves) -> None:
    engine = Engine(cache)
    all_of_them = [engine.request(f"r{i}", min(n, cache.max_model_len - 1)) for i, n in enumerate(prompts)]
    for which, tokens, rejected in moves:
        served = all_of_them[which % len(all_of_them)]
        if len(served.flying) == cache.steps:
            engine.settle(served, rejected)
        engine.admit_or_go_on(served, tokens)
    for served in all_of_them:
        engine.manager.free(served.request)
    pool = engine.manager.block_pool
    assert pool.get_num_free_blocks() == BLOCKS - 1
