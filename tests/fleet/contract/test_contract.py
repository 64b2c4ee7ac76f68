"""Reports and plans come back from JSON as they went in; what another version wrote is passed over, not raised."""

import json

from sloserve.core.spans import Phase
from sloserve.fleet.contract import plan_in_force as plans
from sloserve.fleet.contract import reports
from sloserve.fleet.contract.plan_in_force import PlanInForce, PlannedGroup
from sloserve.fleet.contract.reports import AgentReport, Demand, GatewayReport, InstanceReport
from sloserve.scheduler.virtual_queues.contract import ModelState, RunningSums

AGENT = AgentReport(
    "node-a",
    "unix:run/node-a.sock",
    (
        InstanceReport(
            "node-a/0",
            "h100",
            Phase.SERVING,
            {"chat": ModelState.ACTIVE, "code": ModelState.WARM},
            active_for_s=3.5,
            running=RunningSums(2, 10.0, 20.0, 30.0, 40.0, 25.0),
            room=6,
            cached={"a1": 16},
            tasks={"00000000000000a1": "0,1.000,1.000,,0"},
            service_s={"acme": 2.5, "": 0.25},
        ),
    ),
    (3, 7),
)
GATEWAY = GatewayReport((Demand("chat", "interactive", held=2, first_due_in_s=1.5, rate_per_s=0.5),))
PLAN = PlanInForce(
    100.0,
    {
        "node-a/0": (PlannedGroup(4, "code", "batch"), PlannedGroup(-1, "chat", "interactive", 0.5)),
        "node-a/1": (PlannedGroup(-1, "chat", "interactive", 0.5),),
    },
    instances_needed=3,
)


def through_json(value):
    return json.loads(json.dumps(value))


def test_reports_come_back_from_json():
    assert reports.agent_report(through_json(reports.to_json(AGENT))) == AGENT
    assert reports.gateway_report(through_json(reports.to_json(GATEWAY))) == GATEWAY


def test_a_report_of_another_kind_or_version_is_passed_over():
    state = reports.to_json(AGENT)
    assert reports.gateway_report(state) is None
    assert reports.agent_report({**state, "instances": "of another form"}) is None
    assert reports.agent_report({**state, "news": 1}) == AGENT
    (instance,) = state["instances"]
    older = {name: value for name, value in instance.items() if name != "service_s"}
    read = reports.agent_report({**state, "instances": [older]})
    assert read is not None and read.instances[0].service_s == {}


def test_a_plan_comes_back_from_json_and_says_where_a_model_is_served():
    assert plans.plan_of(through_json(plans.to_json(PLAN))) == PLAN
    assert PLAN.places_by_group()["chat", "interactive"] == {"node-a/1": 0, "node-a/0": 1}
    assert plans.plan_of({"queues": []}) is None
