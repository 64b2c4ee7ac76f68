"""Noise of step times: of mean 1, the same for a step's number whoever asks, with a stall now and then."""

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.noise import STALL_FACTOR, StepNoise


def test_a_step_s_factor_depends_on_seed_and_number_alone() -> None:
    forward = StepNoise(3, 0.1)
    factors = [forward.factor(step) for step in range(3000)]
    later = StepNoise(3, 0.1)
    assert later.factor(2500) == factors[2500] and later.factor(0) == factors[0]
    assert StepNoise(4, 0.1).factor(0) != factors[0]


def test_factors_scatter_about_one_and_some_steps_stall() -> None:
    noise = StepNoise(0, 0.1)
    factors = np.array([noise.factor(step) for step in range(40_000)])
    stalled = factors > 0.6 * STALL_FACTOR
    assert 20 <= stalled.sum() <= 60
    assert factors[~stalled].mean() == pytest.approx(1.0, abs=0.003)
    assert factors[~stalled].std() == pytest.approx(0.1, abs=0.003)
    assert factors.min() > 0.0


def test_without_scatter_nothing_stalls() -> None:
    noise = StepNoise(0, 0.0)
    assert {noise.factor(step) for step in range(5000)} == {1.0}


@pytest.mark.parametrize("scatter", [-0.1, 1.5, float("nan")])
def test_a_scatter_that_makes_no_sense_is_refused(scatter: float) -> None:
    with pytest.raises(ConfigError, match=r"--step-noise: .* is not within 0\.\.1"):
        StepNoise(0, scatter)
