"""Members of a fleet that have different versions of its file: one of them has a model that the others lack."""

from pathlib import Path

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.spans import Phase
from sloserve.fleet.contract.plan_in_force import PlanInForce, plan_of
from sloserve.fleet.contract.reports import AgentReport, Demand, GatewayReport, InstanceReport, to_json
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.planning.planning_task import Planning
from sloserve.fleet.store.records import DurableRequest
from sloserve.fleet.store.store import Store as OpenStore
from sloserve.scheduler.virtual_queues.contract import ModelState
from tests.fleet.store.databases import sqlite

BEFORE = """
models:
  chat: {profile: h100-llama3-8b}
hosts:
  a: {device: h100, devices: 1, host_memory_gib: 64}
"""
AFTER = BEFORE.replace("models:\n", "models:\n  code: {profile: h100-llama3-8b}\n")
PLANNERS = ("qlm", "on-demand", "collate:max_wait_s=1", "edf", "sa")


def planned_in(opened: OpenStore, text: str, planner: str, *models: str, active: str) -> PlanInForce:
    """Return the plan by a version of the file, while gateway, lines and agent have these models."""
    states = {model: ModelState.ACTIVE if model == active else ModelState.WARM for model in models}
    one = InstanceReport("a/0", "h100", Phase.SERVING, states, 100.0)
    gone = InstanceReport("b/0", "h100", Phase.SERVING, {"gone": ModelState.ACTIVE}, 100.0)
    opened.members.beat("agent a", to_json(AgentReport("a", "unix:a", (one, gone))))
    demands = tuple(
        Demand(model, slo_class, held=3, prompt_tokens=30.0, output_tokens=30.0, target_s=2.0, oldest_s=1.0)
        for model in ("code", "chat")
        for slo_class in ("interactive", "gold")
    )
    opened.members.beat("gateway", to_json(GatewayReport(demands)))
    opened.requests.accept(
        [DurableRequest(model, "t", model, "batch", n, b"{}", 9, 9.0, 60.0) for n, model in enumerate(("code", "chat"))]
    )
    fleet = parse_fleet(f"{text}planner: {planner}\n")
    plan = Planning(fleet, opened, "one", ManualClock()).step()
    assert plan is not None
    stored = opened.members.plan()
    assert stored is not None and plan_of(stored.plan) == plan
    return plan


def planned(folder: Path, text: str, planner: str, *models: str, active: str) -> PlanInForce:
    with sqlite(folder) as store:
        return planned_in(OpenStore(store.open()), text, planner, *models, active=active)


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_planner_plans_for_what_it_knows_while_others_have_a_model_more(tmp_path: Path, planner: str) -> None:
    plan = planned(tmp_path, BEFORE, planner, "chat", "code", active="code")
    assert "chat" in {group.model for group in plan.queues["a/0"]}


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_planner_waits_with_a_model_that_agents_do_not_have_yet(tmp_path: Path, planner: str) -> None:
    plan = planned(tmp_path, AFTER, planner, "chat", active="chat")
    assert {group.model for group in plan.queues["a/0"]} == {"chat"}
