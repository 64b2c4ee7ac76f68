"""The layout of a KV cache, read from vLLM's KV cache groups."""

from collections.abc import Sequence
from typing import Any

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

from sloserve.core.kernels.kv_layout import RING_WINDOW, STATE_WINDOW, KVGroups, KVLayout

_WHOLE_CONTEXT = (FullAttentionSpec, MLAAttentionSpec, SinkFullAttentionSpec)
_WINDOWS = (SlidingWindowSpec, SlidingWindowMLASpec)
_SWAPPED = (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec, MambaSpec)
_SWAPPED_STATES = ("none", "align")


def layout_of(scheduler: Any) -> KVLayout:
    """Return how vLLM's scheduler counts the blocks of a request.

    Raises: LookupError naming a kind of layer with blocks that cannot be counted. Kinds are known by their exact type:
    a subclass may give blocks back otherwise.
    """
    coordinator = scheduler.kv_cache_manager.coordinator
    # Where a prefix may end inside a block, vLLM copies that block for the request.
    copied = int(getattr(coordinator, "enable_partial_hash_hits", False))
    found: dict[KVGroups, int] = {}
    for group in coordinator.single_type_managers:
        kept = _groups_of(scheduler, group)._replace(most_blocks=_most_blocks(group) or 0, copied_blocks=copied)
        found[kept] = found.get(kept, 0) + 1
    groups = tuple(kept._replace(num_groups=count) for kept, count in found.items())
    return KVLayout(groups, scheduler.num_lookahead_tokens, scheduler.max_model_len)


def _groups_of(scheduler: Any, group: Any) -> KVGroups:
    spec = group.kv_cache_spec
    if type(spec) is CircularBufferSpec:  # one block from a request's start to its end, whatever the ring's own size
        return KVGroups(1, scheduler.max_model_len, window_tokens=RING_WINDOW)
    one = groups_of_spec(spec)._replace(block_size=group.block_size)
    if not one.states:
        return one
    return one._replace(
        states=scheduler.vllm_config.max_concurrent_batches,
        checkpoints=int(getattr(spec, "num_prefill_checkpoint_blocks", 0) > 0),
    )


def groups_of_spec(spec: Any) -> KVGroups:
    """Return what the layers of one KV cache group keep, as vLLM describes them.

    Args:
        spec: a ``KVCacheSpec``; of Mamba states (``align``) only the states of one step are counted.

    Raises: LookupError naming a kind of layer that is not known.
    """
    one = KVGroups(1, spec.block_size)
    if type(spec) in _WHOLE_CONTEXT:
        return one
    if type(spec) in _WINDOWS:
        return one._replace(window_tokens=spec.sliding_window + getattr(spec, "extra_retained_tokens", 0))
    if type(spec) is ChunkedLocalAttentionSpec:
        return one._replace(chunk_tokens=spec.attention_chunk_size)
    if type(spec) is MambaSpec:
        one = one._replace(spare_blocks=spec.num_speculative_blocks)
        return one._replace(states=1) if spec.mamba_cache_mode == "align" else one._replace(window_tokens=STATE_WINDOW)
    raise LookupError(type(spec).__name__)


def keeps_all_tokens(group: Any) -> bool:
    """Return whether the layers of a group of vLLM's keep all tokens of a request."""
    return type(group.kv_cache_spec) in _WHOLE_CONTEXT


def keeps_states(group: Any) -> bool:
    """Return whether the layers of a group of vLLM's are Mamba layers, which keep states."""
    return type(group.kv_cache_spec) is MambaSpec


def shares_prefixes(group: Any) -> bool:
    """Return whether the prefix cache keeps blocks of this group of vLLM's; of a ring it keeps none."""
    return bool(group.kv_cache_spec.prefix_cacheable)


def _most_blocks(group: Any) -> int | None:
    """Return vLLM's limit on the blocks that it wants free to admit a request; 0.30 keeps it private."""
    name = "max_admission_blocks_per_request"
    found: int | None = getattr(group, name) if hasattr(group, name) else getattr(group, f"_{name}")
    return found


def swapped_groups(groups: Sequence[Any]) -> list[KVGroups]:
    """Return what each KV cache group keeps, in vLLM's order, so that its blocks can be swapped.

    Args:
        groups: vLLM's ``kv_cache_groups``.

    Raises: LookupError naming a kind of layer of which it was not shown what a resumed request needs.
    """
    found: list[KVGroups] = []
    for group in groups:
        # A worker gets the layers one by one where their pages differ in size.
        layers = list(getattr(group.kv_cache_spec, "kv_cache_specs", {}).values()) or [group.kv_cache_spec]
        for layer in layers:
            if type(layer) not in _SWAPPED:
                raise LookupError(type(layer).__name__)
            if type(layer) is MambaSpec and layer.num_speculative_blocks:
                raise LookupError("MambaSpec with states of draft tokens")
            if type(layer) is MambaSpec and layer.mamba_cache_mode not in _SWAPPED_STATES:
                raise LookupError(f"MambaSpec with mamba_cache_mode {layer.mamba_cache_mode}")
        kinds = {groups_of_spec(layer) for layer in layers}
        if len(kinds) > 1:
            raise LookupError(f"a group of layers that keep different tokens, {sorted(kinds)}")
        found += kinds
    return found
