"""The comparison of a trained policy with greedy: when it gives up a policy, and when not."""

import numpy as np
import pytest

from sloserve.fleet.router.decision import Arm
from sloserve.fleet.router.guard import FEWEST_CYCLES, PART_REQUESTS, TRAINED_PARTS, PolicyGuard, half_width

LIMIT_S = 1.0
CYCLE = (TRAINED_PARTS + 1) * PART_REQUESTS
"""Requests of one cycle at 4 requests in the time that a request may take."""


def played(trained: float, cycles: int, seed: int = 0, noise: float = 0.2) -> tuple[PolicyGuard, list[Arm]]:
    """A guard after so many cycles in which greedy earns 0.8 and the trained policy ``trained``, and who decided."""
    guard, rng, arms = PolicyGuard(), np.random.default_rng(seed), []
    for i in range(cycles * CYCLE):
        trial = guard.arrived(i * 0.25, LIMIT_S)
        arms.append(trial.arm)
        guard.ended(trial, {Arm.TRAINED: trained, Arm.GREEDY: 0.8}[trial.arm] + noise * float(rng.standard_normal()))
    return guard, arms


def test_an_eighth_of_the_requests_is_greedys_and_the_first_of_a_phase_do_not_count() -> None:
    guard, arms = played(0.8, 4)
    assert arms.count(Arm.GREEDY) == 4 * PART_REQUESTS
    assert arms[: TRAINED_PARTS * PART_REQUESTS] == [Arm.TRAINED] * TRAINED_PARTS * PART_REQUESTS
    assert not guard.arrived(4 * CYCLE * 0.25, LIMIT_S).counts  # the phase has just begun
    assert guard.arrived(4 * CYCLE * 0.25 + LIMIT_S, LIMIT_S).counts


def test_a_worse_policy_is_given_up_and_stays_given_up() -> None:
    guard, arms = played(0.6, 20)
    assert guard.has_lost and guard.mean < -0.1 and guard.cycles <= FEWEST_CYCLES + 4
    assert set(arms[-CYCLE:]) == {Arm.GREEDY}
    assert guard.mean + guard.half < 0.0


@pytest.mark.slow
def test_a_better_or_equal_policy_is_kept() -> None:
    assert not any(played(quality, 60, seed)[0].has_lost for quality in (0.8, 0.85) for seed in range(8))


def test_the_interval_holds_at_all_times() -> None:
    """Of 400 policies that equal greedy at most 1 % leave the interval within 256 cycles, looked at after each."""
    means = np.cumsum(np.random.default_rng(0).standard_normal((400, 256)), axis=1) / np.arange(1, 257)
    halves = np.array([half_width(n, 1.0) for n in range(1, 257)])
    assert (np.abs(means) > halves).any(axis=1).mean() <= 0.01
    assert halves[23] < 0.85 and halves[255] < halves[23]


def after_rare_failures(greedy: float, trained: float, cycles: int, seed: int) -> PolicyGuard:
    """A guard after requests that earn 1, but fail with these probabilities under each policy."""
    guard, rng = PolicyGuard(), np.random.default_rng(seed)
    for i in range(cycles * CYCLE):
        trial = guard.arrived(i * 0.25, LIMIT_S)
        guard.ended(trial, float(rng.random() >= {Arm.TRAINED: trained, Arm.GREEDY: greedy}[trial.arm]))
        if guard.has_lost:
            break
    return guard


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0.002, 0.01])
def test_rare_failures_do_not_roll_an_equal_policy_back(failing: float) -> None:
    """Greedy's few requests have no failure in most cycles, so that the first differences look sure and negative."""
    assert not any(after_rare_failures(failing, failing, 64, seed).has_lost for seed in range(20))


@pytest.mark.slow
def test_a_policy_that_fails_a_fifth_of_the_requests_more_is_given_up_soon() -> None:
    lost = [after_rare_failures(0.002, 0.202, 20, seed) for seed in range(10)]
    assert all(guard.has_lost for guard in lost) and max(guard.cycles for guard in lost) <= FEWEST_CYCLES + 4


def test_an_outcome_that_comes_too_late_or_without_a_phase_of_its_own_is_left_out() -> None:
    guard = PolicyGuard()
    old = guard.arrived(0.0, LIMIT_S)
    guard.ended(old, 1.0)  # the phase has just begun
    for i in range(3 * CYCLE):
        guard.arrived(i * 0.25, LIMIT_S)
    guard.ended(old, 1.0)
    assert guard.cycles == 0 and guard.half == float("inf")


def test_few_requests_make_a_phase_longer_not_the_comparison_weaker() -> None:
    guard = PolicyGuard()
    arms = [guard.arrived(i * 100.0, LIMIT_S).arm for i in range(CYCLE)]
    assert arms.count(Arm.GREEDY) == PART_REQUESTS
