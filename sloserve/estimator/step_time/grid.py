"""Steps to measure on an engine: batches that decode at some context, and prompts that join them.

Sizes go up in powers, since a step's time is a matter of orders of magnitude. A scenario fills the KV cache once and
then measures many steps: first steps that only decode, then waves of prompts beside the decodes. A wave's prompt is
computed in chunks, so that one long prompt yields the same chunk on ever longer prefixes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sloserve.core.errors import ConfigError

_CHUNKS = (16, 64, 256, 512, 1024, 2048, 4096, 8192)
_BESIDE_DECODE = (32, 128, 512, 1024)
_CONTEXTS = (16, 256, 1024, 4096, 16384)
_SEQS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_PREFIX_CHUNKS = (128, 512, 2048)
_CHUNKS_A_PROMPT = 6
_MANY_PROMPTS = (4, 16)
_DECODED_TOKENS = 64
"""Tokens that a scenario leaves for what its requests decode meanwhile, with each draft as many more."""

_MIN_EACH = 9
"""Least scenarios that decode, and least waves.

A quarter is held out, and the rest must still determine the coefficients.
"""


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """Limits of the engine.

    Args:
        max_num_batched_tokens: Tokens of a step.
        max_num_seqs: Requests in a step.
        max_model_len: Tokens of a request.
        kv_capacity_tokens: Tokens in the KV cache.
        decode_tokens: Most tokens of a request that decodes in a step: its own, and its drafts.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    kv_capacity_tokens: int
    decode_tokens: int = 1


@dataclass(frozen=True, slots=True)
class Wave:
    """``prompts`` of ``prompt_tokens`` that arrive at once; ``chunk_tokens`` of them a step.

    One prompt may be longer than the chunk; several are as long as the chunk each.
    """

    prompts: int
    prompt_tokens: int
    chunk_tokens: int

    def __post_init__(self) -> None:
        if self.prompts > 1 and self.prompt_tokens != self.chunk_tokens:
            raise ValueError(f"{self}: several prompts are computed whole, a chunk each")

    @property
    def step_tokens(self) -> int:
        """Prompt tokens of its steps; the last step of a long prompt may have fewer."""
        return self.prompts * self.chunk_tokens


@dataclass(frozen=True, slots=True)
class Scenario:
    """``decode_seqs`` requests that decode at ``context_tokens`` each (none: 0 and 0), and what joins them in turn."""

    decode_seqs: int
    context_tokens: int
    waves: tuple[Wave, ...]

    @property
    def key(self) -> str:
        """Name of the scenario in the raw measurements."""
        waves = "+".join(f"{w.prompts}x{w.prompt_tokens}by{w.chunk_tokens}" for w in self.waves)
        return f"{self.decode_seqs}@{self.context_tokens}/{waves or 'none'}"


def full_grid(limits: EngineCapacity, max_context_tokens: int = 131_072) -> list[Scenario]:
    """Return what ``sloserve profile`` measures: about 40 scenarios, some 300 kinds of steps.

    Args:
        limits: Limits of the engine.
        max_context_tokens: Most tokens that the decoding requests of a scenario hold together; filling the cache is
            what takes the time.

    Raises: ConfigError for an engine too small to fit anything to.
    """
    seqs, length = limits.max_num_seqs, limits.max_model_len
    # Half of the KV cache is for requests that decode, half for the prompts beside them.
    budget = min(limits.max_num_batched_tokens, limits.kv_capacity_tokens // 2)
    room = min(max_context_tokens, limits.kv_capacity_tokens // 2)
    waves = [Wave(1, chunk, chunk) for chunk in _fitting(_CHUNKS, min(budget, length - 1))]
    waves += [Wave(k, c, c) for k in _MANY_PROMPTS for c in _fitting(_CHUNKS, budget // k) if k <= seqs and c < length]
    for chunk in _fitting(_PREFIX_CHUNKS, budget):
        tokens = min(chunk * _CHUNKS_A_PROMPT, length - 1, limits.kv_capacity_tokens // 2)
        if tokens > chunk:
            waves.append(Wave(1, tokens, chunk))
    scenarios = [Scenario(0, 0, (wave,)) for wave in waves]
    each = limits.decode_tokens
    for n in _fitting(_SEQS, min(seqs, budget // each)):
        chunks = _fitting(_BESIDE_DECODE, min(budget - each * n, length - 1))
        beside = tuple(Wave(1, chunk, chunk) for chunk in chunks) if n < seqs else ()
        for i, context in enumerate(_fitting(_CONTEXTS, min(length, room // n) - each * _DECODED_TOKENS)):
            # Prompts beside every other context: what mixing costs hardly depends on it.
            scenarios.append(Scenario(n, context, beside if i % 2 else ()))
    _check(scenarios, limits)
    return scenarios


def small_grid(limits: EngineCapacity) -> list[Scenario]:
    """Return a few seconds' worth of scenarios, for tests: enough steps to fit, not to trust.

    Raises: ConfigError for an engine too small to fit anything to.
    """
    room = limits.kv_capacity_tokens // 2
    chunks = _fitting((8, 32, 128, 256, 512), min(limits.max_num_batched_tokens, limits.max_model_len - 1))
    scenarios = [Scenario(0, 0, tuple(Wave(1, chunk, chunk) for chunk in chunks))]
    scenarios += [Scenario(0, 0, (Wave(1, 3 * chunk, chunk), Wave(2, chunk, chunk))) for chunk in chunks[1:3]]
    each = limits.decode_tokens
    for n in _fitting((1, 2, 4, 16), min(limits.max_num_seqs - 1, limits.max_num_batched_tokens // each)):
        for context in _fitting((16, 64, 128, 448), min(limits.max_model_len, room // n) - each * _DECODED_TOKENS):
            beside = context == 128 and each * n + 64 <= limits.max_num_batched_tokens
            scenarios.append(Scenario(n, context, (Wave(1, 64, 64),) if beside else ()))
    _check(scenarios, limits)
    return scenarios


def _fitting(sizes: Iterable[int], limit: int) -> list[int]:
    return [size for size in sizes if size <= limit]


def _check(scenarios: list[Scenario], limits: EngineCapacity) -> None:
    decoding = sum(s.decode_seqs > 0 for s in scenarios)
    if decoding < _MIN_EACH or sum(len(s.waves) for s in scenarios) < _MIN_EACH:
        raise ConfigError(
            f"an engine of max_num_seqs {limits.max_num_seqs}, max_num_batched_tokens {limits.max_num_batched_tokens}, "
            f"max_model_len {limits.max_model_len} and {limits.kv_capacity_tokens} tokens of KV cache has too few "
            "different steps to fit a profile to; give it larger limits"
        )
