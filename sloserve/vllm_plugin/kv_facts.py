"""Read the facts of a KV cache that a profile states, from the engine's scheduler."""

from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_layout import STATE_WINDOW, KVGroups, KVLayout
from sloserve.engine.virtual.engine_settings import STEPS_IN_FLIGHT
from sloserve.vllm_plugin.kv_groups import layout_of

CONTEXT_TOKENS = 8192
"""Tokens of the requests that the KV cache's capacity is stated for, where it depends on them; or the engine's most."""


class KVFacts:
    """The KV cache of an engine.

    Raises: ConfigError for a kind of layer with blocks that cannot be counted.
    """

    def __init__(self, scheduler: Any) -> None:
        try:
            self._layout = layout_of(scheduler)
        except LookupError as error:
            raise ConfigError(
                f"{error.args[0]}: how many KV blocks layers of this kind take is not known, so no profile can say "
                "what the cache holds; profile another model, or write the profile by hand"
            ) from error
        config = scheduler.kv_cache_config
        self._blocks = int(config.num_blocks) - 1  # one is vLLM's own
        self._context_tokens = min(CONTEXT_TOKENS, int(scheduler.max_model_len))
        self._rank_block_bytes = max(map(_block_bytes, config.kv_cache_groups))

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the cache holds, of requests of CONTEXT_TOKENS where it depends on them."""
        return int(self._layout.capacity_tokens(self._blocks, self._context_tokens))

    def fields(self, ranks: int) -> dict[str, Any]:
        """Return the profile's fields.

        Args:
            ranks: Number of ranks of tensor parallelism, over which bytes are summed.
        """
        block_bytes, groups = self._rank_block_bytes * ranks, _as_with_prefix_cache(self._layout)
        kv_cache = {
            "groups": [_stated(one) for one in groups],
            "blocks": self._blocks,
            "block_bytes": block_bytes,
            "context_tokens": self._context_tokens,
        }
        return {
            "kv_bytes_per_token": round(block_bytes * self._blocks / self.capacity_tokens),
            "kv_capacity_tokens": self.capacity_tokens,
            "block_size": min(one.block_size for one in groups),
            "kv_cache": None if self._layout.is_full else kv_cache,
        }


def _block_bytes(group: Any) -> int:
    """Return the bytes of a block of all layers of a KV cache group, on one rank."""
    spec = group.kv_cache_spec
    layers = 1 if hasattr(spec, "kv_cache_specs") else len(group.layer_names)  # such a spec has summed its own
    return layers * int(spec.page_size_bytes)


def _as_with_prefix_cache(layout: KVLayout) -> list[KVGroups]:
    """Return the groups in the profile's words, which hold with and without a prefix cache.

    An engine is measured without one, and a Mamba layer's block is then as long as the longest context. With one, it is
    as long as the others' blocks, which vLLM has made as large as a state.
    """
    sizes = [one.block_size for one in layout.groups if one.window_tokens != STATE_WINDOW]
    return [
        one._replace(block_size=min(sizes), window_tokens=0, states=STEPS_IN_FLIGHT)
        if one.window_tokens == STATE_WINDOW and sizes
        else one
        for one in layout.groups
    ]


def _stated(groups: KVGroups) -> dict[str, int]:
    """Return the fields that are not empty; limits on admission follow from the engine's flags."""
    follows = ("most_blocks", "copied_blocks")
    return {name: value for name, value in groups._asdict().items() if value and name not in follows}
