"""The table of planning costs, measured once and small."""

from collections.abc import Callable

import pytest

from sloserve.core.files.model import read_yaml_model
from sloserve.estimator.planning_cost import PlanningCosts

pytestmark = pytest.mark.vllm


def test_table(printed: Callable[..., str]) -> None:
    """What it prints is a table that the simulator can read, and no plan is free."""
    costs = read_yaml_model(PlanningCosts, "printed", printed("serving.plan_overhead", "--quick"))
    assert set(costs.policies) == {"edf", "sjf"}
    for policy in costs.policies:
        assert costs.of(policy).plan.seconds(50, 50) > costs.step.seconds(50, 50) > 0.0
