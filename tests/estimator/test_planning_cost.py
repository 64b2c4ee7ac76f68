"""The table of planning costs: read as it is shipped, looked up by name and options, never less for more requests."""

import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.files.model import read_yaml_model
from sloserve.estimator.planning_cost import NO_PLANNING_COST, CostLine, PlanningCosts, constant_cost, planning_costs
from sloserve.scheduler.registry import policy_class, policy_names

TEXT = """
hardware: one core
source: made up
step: {base_us: 5}
step_budget: {base_us: 40}
default: {base_us: 30}
policies:
  edf: {base_us: 10, running_us: 0.5, waiting_us: 0.25}
  sa:batches=true: {base_us: 900}
"""


def test_a_policy_is_looked_up_with_its_options_then_by_name() -> None:
    costs = read_yaml_model(PlanningCosts, "t.yaml", TEXT)
    assert costs.of("edf").plan.seconds(100, 400) == pytest.approx(160e-6)
    assert costs.of("edf:preempt=true") == costs.of("edf")
    assert costs.of("sa:batches=true").plan.base_us == 900
    assert costs.of("sa").plan == costs.of("a-third-party's").plan == CostLine(base_us=30)
    assert costs.of("edf").step.seconds(1, 1) == pytest.approx(5e-6)


@pytest.mark.parametrize("value", ["true", "True", "1"])
def test_a_step_budget_costs_every_step_something(value: str) -> None:
    costs = read_yaml_model(PlanningCosts, "t.yaml", TEXT)
    limited = costs.of(f"sa:batches=true:step_budget={value}")
    assert limited.plan == costs.of("sa:batches=true").plan
    assert limited.step.seconds(1, 1) == pytest.approx(45e-6)
    assert costs.of("sa:step_budget=false").step == costs.of("sa").step


def test_multiples_of_the_table() -> None:
    costs = read_yaml_model(PlanningCosts, "t.yaml", TEXT)
    assert costs.times(2.0).of("edf").plan.seconds(100, 400) == pytest.approx(320e-6)
    for free in (costs.times(0.0), NO_PLANNING_COST):
        assert free.of("edf").plan.seconds(100, 400) == free.of("edf").step.seconds(9, 9) == 0.0
    assert constant_cost(7.0).of("edf").plan.seconds(100, 400) == 7e-6


def test_a_solver_costs_by_the_cells_of_its_tables() -> None:
    line = CostLine(base_us=10, cell_us=0.5)
    assert line.seconds(1, 1, 100) == pytest.approx(60e-6) and line.seconds(1, 1) == pytest.approx(10e-6)
    assert line.times(2.0).plus(line).seconds(0, 0, 10) == pytest.approx(45e-6)


def test_a_plan_of_a_fleet_costs_what_was_measured() -> None:
    costs = planning_costs()
    assert costs.fleet.seconds(10) == pytest.approx(9e-3, rel=0.02)
    assert costs.fleet.seconds(331) == pytest.approx(42e-3, rel=0.02)
    assert costs.times(2.0).fleet.seconds(10) == pytest.approx(2.0 * costs.fleet.seconds(10))


def test_a_table_with_a_negative_cost_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"t\.yaml:8:.*running_us.*-0\.5"):
        read_yaml_model(PlanningCosts, "t.yaml", TEXT.replace(" 0.5", " -0.5"))


def test_the_shipped_table_has_a_row_for_each_policy_that_plans() -> None:
    costs = planning_costs()
    ours = {name for name in policy_names() if policy_class(name).needs}
    assert ours <= set(costs.policies)
    for name in ours:
        line = costs.of(name).plan
        cost_s = [line.seconds(running, waiting) for running, waiting in ((1, 0), (100, 0), (100, 100), (256, 2000))]
        assert 0.0 < cost_s[0] <= cost_s[1] <= cost_s[2] <= cost_s[3] < 1.0, name
