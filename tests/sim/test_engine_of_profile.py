"""The engine that a profile describes: its groups of layers, and no request longer than its KV cache holds."""

import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_layout import KVGroups
from sloserve.engine.virtual.engine_settings import EngineSettings, blocks_of_longest
from sloserve.estimator.step_time.profile import load_profile, profile_names
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment_options import SimulateOptions


@pytest.mark.parametrize(
    "name", ["h100-gpt-oss-20b", "h100-gemma3-12b", "h100x2-qwen3-next-80b", "h100-granite4-small"]
)
@pytest.mark.parametrize("caches", [False, True])
def test_the_longest_request_is_the_longest_that_is_ever_admitted(name: str, caches: bool) -> None:
    profile = load_profile(name)
    whole = EngineSettings.of_profile(profile, max_model_len=65_536, enable_prefix_caching=caches)
    assert (whole.max_model_len, whole.kv_blocks) == (65_536, profile.kv_blocks)
    assert not whole.layout.is_full
    few = EngineSettings.of_profile(profile, max_model_len=65_536, kv_blocks=30, enable_prefix_caching=caches)
    assert 0 < few.max_model_len < 65_536
    longest, beyond = (blocks_of_longest(whole.layout, few.max_model_len + more) for more in (0, 1))
    assert longest <= 30 < beyond


def test_full_attention_holds_what_its_blocks_hold() -> None:
    engine = EngineSettings.of_profile(load_profile("h100-llama3-8b"), max_model_len=131_072, kv_blocks=100)
    assert (engine.max_model_len, engine.kv_groups) == (1600, ())


def test_simulate_takes_the_groups_of_a_profile() -> None:
    options = SimulateOptions(workload="alpaca-poisson", profile="h100-gpt-oss-20b", rps="5", seeds=1)
    assert [one.window_tokens for one in build_experiment(options).engine.kv_groups] == [0, 128]


def test_a_block_of_a_hybrid_has_the_bytes_of_its_profile() -> None:
    profile, full = load_profile("h100-gpt-oss-20b"), load_profile("h100-llama3-8b")
    assert profile.kv_cache is not None
    engine = EngineSettings.of_profile(profile, max_model_len=8192, swap_space_gib=1.0)
    assert engine.block_bytes(profile) == profile.kv_cache.block_bytes
    assert EngineSettings.of_profile(full).block_bytes(full) == full.kv_bytes_per_token * full.block_size


def test_states_of_drafts_are_not_swapped() -> None:
    groups = (KVGroups(1, 16), KVGroups(1, 16, states=2, spare_blocks=3))
    with pytest.raises(ConfigError, match="swap_space_gib: 1.0 GiB for a model with Mamba states of draft tokens"):
        EngineSettings(
            kv_blocks=100, max_model_len=64, max_num_batched_tokens=256, swap_space_gib=1.0, kv_groups=groups
        )


@pytest.mark.parametrize("name", profile_names())
def test_swap_space_is_refused_where_the_server_refuses_it(name: str) -> None:
    """Of the shipped profiles' models only DeepSeek-V4 has compressed caches."""
    profile = load_profile(name)
    if "deepseek-v4" in name:
        with pytest.raises(ConfigError, match="compressed caches"):
            EngineSettings.of_profile(profile, swap_space_gib=8.0)
    else:
        EngineSettings.of_profile(profile, swap_space_gib=8.0)
