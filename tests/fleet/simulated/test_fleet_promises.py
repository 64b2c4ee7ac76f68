"""Promises in a fleet in virtual time: two models on three instances, of which one serves now this model, now that."""

import numpy as np
import pytest

from sloserve.core.runlog import RequestLog
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.simulated.dispatchers.by_name import FleetRunName
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.sim.model.engine import ModelEngine
from sloserve.sim.workloads.multi_model import FleetWorkload, ModelDemand

FLEET = """
models:
  a: {{profile: h100-llama3-8b, flags: {{max_num_seqs: 64}}}}
  b: {{profile: h100-llama3-8b, flags: {{max_num_seqs: 64}}}}
hosts: {{n: {{device: h100, devices: 3, host_memory_gib: 300}}}}
settings:
  policy: {policy}
  classes: {{chat: {{rank: 0, ttft_ms: 1000, tpot_ms: 40{asks}}}, batch: {{rank: 1, e2e_ms: 300000}}}}
"""
ASKS = ", promise: 0.99, promise_fallback: true"


def chats(policy: str, asks: str, count: int, rps: float = 120.0, seed: int = 0) -> list[RequestLog]:
    """Return what became of the chats."""
    fleet = parse_fleet(FLEET.format(policy=policy, asks=asks))
    workload = FleetWorkload.parse("w-a:latency_share=0.8")
    models = [ModelDemand(name, 0.5, False, 8192) for name in fleet.models]
    made = workload.requests(count, seed, rps, models, fleet.stated_classes)
    run = FleetRun(fleet, FleetRunName.parse("qlm").make(seed), ModelEngine, policy=policy, seed=seed)
    log = run.run(made).run
    assert not log.counters.get("plan_errors")
    return [one for one in log.requests if one.request.slo.slo_class.name == "chat"]


@pytest.mark.slow
def test_without_a_wish_and_under_order_of_arrival_nothing_is_promised() -> None:
    assert not any(one.promised for one in chats("auto", "", 300))
    assert not any(one.promised for one in chats("fcfs", ASKS, 300))


@pytest.mark.whole
@pytest.mark.slow
def test_promises_of_an_overloaded_fleet_are_kept_and_more_is_in_time() -> None:
    """Each engine takes over what the gateway promised, and in the gateway it goes before what is overdue.

    Without that every twentieth promise was broken: the gateway sent overdue requests first, and an engine that had
    just got its model did not know enough to confirm.
    """
    best_effort, promised = chats("auto", "", 3000), chats("auto", ASKS, 3000)
    given = [one for one in promised if one.promised is not None]
    assert len(given) > 300
    assert sum(not one.good for one in given) <= 0.01 * len(given)
    in_time = [float(np.mean([bool(one.good) for one in of])) for of in (best_effort, promised)]
    assert in_time[1] > 1.5 * in_time[0]
