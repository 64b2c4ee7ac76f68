"""Size and limits of a virtual engine. Imports nothing of vllm, so that they can be checked before it is loaded."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, get_args

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_layout import STATE_WINDOW, KVGroups, KVLayout
from sloserve.engine.virtual.drafts import Drafts
from sloserve.estimator.step_time.profile import Profile
from sloserve.lso.blocks import blocks_of

Swapping = Literal["cost", "always"]
"""Fate of a preempted request's KV if there is swap space; the same as in the server's settings."""


STEPS_IN_FLIGHT: Final = 2
"""Steps that vLLM's asynchronous scheduler has under way at once."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Size and limits of a virtual engine, named as vLLM's flags.

    Args:
        kv_blocks: Blocks that requests can use (vLLM keeps one more for itself).
        block_size: Tokens in a block.
        max_num_queued_reqs: vLLM's own cap on requests in flight; ``None`` for none.
        max_num_queued_tokens: vLLM's own cap on prompt tokens of requests without output; ``None`` for none.
        swap_space_gib: Host memory for the KV of preempted requests in GiB, 0 for none.
        link_gb_per_s: Rate of the link to it, in 1e9 bytes a second in each direction; ``None`` for the profile's.
        swapping: Rule that selects the requests to copy to it instead of computing them again.
        kv_groups: KV cache groups of the model's layers; an empty tuple for one of full attention, with blocks of
            ``block_size``.
        drafts: Draft tokens of speculative decoding, see :class:`~sloserve.engine.virtual.drafts.Drafts`; ``None`` for
            none.
        max_loras: LoRA adapters that may run at once; ``None`` where requests name none.
        async_scheduling: Whether the next step is scheduled while one runs; otherwise it waits for that one's output.
    """

    kv_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 8192
    enable_prefix_caching: bool = False
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    swap_space_gib: float = 0.0
    link_gb_per_s: float | None = None
    swapping: Swapping = "cost"
    kv_groups: tuple[KVGroups, ...] = ()
    drafts: Drafts | None = None
    max_loras: int | None = None
    async_scheduling: bool = True

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is not a whole number >= 1")
        for name in ("max_num_queued_reqs", "max_num_queued_tokens"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is not a whole number >= 0")
        if not 0.0 <= self.swap_space_gib < math.inf:
            raise ConfigError(f"swap_space_gib: {self.swap_space_gib} is not a number of GiB >= 0")
        if self.link_gb_per_s is not None and not 0.0 < self.link_gb_per_s < math.inf:
            raise ConfigError(f"link_gb_per_s: {self.link_gb_per_s} is not a number of GB/s above 0")
        if self.swapping not in get_args(Swapping):
            raise ConfigError(f"swapping: {self.swapping!r} is not one of {', '.join(get_args(Swapping))}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(  # as vLLM refuses to start
                f"max_num_batched_tokens: {self.max_num_batched_tokens} is below max_num_seqs, {self.max_num_seqs}; a "
                "step needs a token for each request that runs"
            )
        if self.swap_space_gib and any(one.spare_blocks for one in self.kv_groups):
            raise ConfigError(  # as SwapConnector refuses to start
                f"swap_space_gib: {self.swap_space_gib} GiB for a model with Mamba states of draft tokens, which are "
                "not swapped. Give 0"
            )
        if self.max_loras is not None and (self.max_loras < 1 or self.swap_space_gib):
            raise ConfigError(
                f"max_loras: {self.max_loras} is below 1"
                if self.max_loras < 1
                else "max_loras: adapters are not modelled beside swap space (swap_space_gib); leave out one of the two"
            )
        self._check_drafts()
        if self.kv_groups:
            longest = blocks_of_longest(self.layout, self.max_model_len)
            if longest > self.kv_blocks:
                raise ConfigError(
                    f"max_model_len: {self.max_model_len} tokens take {longest} blocks of all layers, but the KV cache "
                    f"has {self.kv_blocks}; give fewer tokens, or more kv_blocks"
                )
        elif self.max_model_len > self.kv_blocks * self.block_size:
            # As vLLM refuses to start: a request of full length could never be served.
            raise ConfigError(
                f"max_model_len: {self.max_model_len} tokens do not fit the KV cache of {self.kv_blocks} blocks of "
                f"{self.block_size} tokens; give at most {self.kv_blocks * self.block_size}, or more kv_blocks"
            )

    def _check_drafts(self) -> None:
        """Raise ConfigError where vLLM has no drafts beside what these settings ask for."""
        if self.drops_found_block and self.enable_prefix_caching and any(one.chunk_tokens for one in self.kv_groups):
            raise ConfigError(  # as its ChunkedLocalAttentionManager ends the engine at the first request
                "num_speculative_tokens: vLLM has no prefix cache for chunked local attention (kv_groups with "
                "chunk_tokens) beside a draft head; leave out the drafts, or the prefix cache (enable_prefix_caching)"
            )

    @property
    def drops_found_block(self) -> bool:
        """Whether the last block that the prefix cache has of a prompt is computed again, for the drafts."""
        return self.drafts is not None and self.drafts.has_layers

    @property
    def num_drafts(self) -> int:
        """Draft tokens of a decode in a step; 0 without drafts."""
        return 0 if self.drafts is None else self.drafts.num_tokens

    @classmethod
    def of_profile(cls, profile: Profile, **sizes: Any) -> Self:
        """Return the settings of a profile's engine. No request is longer than its KV cache holds.

        Args:
            profile: The profile.
            **sizes: Fields of this class; the profile supplies ``kv_blocks``, ``max_num_seqs``,
                ``max_num_batched_tokens`` and ``max_model_len`` if they are not given.
        """
        for name in ("kv_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            sizes.setdefault(name, getattr(profile, name))
        max_model_len = sizes.pop("max_model_len")
        sizes["block_size"] = profile.block_size
        if profile.kv_cache is None:
            return cls(**sizes, max_model_len=max(min(max_model_len, sizes["kv_blocks"] * profile.block_size), 1))
        caches = sizes.get("enable_prefix_caching", False)
        tokens = {one.block_size for one in profile.kv_cache.groups}
        if sizes.get("swap_space_gib") and len(tokens) > 1:  # as SwapConnector refuses to start
            raise ConfigError(
                f"swap_space_gib: {sizes['swap_space_gib']} GiB for {profile.name}: its caches have blocks of "
                f"{', '.join(map(str, sorted(tokens)))} tokens, and compressed caches are not swapped. Give 0"
            )
        groups = tuple(one.groups(max_model_len, caches=caches) for one in profile.kv_cache.groups)
        if (drafts := sizes.get("drafts")) is not None:
            groups = tuple(_with_drafts(one, drafts) for one in groups)
        layout, blocks = _admitting(groups, sizes["max_num_batched_tokens"], max_model_len), sizes["kv_blocks"]
        longest = bisect_right(range(1, max_model_len + 1), blocks, key=lambda n: blocks_of_longest(layout, n))
        return cls(**sizes, kv_groups=groups, max_model_len=max(longest, 1))

    def block_bytes(self, profile: Profile) -> int:
        """Return the bytes of a KV block of this engine with the model of ``profile``, over all layers and ranks."""
        if self.kv_groups and profile.kv_cache is not None:
            return profile.kv_cache.block_bytes
        return profile.kv_bytes_per_token * self.block_size

    @property
    def layout(self) -> KVLayout:
        """How many blocks requests take, with the limits on admission that vLLM derives from these settings.

        Source: ``max_admission_blocks_per_request`` in vLLM's v1/kv_cache_interface.py.
        """
        groups = self.kv_groups or (KVGroups(1, self.block_size),)
        layout = _admitting(groups, self.max_num_batched_tokens, self.max_model_len)
        drafts = self.drafts
        return (
            replace(layout, lookahead_tokens=drafts.num_tokens) if drafts is not None and drafts.has_layers else layout
        )


def blocks_of_longest(layout: KVLayout, max_model_len: int) -> int:
    """Return the blocks without which the longest request is never served.

    With fewer it is preempted over and over, although no other request is there. Mamba layers that keep a state at the
    end of each chunk need one for each step in flight beside the last one's. vLLM starts with one fewer
    (``max_memory_usage_bytes`` in its v1/kv_cache_interface.py), which is enough for one step in flight.
    """
    admitted = int(layout.to_admit(np.array([max_model_len]))[0])
    return admitted + sum(one.num_groups * one.states for one in layout.groups)


def _with_drafts(groups: KVGroups, drafts: Drafts) -> KVGroups:
    """Return the groups in an engine with drafts: Mamba layers keep a state of each draft token."""
    has_states = groups.states or groups.window_tokens == STATE_WINDOW
    return groups._replace(spare_blocks=drafts.num_tokens) if has_states else groups


def _admitting(groups: Sequence[KVGroups], max_num_batched_tokens: int, max_model_len: int) -> KVLayout:
    """Return the layout of these groups in an engine with these limits."""
    in_flight = STEPS_IN_FLIGHT * max_num_batched_tokens
    limited = []
    for one in groups:
        most = 0
        if one.window_tokens > STATE_WINDOW:
            most = blocks_of(min(one.window_tokens - 1 + in_flight, max_model_len), one.block_size) + 1
        elif one.chunk_tokens:
            most = blocks_of(min(one.chunk_tokens + in_flight, max_model_len), one.block_size)
        limited.append(one._replace(most_blocks=most))
    return KVLayout(tuple(limited), max_model_len=max_model_len)
