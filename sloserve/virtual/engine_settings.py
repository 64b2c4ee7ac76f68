"""Size and limits of a virtual engine. Imports nothing of vllm, so that they can be checked before it is loaded."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from sloserve.core.errors import ConfigError

Swapping = Literal["cost", "always"]
"""What becomes of a preempted request's KV where there is swap space; as in the server's settings."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Size and limits of a virtual engine, named as vLLM's flags.

    kv_blocks: blocks a request can use (vLLM keeps one more for itself). block_size: tokens a block.
    max_num_queued_reqs, max_num_queued_tokens: vLLM's own caps, on requests in flight and on prompt tokens of those
    that have no output yet; ``None`` for none.

    swap_space_gib: host memory for the KV of preempted requests, 0 for none. link_gb_per_s: 1e9 bytes a second of the
    link to it, in each direction; ``None`` for the profile's. swapping: who is copied to it, not computed again.
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
        if self.max_model_len > self.kv_blocks * self.block_size:
            # As vLLM refuses to start: a request of full length could never be served.
            raise ConfigError(
                f"max_model_len: {self.max_model_len} tokens do not fit the KV cache of {self.kv_blocks} blocks of "
                f"{self.block_size} tokens; give at most {self.kv_blocks * self.block_size}, or more kv_blocks"
            )
