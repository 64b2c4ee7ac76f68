"""Grids stay within the engine's limits, on engines small and large, and say when an engine is too small."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.grid import EngineCapacity, Scenario, Wave, full_grid, small_grid

H100 = EngineCapacity(max_num_batched_tokens=8192, max_num_seqs=256, max_model_len=131072, kv_capacity_tokens=444_272)


@given(
    budget=st.integers(1024, 32768),
    seqs=st.integers(9, 1024),
    length=st.integers(1100, 200_000),
    capacity=st.integers(50_000, 10**7),
    small=st.booleans(),
)
def test_every_scenario_fits_the_engine(budget: int, seqs: int, length: int, capacity: int, small: bool) -> None:
    limits = EngineCapacity(budget, seqs, length, capacity)
    scenarios = small_grid(limits) if small else full_grid(limits, 65536)
    assert len({s.key for s in scenarios}) == len(scenarios)
    for s in scenarios:
        prompts = max((w.prompts for w in s.waves), default=0)
        tokens = max((w.prompts * w.prompt_tokens for w in s.waves), default=0)
        assert s.decode_seqs + prompts <= seqs
        assert s.decode_seqs * (s.context_tokens + 64) + tokens <= capacity
        assert s.context_tokens + 64 <= length
        assert all(w.prompt_tokens < length and s.decode_seqs + w.step_tokens <= budget for w in s.waves)


def test_the_full_grid_spans_chunks_prefixes_batches_and_contexts() -> None:
    scenarios = full_grid(H100)
    waves = [w for s in scenarios for w in s.waves]
    assert {w.step_tokens for w in waves} >= {16, 64, 256, 1024, 4096, 8192}
    assert any(w.prompt_tokens >= 6 * w.chunk_tokens for w in waves), "prefixes"
    assert {s.decode_seqs for s in scenarios} >= {1, 16, 256}
    assert {s.context_tokens for s in scenarios} >= {16, 1024, 16384}
    assert any(s.decode_seqs and s.waves for s in scenarios), "mixed steps"
    assert max(s.decode_seqs * s.context_tokens for s in scenarios) <= 131_072


@pytest.mark.parametrize("grid", [full_grid, small_grid])
def test_an_engine_too_small_is_told_which_limits_it_has(grid) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match="max_num_seqs 1, max_num_batched_tokens 16.*too few different steps"):
        grid(EngineCapacity(16, 1, 100, 1000))


def test_several_prompts_are_computed_whole() -> None:
    with pytest.raises(ValueError, match="computed whole"):
        Wave(prompts=2, prompt_tokens=100, chunk_tokens=50)
    assert Scenario(2, 64, (Wave(1, 100, 50),)).key == "2@64/1x100by50"
