"""The simulated gateway tells the live fleet's objects what the live one tells them."""

import math

from sloserve.core.spans import Phase
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.sim.fleet.dispatcher import WaitingRequest
from sloserve.sim.fleet.live.simulated_gateway import SimulatedGateway
from sloserve.virtual_queues.contract import ModelState
from tests.sim.fleet.fleets import fleet_of

HOLD_S = fleet_of().gateway.hold_max_s


def report(active: str) -> AgentReport:
    models = {name: ModelState.ACTIVE if name == active else ModelState.COLD for name in "ab"}
    return AgentReport("n", "", (InstanceReport("n/0", "h100", Phase.SERVING, models, room=4),))


def test_time_in_an_engine_that_sent_a_stream_back_does_not_count_as_waiting() -> None:
    gateway = SimulatedGateway(fleet_of(), lambda request, instance: None, prefixes=False)
    gateway.asked(report("a"), 0.0)
    stream = WaitingRequest("r", "a", 50, 0.0, math.inf, 0, until_first_token=True, slo_class="urgent")
    assert gateway.arrived(stream, 0.0) and not gateway.waits, "it is sent at once"
    back_s = HOLD_S + 10.0
    gateway.asked(report("b"), back_s)
    assert gateway.arrived(stream, back_s) and gateway.waits, "its model has left"
    assert list(gateway.let_go(back_s + HOLD_S - 1.0)) == []
    assert list(gateway.let_go(back_s + HOLD_S)) == ["r"]
