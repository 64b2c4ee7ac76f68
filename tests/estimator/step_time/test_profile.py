"""Profiles: the shipped ones agree with their sources, and a broken file gets one error that says where and what."""

import csv
import gzip
import json
import os
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.latency import DistServe, Hinge, StepLoad
from sloserve.estimator.step_time.profile import Derived, Profile, Published, load_profile, profile_names
from tests.architecture.test_wheel_and_checkout import PROFILES

GIB = 2**30
ROOT = Path(__file__).parents[3]

NAMES = tuple(sorted(PROFILES["sloserve"] | PROFILES["benchmarks"]))

# layers, KV heads, head size, weights, GPUs, GiB a GPU; 2 bytes a number.
SHAPES = {
    "a100-llama2-7b": (32, 32, 128, 6_738_415_616, 1, 79.1),
    "a100-llama3-70b-tp4": (80, 8, 128, 70_553_706_496, 4, 79.1),
    "a100-opt-1.3b": (24, 32, 64, 1_315_758_080, 1, 79.1),
    "a100-opt-125m": (12, 12, 64, 125_239_296, 1, 79.1),
    "a100-opt-13b": (40, 40, 128, 12_853_473_280, 1, 79.1),
    "a100-opt-2.7b": (32, 32, 80, 2_651_596_800, 1, 79.1),
    "a100-opt-6.7b": (32, 32, 128, 6_658_473_984, 1, 79.1),
    "h100-llama2-7b": (32, 32, 128, 6_738_415_616, 1, 79.1),
    "h100-llama3-8b": (32, 8, 128, 8_030_261_248, 1, 79.1),
    "h200-llama3-8b": (32, 8, 128, 8_030_261_248, 1, 139.8),
    "b200-llama3-8b": (32, 8, 128, 8_030_261_248, 1, 178.4),
    "v100x2-qwen2.5-7b": (28, 4, 128, 7_615_616_512, 2, 31.7),
    "a10-mistral-7b": (32, 8, 128, 7_241_732_096, 1, 22.1),
    "a10x2-vicuna-13b": (40, 40, 128, 13_015_864_320, 2, 22.1),
    "a100-mistral-7b": (32, 8, 128, 7_241_732_096, 1, 79.1),
    "a100-vicuna-13b": (40, 40, 128, 13_015_864_320, 1, 79.1),
    "a100x2-llama-33b": (60, 52, 128, 32_528_943_616, 2, 79.1),
    "a100x4-opt-30b": (48, 56, 128, 29_974_540_288, 4, 79.1),
    "a100x4-opt-66b": (64, 72, 128, 65_719_701_504, 4, 79.1),
    "a100x8-opt-175b": (96, 96, 128, 174_604_468_224, 8, 79.1),
    "a40x4-opt-66b": (64, 72, 128, 65_719_701_504, 4, 44.4),
    "a800-qwen2.5-7b": (28, 4, 128, 7_615_616_512, 1, 79.1),
    "a800-qwen2.5-32b": (64, 8, 128, 32_763_876_352, 1, 79.1),
    "v100x4-qwen2.5-32b": (64, 8, 128, 32_763_876_352, 4, 31.7),
}

# Layers in each group, groups of other kinds, bytes of KV of a token and layer, tokens a block, weights' bytes, GPUs.
HYBRIDS = {
    "h100-gemma3-12b": (8, 5, 2 * 8 * 256 * 2, 16, 2 * 12_187_325_040, 1),
    "h100-gpt-oss-20b": (12, 1, 2 * 8 * 64 * 2, 16, 13_761_300_984, 1),
    "h100-granite4-small": (4, 9, 2 * 8 * 128 * 2, 528, 2 * 32_207_337_984, 1),
    "h100x2-qwen3-next-80b": (12, 3, 2 * 2 * 256 * 2, 1056, 82_000_000_000, 2),
}

