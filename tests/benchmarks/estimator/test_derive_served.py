"""Profiles of models that are served today: the rule, and that the shipped files are what it gives."""

import os
from importlib import resources
from pathlib import Path

import pytest

from benchmarks.estimator import derive_served, kernel_times
from benchmarks.estimator.derive_served import SETUPS, capacity_tokens, step_s, tpot_ms
from benchmarks.estimator.kernel_times import H200, Kernel, LatentAttention
from benchmarks.estimator.published_timings import TIMINGS, Point
from benchmarks.estimator.served_models import Setup
from sloserve.estimator.step_time.latency import DecodeLine, DistServe
from sloserve.estimator.step_time.profile import load_profile

ROOT = Path(__file__).parents[3]
BY_NAME = {setup.name: setup for setup in SETUPS}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names the folder with the measured tables, or skips."""
    folder = Path(os.environ.get("SLOSERVE_DATA") or ROOT.parent / "shared" / "data")
    if not (folder / "gpu_gemm_bf16.csv.gz").is_file():
        pytest.skip("the measured tables are not here; set SLOSERVE_DATA")
    monkeypatch.setenv("SLOSERVE_DATA", str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_the_shipped_files_follow_from_the_rule(setup: Setup, tables: None) -> None:
    shipped = resources.files("sloserve.estimator") / "profiles" / f"{setup.name}.yaml"
    assert shipped.read_text(encoding="utf-8") == derive_served.profile_text(derive_served.derive(setup))


@pytest.mark.parametrize("name", BY_NAME)
def test_the_stated_error_is_that_of_the_shipped_form_against_the_published_figures(name: str) -> None:
    profile = load_profile(name)
    assert profile.derived is not None
    if name not in TIMINGS:
        assert profile.derived.published is None
        return
    published = profile.derived.published
    ratios = [tpot_ms(profile.latency, point) / point.tpot_ms for point in TIMINGS[name].points()]
    assert published is not None and published.figures == len(ratios)
    assert 100.0 * sum(abs(ratio - 1.0) for ratio in ratios) / len(ratios) == pytest.approx(
        published.mape_percent, abs=0.2
    )
    assert sum(ratios) / len(ratios) == pytest.approx(published.ratio, abs=0.01)


@pytest.mark.parametrize("name", BY_NAME)
def test_capacity_is_what_the_memory_leaves(name: str) -> None:
    profile, setup = load_profile(name), BY_NAME[name]
    assert profile.kv_capacity_tokens == capacity_tokens(setup)
    assert profile.weights_bytes == setup.weights_bytes
    memory = setup.gpus * setup.device.memory_gib * 2**30
    assert 0.5 * memory < setup.weights_bytes + profile.kv_blocks * setup.block_bytes < 0.9 * memory


@pytest.mark.slow
def test_the_rule_is_near_to_steps_that_are_known(tables: None) -> None:
    """Sums of measured kernels of Llama-3.1-8B on H100 and H200, and decode steps measured on an H100."""
    rows = derive_served.checks()
    assert len(rows) == 3
    for row in rows:
        assert all(value < 8.0 for name, value in row.items() if name.endswith("mape_percent")), row


def test_the_page_states_the_error_of_each_derived_profile() -> None:
    lines = (ROOT / "docs" / "profile.md").read_text(encoding="utf-8").splitlines()
    for name in BY_NAME:
        derived = load_profile(name).derived
        row = next(line for line in lines if line.startswith("|") and f"`{name}`" in line)
        assert derived is not None
        if derived.published is None:
            assert "none found" in row
        else:
            side = "too long" if derived.published.ratio > 1 else "too short"
            assert f"| {derived.published.mape_percent:.0f} %, {side} | {derived.published.figures} of" in row


def test_every_published_time_belongs_to_a_derived_profile() -> None:
    assert set(TIMINGS) <= set(BY_NAME)


def test_a_kernel_reads_or_computes_whichever_takes_longer_or_both() -> None:
    one = Kernel(1e-6, 0.5, 0.25)
    assert one.seconds(H200, 4.8e6, 0.0, 1.0) == pytest.approx(3e-6)
    assert one.seconds(H200, 4.8e6, 989.5e6, 1.0) == pytest.approx(5e-6)
    assert one.seconds(H200, 4.8e6, 989.5e6, 2.0) == pytest.approx(3e-6)
    assert Kernel(1e-6, 0.5, 0.25, added=True).seconds(H200, 4.8e6, 989.5e6, 1.0) == pytest.approx(7e-6)


def test_latent_attention_of_decodes_sees_its_selection_and_scans_the_whole_context() -> None:
    one = LatentAttention(2048, (50.0, 1.0, 0.01, 0.001), (80.0, 0.5, 0.0, 0.0))
    assert one.seconds((0, 0, 0), (2, 1000)) == pytest.approx(1e-6 * (50 + 2 * (1 + 10 + 1)))
    assert one.seconds((0, 0, 0), (2, 10_000)) == pytest.approx(1e-6 * (50 + 2 * (1 + 20.48 + 10)))
    assert one.seconds((1, 100, 0), (0, 0)) == pytest.approx(1e-6 * (80 + 50))


@pytest.mark.slow
def test_experts_are_read_as_often_as_tokens_choose_them_by_chance(tables: None) -> None:
    setup = BY_NAME["h200-gpt-oss-120b"]
    one, few, many = (step_s(setup, (0, 0, 0), (seqs, 128)) for seqs in (1, 8, 64))
    kernel = kernel_times.PUBLISHED[H200, "experts mxfp4"]
    read_s = 36 * 128 * 3 * 2880 * 2880 * 4.25 / 8 / (4.8e12 * kernel.memory)
    shares = [1 - (1 - 4 / 128) ** seqs for seqs in (1, 8, 64)]
    # The rest of the step hardly grows: what is added is mostly the experts that more tokens touch.
    assert few - one == pytest.approx(read_s * (shares[1] - shares[0]), rel=0.1)
    assert many - few == pytest.approx(read_s * (shares[2] - shares[1]), rel=0.3)


def test_a_rank_of_data_parallel_attention_reads_experts_for_all_ranks_and_exchanges_their_tokens(tables: None) -> None:
    setup = BY_NAME["b200-deepseek-v4-pro-dp8"]
    alone = Setup("", setup.device, 1, setup.model, kv="fp8", latent=setup.latent)
    assert setup.weights_bytes < alone.weights_bytes / 6
    # Eight tokens, one a rank, over eight times as many GPUs: less to read a GPU, and the exchange beside it.
    assert derive_served._experts_s(setup, 1) < derive_served._experts_s(alone, 8)
    assert derive_served._exchange_s(setup, 1) > derive_served._exchange_s(alone, 1) == 0.0


def test_a_token_waits_for_the_prompts_that_start_meanwhile() -> None:
    line = DecodeLine(base_ms=10.0, context_token_ms=0.0, seq_ms=0.0)
    form = DistServe(
        prefill_base_ms=10.0,
        prefill_token_ms=0.1,
        prefill_attention_token2_ms=0.0,
        small_batch_below=1,
        decode_small=line,
        decode_large=line,
    )
    assert tpot_ms(form, Point(1000, 100, 1, 0.0)) == pytest.approx(10.0)
    # Each of the nine other streams starts one prompt of 1000 tokens, 100 ms, during 100 tokens.
    assert tpot_ms(form, Point(1000, 100, 10, 0.0)) == pytest.approx(10.0 + 9 * 100.0 / 100)
