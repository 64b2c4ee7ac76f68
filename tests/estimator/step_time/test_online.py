"""What is known of an engine, with a profile or without: how soon it is right, and how far beyond its steps it goes."""

import json

import numpy as np
import pytest

from benchmarks.estimator.step_learning import noisy_steps
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.learned import Learned
from sloserve.estimator.step_time.online import OnlineLatency
from sloserve.estimator.step_time.profile import Profile, load_profile, profile_names

PROFILE = load_profile("h100-llama3-8b")


def fed(latency: OnlineLatency, truth: Profile, steps: int, seed: int = 0) -> OnlineLatency:
    """After ``steps`` steps of ``truth``, with noise of 10 % and a stall of five times the time in a hundred."""
    for load, duration_s in noisy_steps(truth, steps, seed):
        latency.observe(load, duration_s)
    return latency


def mean_error(latency: OnlineLatency, truth: Profile) -> float:
    probes = [load for load, _ in noisy_steps(truth, 100, seed=99)]
    return float(np.mean([abs(latency.step_s(load) / truth.step_s(load) - 1.0) for load in probes]))


@pytest.mark.parametrize("name", profile_names())
def test_a_hundred_noisy_steps_teach_any_engine(name: str) -> None:
    truth = load_profile(name)
    assert mean_error(fed(OnlineLatency(), truth, 128), truth) < 0.08


@pytest.mark.slow
def test_a_lasting_change_is_followed() -> None:
    latency = fed(OnlineLatency(), PROFILE, 256)
    slower = PROFILE.model_copy(update={"engine_overhead_ms": PROFILE.engine_overhead_ms + 8.0})
    assert mean_error(latency, slower) > 0.2
    assert mean_error(fed(latency, slower, 512, seed=1), slower) < 0.08


def test_one_stall_hardly_moves_it() -> None:
    latency = fed(OnlineLatency(), PROFILE, 200)
    last = [load for load, _ in noisy_steps(PROFILE, 200, 0)][-20:]
    before_s = [latency.step_s(load) for load in last]
    latency.observe(last[-1], 100.0)
    assert [latency.step_s(load) for load in last] == pytest.approx(before_s, rel=0.05)


@pytest.mark.parametrize("profile", [None, PROFILE])
def test_promises_widen_by_the_usual_error(profile: Profile | None) -> None:
    latency = fed(OnlineLatency(profile), PROFILE, 200)
    base = StepLoad.of((), [700] * 50)
    chunk = latency.prefill_within(0.04, base, 0)
    assert 0.05 < latency.relative_error < 0.2
    assert latency.step_s(StepLoad.of([(chunk, 0)], [700] * 50)) <= 0.04 / (1.0 + latency.relative_error)


def test_larger_steps_are_probed_by_at_most_twice_the_largest_seen() -> None:
    """An engine that is asked for the largest step it may take reaches any size within a dozen of steps."""
    latency, sizes = OnlineLatency(), []
    decodes = [700] * 20
    for _ in range(40):
        chunk = latency.prefill_within(1.0, StepLoad.of((), decodes), 0)
        load = StepLoad.of([(chunk, 0)] if chunk else [], decodes)
        latency.observe(load, PROFILE.step_s(load))
        sizes.append(chunk)
    assert 0 < sizes[0] <= 512 and max(sizes) > 8192
    assert all(after <= 2 * max(256, *sizes[: i + 1]) for i, after in enumerate(sizes[1:]))


def test_what_lies_beyond_the_decodes_seen_is_trusted_less() -> None:
    latency = fed(OnlineLatency(), PROFILE, 200)
    seqs = latency.coverage.decode_seqs
    without_error = latency.fit.prefill_within(0.2, StepLoad.of((), [50] * 4 * seqs), 0)
    assert latency.prefill_within(0.2, StepLoad.of((), [50] * 4 * seqs), 0) < without_error / (
        1.0 + 2.0 * latency.relative_error
    )


@pytest.mark.parametrize("profile", [None, PROFILE])
def test_its_state_is_plain_and_all_that_a_replay_needs(profile: Profile | None) -> None:
    latency = fed(OnlineLatency(profile), PROFILE, 50)
    again = OnlineLatency.from_state(json.loads(json.dumps(latency.state())), profile)
    assert fed(again, PROFILE, 50, seed=2).state() == fed(latency, PROFILE, 50, seed=2).state()


@pytest.mark.parametrize("duration_s", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_durations_teach_nothing(duration_s: float) -> None:
    fit = Learned()
    before = fit.state()
    fit.observe(StepLoad.of((), [100]), duration_s)
    assert fit.state() == before


@pytest.mark.parametrize("profile", [None, PROFILE])
@pytest.mark.parametrize("steps", [0, 50])
def test_an_absurd_duration_is_one_outlier(profile: Profile | None, steps: int) -> None:
    latency = fed(OnlineLatency(profile), PROFILE, steps)
    latency.observe(StepLoad.of((), [100]), 1e300)
    assert 0.0 < latency.relative_error <= 1.0
    assert mean_error(fed(latency, PROFILE, 128), PROFILE) < 0.1
