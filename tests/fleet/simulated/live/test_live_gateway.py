"""The simulated gateway tells the live fleet's objects what the live one tells them."""

import math
from dataclasses import replace

import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.spans import Phase
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.fleet.simulated.dispatcher import WaitingRequest
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.simulated_gateway import SimulatedGateway
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.scheduler.virtual_queues.contract import ModelState
from sloserve.sim.model.engine import ModelEngine
from tests.fleet.simulated.fleets import fleet_of, request

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


@pytest.mark.slow
def test_streams_without_a_token_come_back_from_an_instance_that_had_its_time_to_drain() -> None:
    """Their time in its engine, longer than the gateway holds a request, is no waiting.

    That of ``b`` is: a plan turns to it before the gateway gives it up.
    """
    fleet = fleet_of(drain_max_s=0.5, max_wait_s=0.5)
    fleet = replace(fleet, active={"n/0": "a"}, gateway=fleet.gateway.model_copy(update={"hold_max_s": 5.0}))
    streams = [request(f"a{i}", "a", 0.01 * i, prompt_tokens=8000) for i in range(32)]
    log = FleetRun(fleet, LiveFleet("qlm"), ModelEngine, policy="edf").run([*streams, request("b", "b", 0.5)])
    assert log.run.counters["evicted_on_switch"] > 0
    assert [r.request.request_id for r in log.run.requests if r.outcome is not Outcome.COMPLETED] == []