# Layers, KV heads, head size, bytes of a number; weights' bytes, GPUs, GiB a GPU.
FLAT = {
    "b200-llama3-70b-fp8": (80, 8, 128, 1, 72_655_052_800, 1, 178.4),
    "b200x4-qwen3-235b": (94, 4, 128, 2, 236_338_294_272, 4, 178.4),
    "h100x4-llama3-70b-fp8": (80, 8, 128, 1, 72_655_052_800, 4, 79.1),
    "h200x2-llama3-70b-fp8": (80, 8, 128, 1, 72_655_052_800, 2, 139.8),
    "h200x4-qwen3-235b": (94, 4, 128, 2, 236_338_294_272, 4, 139.8),
}

# device, vLLM version, model, tensor parallel in the grid of composed step times; MAPE % published with the hinge fit.
GRIDS = {
    "a100-llama2-7b": (("a100_sxm", "0.14.0", "llama2-7b", "1"), 2.0),
    "a100-llama3-70b-tp4": (("a100_sxm", "0.14.0", "llama3-70b", "4"), 2.5),
    "h100-llama2-7b": (("h100_sxm", "0.24.0", "llama2-7b", "1"), 4.2),
    "h100-llama3-8b": (("h100_sxm", "0.24.0", "llama3-8b", "1"), 4.0),
    "h200-llama3-8b": (("h200_sxm", "0.24.0", "llama3-8b", "1"), 3.3),
}


def data_file(name: str) -> Path:
    path = Path(os.environ.get("SLOSERVE_DATA") or ROOT.parent / "shared" / "data") / name
    if not path.is_file():
        pytest.skip(f"{name} is not here; set SLOSERVE_DATA")
    return path


