"""What a log of choices says about a policy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sloserve.fleet.router.choice_records import LoggedChoices
from sloserve.fleet.router.features import Schema
from sloserve.fleet.router.off_policy import estimate

INPUTS = len(Schema(2).names)


def logged(number: int, small: float, large: float, explore: float = 0.2, seed: int = 0) -> LoggedChoices:
    """Independent requests for which greedy takes ``large``; each model earns a reward with this probability."""
    rng = np.random.default_rng(seed)
    chosen = np.where(rng.random(number) < explore / 2, 0, 1)
    return LoggedChoices(
        run=np.zeros(number, np.int64),
        at_s=np.arange(number) * 100.0,  # so far apart that no choice matters to the next
        states=rng.random((number, INPUTS)),
        allowed=np.ones((number, 2), np.bool_),
        best=np.ones(number, np.int64),
        chosen=chosen,
        propensity=np.where(chosen == 0, explore / 2, 1.0 - explore / 2),
        fixed=np.zeros(number, np.bool_),
        reward=(rng.random(number) < np.where(chosen == 0, small, large)).astype(np.float64),
        limit_s=np.ones(number),
    )


def over_greedy(choices: LoggedChoices, values: Any, **more: Any) -> Any:
    values = np.broadcast_to(np.asarray(values, np.float64), (choices.run.size, 2)).copy()
    return estimate(choices, values, np.full(choices.run.size, 1e-9), centre=0.0, **more).over_greedy


@pytest.mark.parametrize("values", [(0.9, 0.6), (0.9, 0.0)])
def test_the_estimate_is_right_although_the_nets_values_are_wrong(values: tuple[float, float]) -> None:
    """The policy takes the small model, which is worth 0.2 more than greedy's choice."""
    found = [over_greedy(logged(4000, 0.9, 0.7, seed=seed), values) for seed in range(20)]
    assert np.mean([one.mean for one in found]) == pytest.approx(0.2, abs=0.01)
    assert sum(one.low <= 0.2 <= one.high for one in found) >= 17


def test_a_policy_that_is_greedy_differs_by_nothing() -> None:
    found = over_greedy(logged(400, 0.9, 0.7), (0.0, 1.0))
    assert (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_conversation_and_an_unknown_outcome_count_for_no_policy() -> None:
    choices = logged(400, 0.9, 0.7)
    held = replace(choices, fixed=np.ones(400, np.bool_), propensity=np.ones(400))
    assert over_greedy(held, (1.0, 0.0)).mean == 0.0
    unknown = replace(choices, reward=np.full(400, np.nan))
    unknown.reward[0] = 1.0
    assert over_greedy(unknown, (0.8, 0.5)).mean == pytest.approx(0.3, abs=0.02)
