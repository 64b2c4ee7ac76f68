"""From an engine that takes the time a known form says, with noise: measured, resumed, fitted, written, read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.fit import MeasuredStep
from sloserve.estimator.step_time.grid import EngineCapacity, Scenario
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.measurements import Measurements, TimedStep
from sloserve.estimator.step_time.profile import load_profile
from sloserve.estimator.step_time.profiling import (
    ProfileSettings,
    doubts,
    knee_tokens,
    make_profile,
    measure_grid,
    scores,
    write_profile,
)

TRUTH = load_profile("h100-llama3-8b")
LIMITS = EngineCapacity(max_num_batched_tokens=4096, max_num_seqs=256, max_model_len=16384, kv_capacity_tokens=400_000)
SUBJECT: dict[str, Any] = {
    "name": "mine",
    "hardware": "1x test",
    "model": "test",
    "tensor_parallel": 1,
    "vllm_version": "0.32.0",
    "kv_bytes_per_token": 131072,
    "kv_capacity_tokens": 400_000,
    "block_size": 16,
    "max_model_len": 16384,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 4096,
}
START = {"start_s": 30.0, "load_s": 12.0, "link_bandwidth_gb_per_s": 50.0}


class FakeEngine:
    """Takes TRUTH's time with 3 % noise, and now and then ten times as long. Stops after ``patience`` scenarios."""

    def __init__(self, patience: int = 10**9) -> None:
        self.patience = patience
        self.measured: list[str] = []
        self._rng = np.random.default_rng(0)

    def measure(self, scenario: Scenario) -> list[TimedStep]:
        if len(self.measured) == self.patience:
            raise KeyboardInterrupt
        self.measured.append(scenario.key)
        loads = []
        if scenario.decode_seqs:
            loads += [
                ("decode", StepLoad.of(decode_contexts=[scenario.context_tokens + i] * scenario.decode_seqs))
                for i in range(5)
            ]
        for i, wave in enumerate(scenario.waves):
            done = range(0, wave.prompt_tokens, wave.chunk_tokens)
            loads += [
                (
                    f"wave {i} step {j}",
                    StepLoad.of(
                        [(min(wave.chunk_tokens, wave.prompt_tokens - prefix), prefix)] * wave.prompts,
                        [scenario.context_tokens] * scenario.decode_seqs,
                    ),
                )
                for j, prefix in enumerate(done)
            ]
        return [TimedStep(kind, load, self._noisy(TRUTH.step_s(load))) for kind, load in loads]

    def _noisy(self, duration_s: float) -> float:
        pause = 10.0 if self._rng.random() < 0.02 else 1.0
        return duration_s * pause * (1.0 + 0.03 * self._rng.standard_normal())


@pytest.mark.slow
def test_an_interrupted_run_goes_on_and_the_profile_predicts_the_engine(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw.jsonl", tmp_path / "mine.yaml"
    scenarios = ProfileSettings().scenarios(LIMITS)
    first, second = FakeEngine(patience=20), FakeEngine()
    measured = Measurements.open(raw, SUBJECT)
    measured.add_start(START)
    with pytest.raises(KeyboardInterrupt):
        measure_grid(first, scenarios, 3, measured)
    raw.write_text(raw.read_text() + '{"scenario": "cut sho')

    measured = Measurements.open(raw, SUBJECT)
    measured.add_start(START | {"start_s": 40.0})
    seen: list[tuple[int, int]] = []
    measure_grid(second, scenarios, 3, measured, on_progress=lambda *p: seen.append(p))
    assert len(first.measured) + len(second.measured) == 3 * len(scenarios)
    assert seen[-1] == (3 * len(scenarios), 3 * len(scenarios))
    assert first.measured[:20] != [s.key for s in scenarios][:20], "in an order of its own"

    profile = write_profile(out, make_profile(measured, "hinge"))
    assert profile == load_profile(out)
    assert (profile.start_s, profile.load_s, profile.link_bandwidth_gb_per_s) == (35.0, 12.0, 50.0)
    assert profile.error.mape_percent is not None and profile.error.mape_percent < 5.0
    assert doubts(profile) is None
    assert scores(measured.steps())["hinge"].r2 > 0.99
    load = StepLoad.of([(700, 0)], [900] * 40)
    assert profile.step_s(load) == pytest.approx(TRUTH.step_s(load), rel=0.05)
    assert profile.within_grid(load)
    assert profile.grid.max_decode_seqs == 256


def test_other_forms_are_written_too(tmp_path: Path) -> None:
    measured = Measurements.open(tmp_path / "raw.jsonl", SUBJECT)
    measured.add_start(START)
    measure_grid(FakeEngine(), ProfileSettings(grid="small").scenarios(LIMITS), 1, measured)
    for form in ("bilinear", "distserve"):
        assert write_profile(tmp_path / f"{form}.yaml", make_profile(measured, form)).latency.form == form


def test_measurements_of_another_engine_are_not_mixed_in(tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    Measurements.open(raw, SUBJECT)
    with pytest.raises(
        ConfigError, match=r"something else \(vllm_version '0.32.0' there, '0.31.0' now\); move it away"
    ):
        Measurements.open(raw, SUBJECT | {"vllm_version": "0.31.0"})
    raw.write_text("not ours\n")
    with pytest.raises(ConfigError, match="is not a file of raw measurements"):
        Measurements.open(raw, SUBJECT)


def test_a_profile_that_predicts_badly_says_so_and_what_to_do() -> None:
    profile = load_profile("h100-llama3-8b")

    def of(error: float | None) -> str | None:
        return doubts(profile.model_copy(update={"error": profile.error.model_copy(update={"mape_percent": error})}))

    assert (of(None), of(25.0)) == (None, None)
    said = of(75.84)
    assert said is not None and "by 76 %, more than 25: measure with more --repetitions" in said


def test_too_few_measurements_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"raw\.jsonl: 0 steps without prefill"):
        make_profile(Measurements.open(tmp_path / "raw.jsonl", SUBJECT), "hinge")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"grid": "huge"}, "--grid: 'huge' is unknown; one of full, small"),
        ({"form": "cubic"}, "--form: 'cubic' is unknown; one of hinge"),
        ({"repetitions": 0}, "--repetitions: 0"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ProfileSettings(**settings)


def prefill(tokens: int, duration_s: float) -> MeasuredStep:
    return MeasuredStep(StepLoad.of([(tokens, 0)]), duration_s)


def test_knee_is_where_throughput_stops_growing() -> None:
    # 100 tokens/ms from 400 tokens on; before, the step takes 4 ms whatever it computes.
    steps = [prefill(n, max(0.004, n / 1e5)) for n in (50, 100, 200, 400, 800, 1600)]
    assert knee_tokens(steps) == 360, "0.9 of 100 tokens/ms, between 200 tokens (50/ms) and 400 (100/ms)"
    assert knee_tokens([*steps, MeasuredStep(StepLoad.of([(1600, 0)], [10]), 1e-6)]) == 360, "decode is left out"
    assert knee_tokens([prefill(10, 0.1), prefill(100, 1.0)]) == 10, "saturated from the start"
    assert knee_tokens(steps[:1]) is None