@pytest.fixture(scope="module")
def composed() -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Rows of the composed grid by device, vLLM version, model and tensor parallel."""
    rows: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with gzip.open(data_file("gpu_step_profile.csv.gz"), "rt") as file:
        for row in csv.DictReader(file):
            rows.setdefault((row["device"], row["vllm"], row["model"], row["tp"]), []).append(row)
    return rows


def load_of(row: dict[str, str]) -> StepLoad:
    names = ("prefill_tokens", "prefill_seqs", "batch", "context_tokens", "sum_isl2")
    return StepLoad(*(int(row[name]) for name in names))


def test_the_shipped_profiles() -> None:
    assert profile_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_profile_is_called_by_its_name_and_stays_within_its_grid_by_default(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.max_num_batched_tokens <= profile.grid.max_step_tokens
    assert profile.max_num_seqs <= profile.grid.max_decode_seqs


@pytest.mark.parametrize("name", SHAPES)
def test_kv_cache_follows_from_the_models_shape_and_the_memory(name: str) -> None:
    layers, kv_heads, head_size, weights, gpus, memory_gib = SHAPES[name]
    profile = load_profile(name)
    assert profile.kv_bytes_per_token == 2 * layers * kv_heads * head_size * 2
    free_bytes = gpus * (0.9 * memory_gib - 2.0) * GIB - 2 * weights
    assert profile.kv_capacity_tokens == int(free_bytes // profile.kv_bytes_per_token)


@pytest.mark.parametrize("name", FLAT)
def test_kv_cache_of_a_derived_profile_follows_from_the_models_shape_and_the_memory(name: str) -> None:
    layers, kv_heads, head_size, number_bytes, weights_bytes, gpus, memory_gib = FLAT[name]
    profile = load_profile(name)
    assert profile.kv_bytes_per_token == 2 * layers * kv_heads * head_size * number_bytes
    assert profile.weights_bytes == weights_bytes
    free_bytes = gpus * (0.9 * memory_gib - 2.0) * GIB - weights_bytes
    assert profile.kv_capacity_tokens == int(free_bytes // profile.kv_bytes_per_token)


@pytest.mark.parametrize("name", HYBRIDS)
def test_blocks_follow_from_the_groups_of_layers_and_the_memory(name: str) -> None:
    layers, others, token_bytes, block_size, weights, gpus = HYBRIDS[name]
    profile = load_profile(name)
    cache = profile.kv_cache
    assert cache is not None and cache.block_bytes == layers * token_bytes * block_size
    assert [(one.num_groups, one.block_size) for one in cache.groups] == [(1, block_size), (others, block_size)]
    free_bytes = gpus * (0.9 * 79.1 - 2.0) * GIB - weights
    assert profile.kv_blocks == cache.blocks == int(free_bytes // cache.block_bytes) - 1
    # A request of the stated length fills its part of the blocks, and the whole of them as many such requests.
    assert profile.kv_capacity_tokens > cache.blocks * block_size // (1 + others)
    assert profile.kv_bytes_per_token * profile.kv_capacity_tokens == pytest.approx(
        cache.block_bytes * cache.blocks, rel=1e-4
    )
    assert "no step was measured" in profile.error.text and profile.error.mape_percent is None


@pytest.mark.parametrize("name", NAMES)
def test_no_profile_foresees_less_time_for_more_work(name: str) -> None:
    profile = load_profile(name)
    grid = profile.grid
    chunks = [2**i for i in range(grid.max_step_tokens.bit_length())]
    prompts_s = [profile.step_s(StepLoad.of([(chunk, 0)])) for chunk in chunks]
    assert prompts_s == sorted(prompts_s)
    prefixes_s = [profile.step_s(StepLoad.of([(256, prefix)])) for prefix in (0, 128, 1024, 8192)]
    assert prefixes_s == sorted(prefixes_s)
    for context in (128, 1024, 8192):
        decodes = [StepLoad.of([], [context] * seqs) for seqs in range(1, min(grid.max_decode_seqs, 256) + 1)]
        bounds_s = [profile.decode_bound_s(load) for load in decodes]
        assert bounds_s == sorted(bounds_s)
        if profile.derived is not None:
            assert [profile.step_s(load) for load in decodes] == pytest.approx(bounds_s)
        within = [profile.prefill_within(0.2, load, 0) for load in decodes]
        assert within == sorted(within, reverse=True)


DERIVED = [name for name in NAMES if load_profile(name).derived is not None]


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_whose_steps_nobody_measured_says_so_by_its_marker(name: str) -> None:
    profile = load_profile(name)
    not_measured = "Not measured" in profile.source
    assert (profile.derived is not None) == not_measured
    assert profile.marker.startswith("derived, ") == not_measured
    assert profile.title == (f"{name} ({profile.marker})" if not_measured else name)
    if not_measured:
        assert "no step was measured" in profile.error.text and profile.error.mape_percent is None


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_profile_says_from_what_and_how_it_compares(name: str) -> None:
    derived = load_profile(name).derived
    assert derived is not None and derived.method
    if derived.published is not None:
        assert derived.published.source and derived.published.figures >= 1
        # A mean ratio cannot be farther from 1 than the errors are on average.
        assert abs(derived.published.ratio - 1.0) * 100.0 <= derived.published.mape_percent + 0.5


@pytest.mark.parametrize(
    ("figures", "mape", "ratio", "says"),
    [
        (15, 10.8, 1.10, "derived, 11 % off 15 published times (too long)"),
        (1, 42.7, 0.57, "derived, 43 % off 1 published time (too short)"),
        (15, 9.0, 1.02, "derived, 9 % off 15 published times"),
    ],
)
def test_the_marker_states_the_error_and_its_side(figures: int, mape: float, ratio: float, says: str) -> None:
    published = Published(source="somebody", figures=figures, mape_percent=mape, ratio=ratio)
    profile = load_profile("h200-llama3-8b").model_copy(update={"derived": Derived(method="m", published=published)})
    assert profile.marker == says
    alone = profile.model_copy(update={"derived": Derived(method="m", published=None)})
    assert alone.marker == "derived, not compared with any published time"


def test_capacity_that_the_blocks_do_not_hold_is_refused(tmp_path: Path) -> None:
    text = (resources.files("sloserve.estimator") / "profiles" / "h100-gpt-oss-20b.yaml").read_text()
    path = tmp_path / "other.yaml"
    path.write_text(text.replace("kv_capacity_tokens: 2423061", "kv_capacity_tokens: 2463008"))
    with pytest.raises(ConfigError, match="2463008 is not 2423061, which the 153937 blocks of kv_cache hold"):
        load_profile(path)


def test_without_a_prefix_cache_one_state_is_kept_in_a_block_of_any_length() -> None:
    cache = load_profile("h100-granite4-small").kv_cache
    assert cache is not None
    attention, states = (one.groups(4096, caches=False) for one in cache.groups)
    assert (attention.block_size, states.block_size, states.window_tokens, states.states) == (528, 4096, 2, 0)
    cached = [one.groups(4096, caches=True) for one in cache.groups]
    assert [(one.block_size, one.states) for one in cached] == [(528, 0), (528, 2)]


def test_the_small_opt_profile_is_the_large_one_with_12_gib_in_blocks_of_32() -> None:
    small, large = load_profile("a100-opt-13b-12gb"), load_profile("a100-opt-13b")
    assert small.kv_capacity_tokens == 12 * GIB // small.kv_bytes_per_token
    assert (small.block_size, small.kv_blocks) == (32, 491)
    assert small.latency == large.latency
    assert small.grid == large.grid


@pytest.mark.parametrize("name", GRIDS)
def test_hinge_profiles_agree_with_the_grid_they_were_fitted_to(
    name: str, composed: dict[tuple[str, ...], list[dict[str, str]]]
) -> None:
    key, published_mape = GRIDS[name]
    profile = load_profile(name)
    loads = [load_of(row) for row in composed[key]]
    real_ms = np.array([float(row["t_ms"]) for row in composed[key]])
    error = np.abs(np.array([profile.latency.step_s(load) for load in loads]) * 1000.0 - real_ms) / real_ms * 100.0
    assert error.mean() == pytest.approx(profile.error.mape_percent, abs=0.1)
    assert error.mean() == pytest.approx(published_mape, abs=1.0)
    assert all(profile.within_grid(load) for load in loads)


@pytest.mark.parametrize("name", GRIDS)
def test_a_prefix_costs_what_the_tables_attention_costs(
    name: str, composed: dict[tuple[str, ...], list[dict[str, str]]]
) -> None:
    rows = [r for r in composed[GRIDS[name][0]] if r["batch"] == "0" and r["prefill_seqs"] == "1"]
    attention_ms = {int(r["prefill_tokens"]): float(r["ms_att"]) for r in rows}
    slope = (attention_ms[4096] - attention_ms[2048]) / (4096**2 - 2048**2)
    latency = load_profile(name).latency
    assert isinstance(latency, Hinge)
    assert latency.prefix_attention_token2_ms == pytest.approx(slope, rel=0.01)


def test_opt_profile_holds_distserves_published_figures() -> None:
    with gzip.open(data_file("gpu_distserve_a100_fits.json.gz"), "rt") as file:
        fit = json.load(file)["vllm"]["facebook/opt-13b"]["1"]
    latency = load_profile("a100-opt-13b").latency
    assert isinstance(latency, DistServe)
    prefill = [latency.prefill_base_ms, latency.prefill_token_ms, latency.prefill_attention_token2_ms]
    assert prefill == fit["prefill"]
    assert latency.small_batch_below == fit["decoding_large_small_bs_threshold"]
    for line, key in ((latency.decode_small, "decoding_smallbs"), (latency.decode_large, "decoding_largebs")):
        assert [line.base_ms, line.context_token_ms, line.seq_ms] == fit[key]


def test_step_adds_the_engines_overhead_unless_there_is_nothing_to_do() -> None:
    profile = load_profile("h100-llama3-8b")
    load = StepLoad.of(decode_contexts=[1000])
    assert profile.step_s(load) == pytest.approx(profile.latency.step_s(load) + 1e-3)
    assert profile.step_s(StepLoad()) == 0.0


def test_grid_bounds_each_direction() -> None:
    grid = load_profile("h100-llama3-8b").grid
    inside = StepLoad(4000, 8, 256, 262_144, 4096**2)
    assert grid.covers(inside)
    for outside in (
        StepLoad(4353, 1, 0, 0, 0),
        StepLoad(9, 9, 0, 0, 9),
        StepLoad(0, 0, 257, 0, 0),
        StepLoad(0, 0, 1, 262_145, 0),
        StepLoad.of(prefills=[(2048, 4096)]),
    ):
        assert not grid.covers(outside)


def shipped_text(name: str = "h100-llama3-8b") -> str:
    return (resources.files("sloserve.estimator") / "profiles" / f"{name}.yaml").read_text()


def test_a_file_is_read_like_a_shipped_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(shipped_text())
    assert load_profile(path) == load_profile(str(path)) == load_profile("h100-llama3-8b")


def test_an_unknown_name_lists_the_known_and_the_closest() -> None:
    with pytest.raises(
        ConfigError,
        match=r"unknown profile 'h100-lama3-8b'; did you mean 'h100-llama3-8b'\?; `sloserve workloads` lists",
    ):
        load_profile("h100-lama3-8b")


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_profile(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kv_bytes_per_token: 131072\n", "", r":2:1: kv_bytes_per_token: is missing; needed: bytes of KV cache"),
        ("block_size: 16", "block_sizes: 16", r"block_size: is missing; needed: tokens in a KV block"),
        (
            "block_size: 16",
            "block_size: 16\nblok_size: 16",
            r":\d+:1: blok_size: is unknown.*did you mean 'block_size'",
        ),
        ("block_size: 16", "block_size: 0", r":\d+:1: block_size: 0: .*greater than or equal to 1"),
        ("block_size: 16", "block_size: many", r"block_size: 'many': .*valid integer"),
        ("block_size: 16", "block_size: 16\nblock_size: 32", r":\d+:1: block_size: given twice"),
        ("gb_per_s: 50.0", "gb_per_s: .inf", r"link_bandwidth_gb_per_s: inf: .*finite.*needed: host to GPU"),
        (
            "form: hinge",
            "form: hing",
            r":\d+:1: latency: form 'hing' is unknown; needed: one of hinge, distserve, bilinear",
        ),
        ("  form: hinge\n", "", r"latency: form is missing; needed: one of hinge"),
        ("  base_ms: 7.578\n", "", r"latency\.base_ms: is missing"),
        (
            "    base_ms: 6.74\n",
            "    bas_ms: 6.74\n",
            r":\d+:5: latency\.decode\.bas_ms: is unknown.*did you mean 'base_ms'",
        ),
        ("  base_ms: 7.578", "  base_ms: -7.578", r"latency\.base_ms: -7\.578: .*greater than 0"),
        ("  seq_ms: 0.005064", "  seq_ms: -0.05", r"latency: .*seq_ms: -0\.05 gives a step"),
        ("  mape_percent", "  mape", r"error\.mape_percent: is missing; needed: mean absolute"),
        ("grid:\n", "grid: 5\nother:\n", r"grid: 5: .*needed: the largest step"),
    ],
)
def test_a_broken_field_is_named_with_its_line_and_what_is_needed(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    text = shipped_text()
    assert text.count(old) >= 1
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=says) as caught:
        load_profile(path)
    assert all(line.startswith(str(path)) for line in str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("x" * 1000, r"^\S+ 'x{30,40}\.\.\.x{30,40}' is not a mapping of fields"),
        ("- 1\n", "a list is not a mapping of fields to values"),
        ("name: [1\n", r"mine\.yaml:2:1: is not YAML"),
        ("name: \x00", "is not YAML"),
        ("name: &me [*me]\n", "name.*: contains itself"),
        ("1: x\n", "1:1: 1: is unknown"),
    ],
)
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_profile(path)


def test_one_error_lists_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\n")
    with pytest.raises(ConfigError) as caught:
        load_profile(path)
    fields = {name for name, field in Profile.model_fields.items() if field.is_required()} - {"name"}
    assert {line.split(": ")[1] for line in str(caught.value).splitlines()} == fields
