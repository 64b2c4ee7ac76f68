"""What planning costs a step in virtual time: a line in the requests that run and wait, for each policy.

The shipped table was measured once, so that a simulation gives the same bytes on every machine. It holds thread CPU
time of EngineCore, the thread that plans. A fresh plan costs its policy's ``plan``: rows gathered, the plan made,
checked and carried out. Every step of a policy that plans costs ``step``: a plan carried on, and events booked; with
the option ``step_budget=true`` it costs ``step_budget`` besides. Stock, and fcfs without that option, plan nothing and
pay nothing. vLLM's own share of a step is not in the table; it is
in a profile's ``engine_overhead_ms``.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sloserve.core.files.model import read_yaml_model
from sloserve.estimator.data_files import data_folders

_FILE = "planning_cost.yaml"
_US = 1e-6
_STEP_BUDGET = "step_budget="
_LIMITS = tuple(_STEP_BUDGET + value for value in ("true", "1", "yes"))

NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class _CostSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class CostLine(_CostSection):
    """Cost in µs: ``base_us``, plus ``running_us`` for each running and ``waiting_us`` for each waiting request."""

    base_us: NotNegative = 0.0
    """µs whatever the number of requests"""
    running_us: NotNegative = 0.0
    """µs for each running request"""
    waiting_us: NotNegative = 0.0
    """µs for each waiting request"""
    cell_us: NotNegative = 0.0
    """µs for each cell of a solver's tables, where the policy fills tables"""

    def seconds(self, running: int, waiting: int, cells: int = 0) -> float:
        us = self.base_us + self.running_us * running + self.waiting_us * waiting + self.cell_us * cells
        return us * _US

    def plus(self, other: "CostLine") -> "CostLine":
        return CostLine(
            base_us=self.base_us + other.base_us,
            running_us=self.running_us + other.running_us,
            waiting_us=self.waiting_us + other.waiting_us,
            cell_us=self.cell_us + other.cell_us,
        )

    def times(self, factor: float) -> "CostLine":
        return CostLine(
            base_us=self.base_us * factor,
            running_us=self.running_us * factor,
            waiting_us=self.waiting_us * factor,
            cell_us=self.cell_us * factor,
        )


class GroupLine(_CostSection):
    """Cost in µs of a plan of a fleet: ``base_us``, plus ``group_us`` for each request group."""

    base_us: NotNegative = 0.0
    """µs whatever the number of groups"""
    group_us: NotNegative = 0.0
    """µs for each group"""

    def seconds(self, groups: int) -> float:
        return (self.base_us + self.group_us * groups) * _US


FREE = CostLine()


class PlanningCost(_CostSection):
    """The planning cost of one policy.

    Args:
        plan: Cost of a fresh plan.
        step: Cost that every step adds.
    """

    plan: CostLine = FREE
    step: CostLine = FREE


class PlanningCosts(_CostSection):
    """The table. A policy is looked up with its options first, then by its name, and is else a third party's."""

    hardware: Text
    """where it was measured"""
    source: Text
    """how it was measured, and on what"""
    step: CostLine = FREE
    """cost of each step of a policy that plans, whether with a fresh plan or not"""
    step_budget: CostLine = FREE
    """further cost of each step of a policy that limits steps"""
    default: CostLine = FREE
    """cost of a fresh plan of a policy that has no row"""
    policies: Mapping[str, CostLine] = {}
    """cost of a fresh plan, by policy, with or without options"""
    fleet: GroupLine = GroupLine()
    """cost of a plan of a fleet's virtual queues, by the process that plans"""

    def of(self, policy: str) -> PlanningCost:
        """Return the cost of ``policy``, written as for ``--policy``."""
        name, *options = policy.split(":")
        plain = ":".join([name, *(option for option in options if not option.startswith(_STEP_BUDGET))])
        limits = any(option.lower() in _LIMITS for option in options)
        return PlanningCost(
            plan=self.policies.get(plain) or self.policies.get(name) or self.default,
            step=self.step.plus(self.step_budget) if limits else self.step,
        )

    def times(self, factor: float) -> "PlanningCosts":
        """Return the table of a machine that plans ``factor`` times as slowly; 0 makes plans free."""
        return PlanningCosts(
            hardware=self.hardware,
            source=self.source,
            step=self.step.times(factor),
            step_budget=self.step_budget.times(factor),
            default=self.default.times(factor),
            policies={policy: line.times(factor) for policy, line in self.policies.items()},
            fleet=GroupLine(base_us=self.fleet.base_us * factor, group_us=self.fleet.group_us * factor),
        )


NO_PLANNING_COST = PlanningCosts(hardware="any", source="planning is not charged")


def constant_cost(plan_us: float) -> PlanningCosts:
    """Return a table in which every plan of every policy costs ``plan_us`` µs, and a step without a plan nothing."""
    return PlanningCosts(hardware="any", source="a constant", default=CostLine(base_us=plan_us))


@cache
def planning_costs() -> PlanningCosts:
    """Return the shipped table, with rows of further policies from the packages that add some.

    Raises: ConfigError where the file of such a package is not such a table.
    """
    files = [folder / _FILE for folder in data_folders()]
    own, *others = (read_yaml_model(PlanningCosts, str(f), f.read_text(encoding="utf-8")) for f in files if f.is_file())
    policies = {name: line for table in reversed(others) for name, line in table.policies.items()}
    return own.model_copy(update={"policies": policies | dict(own.policies)})
