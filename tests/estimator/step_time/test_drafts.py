"""Step times under speculative decoding: known for any number of drafts, with and without a profile."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sloserve.estimator.step_time.latency import Bilinear, DistServe, StepLoad
from sloserve.estimator.step_time.online import OnlineLatency
from sloserve.estimator.step_time.profile import Profile, load_profile, profile_names
from sloserve.estimator.step_time.recalibrate import Recalibrated

PROFILE = load_profile("h100-llama3-8b")
ROUND_SHARE = 0.05
"""Time of one round of drafting, as a share of the smallest step: about one layer and the head of an 8B model."""

Truth = Callable[[StepLoad], float]


def by_share(load: StepLoad) -> float:
    """Return the time of an engine whose drafts cost a fifth of its decodes, however many they are."""
    undrafted = replace(load, draft_tokens=0)
    extra_s = 0.2 * PROFILE.step_s(replace(load.decodes, draft_tokens=0)) if load.draft_tokens else 0.0
    return PROFILE.step_s(undrafted) + extra_s


def by_positions(load: StepLoad) -> float:
    """Return the time of an engine that computes every position, and drafts in rounds."""
    rounds = (load.draft_tokens or 0) / max(load.decode_seqs, 1)
    return PROFILE.step_s(load) + rounds * ROUND_SHARE * PROFILE.step_s(StepLoad(0, 0, 1, 1))


def step(rng: np.random.Generator, drafts: int) -> StepLoad:
    """Return a step of 4 to 128 decodes with ``drafts`` each, a third of them beside a prompt."""
    contexts = rng.integers(200, 3000, int(rng.integers(4, 129)))
    prompt = int(rng.integers(50, 1500)) if rng.random() < 0.3 else 0
    return StepLoad.of([(prompt, 0)] if prompt else [], contexts.tolist(), drafts * contexts.size)


def fed(latency: OnlineLatency, truth: Truth, drafts: Callable[[np.random.Generator], int]) -> OnlineLatency:
    rng = np.random.default_rng(1)
    for _ in range(1500):
        load = step(rng, drafts(rng))
        latency.observe(load, truth(load) * float(rng.normal(1.0, 0.02)))
    return latency


@pytest.mark.slow
@pytest.mark.parametrize("truth", [by_share, by_positions])
@pytest.mark.parametrize("profile", [None, PROFILE])
@pytest.mark.parametrize("drafts", range(8))
def test_decodes_with_drafts_are_known_to_three_percent(drafts: int, profile: Profile | None, truth: Truth) -> None:
    """A question that leaves the drafts open means as many as the engine has had of late.

    Where nothing says from which position on a step takes longer, the steps just there are known to 5 %.
    """
    latency = fed(OnlineLatency(profile), truth, lambda _: drafts)
    assert latency.drafts == pytest.approx(drafts)
    errors = []
    for seqs in (8, 16, 32, 48, 64, 96, 128):
        asked = StepLoad(decode_seqs=seqs, decode_context_tokens=1500 * seqs)
        true_s = truth(replace(asked, draft_tokens=drafts * seqs))
        errors.append(abs(latency.step_s(asked) / true_s - 1.0))
    assert np.mean(errors) < 0.02 and max(errors) < (0.05 if profile is None else 0.03)
    assert latency.relative_error < 0.045


@pytest.mark.slow
@pytest.mark.parametrize("profile", [None, PROFILE])
def test_steps_of_any_number_of_drafts_are_told_apart(profile: Profile | None) -> None:
    latency = fed(OnlineLatency(profile), by_positions, lambda rng: int(rng.integers(0, 6)))
    for drafts in (0, 1, 3, 5):
        load = StepLoad.of((), [1500] * 64, drafts * 64)
        assert latency.step_s(load) == pytest.approx(by_positions(load), rel=0.07)


@pytest.mark.slow
@pytest.mark.parametrize("profile", [None, PROFILE])
def test_the_error_says_when_drafts_are_not_known(profile: Profile | None) -> None:
    """Steps whose drafts nobody counted, as many as the engine pleases, are not known to a few percent."""
    latency, rng = OnlineLatency(profile), np.random.default_rng(3)
    for _ in range(1500):
        load = step(rng, int(rng.integers(0, 8)))
        latency.observe(replace(load, draft_tokens=0), by_positions(load) * float(rng.normal(1.0, 0.02)))
    assert latency.relative_error > 0.08


@pytest.mark.parametrize("name", profile_names())
def test_a_chunk_beside_drafts_keeps_the_time(name: str) -> None:
    """The inverse stays within the time, and never rises with drafts, in each form."""
    profile = load_profile(name)
    for seqs in (1, 40, 128):
        before = 1 << 30
        for drafts in (0, 1, 3, 7):
            base = StepLoad.of((), [700] * seqs, drafts * seqs)
            limit_s = 2.0 * profile.step_s(StepLoad.of((), [700] * seqs))
            chunk = profile.prefill_within(limit_s, base, 300)
            assert chunk <= before
            before = chunk
            if chunk:
                mixed = StepLoad.of([(chunk, 300)], [700] * seqs, drafts * seqs)
                assert profile.step_s(mixed) <= limit_s


@pytest.mark.parametrize("name", profile_names())
def test_a_draft_costs_no_less_than_nothing_and_no_more_than_a_sequence(name: str) -> None:
    profile = load_profile(name)
    for seqs in (1, 16, 100):
        alone_s = profile.step_s(StepLoad.of((), [500] * seqs, 0))
        drafted_s = profile.step_s(StepLoad.of((), [500] * seqs, seqs))
        assert drafted_s >= alone_s
        if isinstance(profile.latency, (DistServe, Bilinear)):
            assert drafted_s <= alone_s + profile.step_s(StepLoad.of((), [500] * 2 * seqs)) + 1e-9


@pytest.mark.parametrize("name", profile_names())
def test_a_corrected_profile_keeps_the_time_beside_drafts(name: str) -> None:
    """Whatever the factors are, the promised chunk fits, and never rises with drafts."""
    profile, rng = load_profile(name), np.random.default_rng(7)
    for _ in range(60):
        latency = Recalibrated(profile)
        factors = rng.uniform(0.5, 2.0, 4).tolist()
        latency = Recalibrated.from_state({**latency.state(), "factors": factors}, profile)
        seqs, context = int(rng.integers(1, 250)), int(rng.integers(10, 1500))
        before, limit_s = 1 << 30, float(rng.uniform(1.0, 20.0)) * latency.step_s(StepLoad.of((), [context] * seqs))
        for drafts in (0, 1, 3, 7):
            base = StepLoad.of((), [context] * seqs, drafts * seqs)
            chunk = latency.prefill_within(limit_s, base, 100)
            assert chunk <= before
            before = chunk
            if chunk:
                mixed = StepLoad.of([(chunk, 100)], [context] * seqs, drafts * seqs)
                assert latency.step_s(mixed) <= limit_s * (1.0 + 1e-9)
