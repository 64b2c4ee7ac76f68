"""The corrected profile follows a machine that drifts, and no outlier, however large, moves it by more than a bound."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import Profile, load_profile
from sloserve.estimator.step_time.recalibrate import Recalibrated

PROFILE = load_profile("h100-llama3-8b")
STEPS_TO_FOLLOW = 300
"""A hundred percent, to within ten: about four seconds of an engine at 15 ms a step."""

loads = st.builds(
    lambda chunk, prefix, seqs, context: StepLoad.of([(chunk, prefix)] if chunk else [], [context] * seqs),
    st.sampled_from([0, 16, 512, 2000]),
    st.sampled_from([0, 4000]),
    st.integers(1, 256),
    st.integers(1, 4000),
)


def traffic(rng: np.random.Generator) -> StepLoad:
    """Three steps in four decode only; batches and contexts vary."""
    chunks = [(int(rng.integers(100, 2000)), 0)] if rng.random() < 0.25 else []
    return StepLoad.of(chunks, [int(rng.integers(50, 3000))] * int(rng.integers(1, 200)))


def feed(model: Recalibrated, steps: int, truth: Callable[[StepLoad], float], seed: int = 0) -> Recalibrated:
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        load = traffic(rng)
        model.observe(load, truth(load) * (1.0 + 0.05 * rng.standard_normal()))
    return model


def worst_error(model: Recalibrated, truth: Callable[[StepLoad], float]) -> float:
    rng = np.random.default_rng(99)
    probes = [traffic(rng) for _ in range(100)]
    return max(abs(model.step_s(load) / truth(load) - 1.0) for load in probes)


@pytest.mark.slow
def test_starts_as_the_profile_and_stays_where_it_is_right() -> None:
    model = Recalibrated(PROFILE)
    assert worst_error(model, PROFILE.step_s) < 1e-12
    assert worst_error(feed(model, 2000, PROFILE.step_s), PROFILE.step_s) < 0.05
    assert 0.03 < model.relative_error < 0.08
    assert model.observed == 2000


@pytest.mark.slow
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_lasting_change_of_a_hundred_percent_is_followed(factor: float) -> None:
    def drifted(load: StepLoad) -> float:
        return factor * PROFILE.step_s(load)

    model = feed(Recalibrated(PROFILE), 500, PROFILE.step_s)
    assert worst_error(feed(model, STEPS_TO_FOLLOW, drifted, seed=1), drifted) < 0.1


@pytest.mark.slow
def test_prefill_alone_may_be_slower() -> None:
    def slow_prefill(load: StepLoad) -> float:
        decode = StepLoad(decode_seqs=load.decode_seqs, decode_context_tokens=load.decode_context_tokens)
        return PROFILE.step_s(decode) + 3.0 * max(PROFILE.step_s(load) - PROFILE.step_s(decode), 0.0)

    model = feed(Recalibrated(PROFILE), 1500, slow_prefill)
    constant, prefill, decode, draft = model.factors
    assert draft == 1.0
    assert prefill == pytest.approx(3.0, rel=0.1)
    assert decode == pytest.approx(1.0, abs=0.15) and constant == pytest.approx(1.0, abs=0.15)


@pytest.mark.slow
def test_decode_alone_teaches_nothing_of_prefill() -> None:
    model = Recalibrated(PROFILE)
    load = StepLoad.of(decode_contexts=[500] * 64)
    for _ in range(5000):
        model.observe(load, 2.0 * PROFILE.step_s(load))
    assert model.step_s(load) == pytest.approx(2.0 * PROFILE.step_s(load), rel=1e-3)
    assert model.factors[1] == 1.0
    # Nor has forgetting made it ready to believe anything: one slow prefill moves it by its bound at most.
    prefill = StepLoad.of([(2000, 0)])
    before_s = model.step_s(prefill)
    model.observe(prefill, 100.0)
    assert model.step_s(prefill) < 1.05 * before_s


@given(
    history=st.integers(0, 150),
    seed=st.integers(0, 5),
    outlier=st.sampled_from([1e-3, 1e-2, 100.0, 1000.0, 1e9, 1e300]),
    at=loads,
    probe=loads,
)
def test_one_outlier_changes_no_prediction_by_five_percent(
    history: int, seed: int, outlier: float, at: StepLoad, probe: StepLoad
) -> None:
    model = feed(Recalibrated(PROFILE), history, PROFILE.step_s, seed)
    before_s = model.step_s(probe)
    model.observe(at, outlier * model.step_s(at))
    assert abs(model.step_s(probe) / before_s - 1.0) < 0.05


@pytest.mark.slow
def test_an_outlier_in_fifty_hardly_biases() -> None:
    rng = np.random.default_rng(3)

    def with_pauses(load: StepLoad) -> float:
        return PROFILE.step_s(load) * (20.0 if rng.random() < 0.02 else 1.0)

    assert worst_error(feed(Recalibrated(PROFILE), 3000, with_pauses), PROFILE.step_s) < 0.1


@given(st.lists(st.tuples(loads, st.floats(1e-9, 1e9)), max_size=60), loads)
def test_predictions_stay_positive_and_finite(observed: list[tuple[StepLoad, float]], probe: StepLoad) -> None:
    model = Recalibrated(PROFILE)
    for load, duration_s in observed:
        model.observe(load, duration_s)
    assert 0.09 * PROFILE.step_s(probe) < model.step_s(probe) < 11.0 * PROFILE.step_s(probe)


@pytest.mark.parametrize("duration_s", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_time_is_ignored(duration_s: float) -> None:
    model = Recalibrated(PROFILE)
    model.observe(StepLoad.of(decode_contexts=[10]), duration_s)
    model.observe(StepLoad(), 1.0)
    assert model.factors == (1.0, 1.0, 1.0, 1.0) and model.observed == 0
    assert model.step_s(StepLoad()) == 0.0


@pytest.mark.slow
def test_it_is_the_least_squares_solution_and_its_state_says_so() -> None:
    """Against numpy, from the state before each step: with small errors nothing is clipped."""
    model, rng = Recalibrated(PROFILE), np.random.default_rng(5)
    for _ in range(200):
        drafts_each = int(rng.integers(0, 8))
        load, before = traffic(rng), model.state()
        load = replace(load, draft_tokens=drafts_each * load.decode_seqs)
        undrafted = replace(load.decodes, draft_tokens=0)
        constant_s = PROFILE.step_s(StepLoad(decode_seqs=1, decode_context_tokens=1))
        decode_s = PROFILE.step_s(undrafted) - constant_s
        drafts_s = PROFILE.step_s(load.decodes) - PROFILE.step_s(undrafted)
        rest_s = PROFILE.step_s(load) - constant_s - decode_s - drafts_s
        parts_s = np.array([constant_s, rest_s, decode_s, drafts_s])
        share, ratio = parts_s / parts_s.sum(), 1.0 + float(rng.uniform(-0.01, 0.01))
        model.observe(load, ratio * PROFILE.step_s(load))
        information = 63 / 64 * np.array(before["information"]) + np.outer(share, share) + np.eye(4) / 64
        move = np.linalg.solve(information, share) * (ratio - share @ before["factors"])
        assert np.allclose(model.state()["information"], information, rtol=1e-12)
        assert np.allclose(model.factors, before["factors"] + move, rtol=1e-12)


def test_a_bare_form_can_be_corrected_too() -> None:
    profile: Profile = load_profile("v100x2-qwen2.5-7b")
    load = StepLoad.of([(100, 0)], [50] * 3)
    assert Recalibrated(profile.latency).step_s(load) == pytest.approx(profile.latency.step_s(load))
