"""The benchmark of plans, once and small: a plan is a part of planning, which is a part of schedule()."""

import json
from collections.abc import Callable

import pytest

from sloserve.estimator.planning_cost import PlanningCosts
from sloserve.files.model import read_yaml_model

pytestmark = pytest.mark.vllm


def test_table(printed: Callable[..., str]) -> None:
    """What it prints is a table that the simulator can read, and no plan is free."""
    costs = read_yaml_model(PlanningCosts, "printed", printed("serving.plan_overhead", "--quick", "--table"))
    assert set(costs.policies) == {"edf", "sjf"}
    for policy in costs.policies:
        assert costs.of(policy).plan.seconds(50, 50) > costs.step.seconds(50, 50) > 0.0


def test_quick(printed: Callable[..., str]) -> None:
    lines = printed("serving.plan_overhead", "--quick").splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    assert {row["policy"] for row in rows} >= {"stock", "andes", "econo"}
    for row in rows:
        assert row["steps"] > 50
        if row["policy"] != "stock":
            assert 0.0 < row["plan_us_median"] < row["planning_us_median"] < row["schedule_us_median"]
