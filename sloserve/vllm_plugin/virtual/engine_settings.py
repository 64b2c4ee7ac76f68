"""Size and limits of a virtual engine. Imports nothing of vllm, so that they can be checked before it is loaded."""

from dataclasses import dataclass

from sloserve.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Size and limits of a virtual engine, named as vLLM's flags.

    kv_blocks: blocks a request can use (vLLM keeps one more for itself). block_size: tokens a block.
    max_num_queued_reqs, max_num_queued_tokens: vLLM's own caps, on requests in flight and on prompt tokens of those
    that have no output yet; ``None`` for none.
    """

    kv_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 8192
    enable_prefix_caching: bool = False
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is not a whole number from 1")
        for name in ("max_num_queued_reqs", "max_num_queued_tokens"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is not a whole number from 0")
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
