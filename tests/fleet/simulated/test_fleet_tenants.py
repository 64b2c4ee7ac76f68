"""Shares over two instances in virtual time: one tenant has requests on both of them, the other on one alone."""

from dataclasses import replace

import numpy as np
import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.simulated.dispatcher import SetElsewhere
from sloserve.fleet.simulated.live.live_fleet import LiveFleet
from sloserve.fleet.simulated.live.live_options import Options
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.sim.model.engine import ModelEngine

FLEET = parse_fleet("""
models:
  x: {profile: h100-llama3-8b, flags: {max_num_seqs: 256}}
  y: {profile: h100-llama3-8b, flags: {max_num_seqs: 256}}
hosts: {p: {device: h100, devices: 1}, q: {device: h100, devices: 1}}
settings: {policy: auto, classes: {urgent: {rank: 0, ttft_ms: 2000}}, tenant_shares: {}}
""")


def requests(seed: int, span_s: float, **rates: float) -> list[WorkloadRequest]:
    """Return the requests of ``span_s`` seconds, by tenant and model in one word, such as ``ax``, and rate."""
    rng, found = np.random.default_rng(seed), []
    for name, rate in rates.items():
        for at_s in span_s * rng.random(int(rate * span_s)):
            prompt, output = (int(x) for x in rng.lognormal(np.log([900, 200]), 0.5))
            found.append((float(at_s), name, max(prompt, 1), max(output, 1)))
    slo = FLEET.settings.classes.slo("urgent", FLEET.settings.classes["urgent"].targets)
    return [
        WorkloadRequest(f"r{i}", at_s, prompt, output, slo, model=name[1], tenant=name[0])
        for i, (at_s, name, prompt, output) in enumerate(sorted(found))
    ]


def attainment(options: Options, workload: list[WorkloadRequest]) -> dict[str, float]:
    """Return the part of each tenant's requests that are in time."""
    log = FleetRun(FLEET, LiveFleet("qlm", options), ModelEngine, policy="auto").run(workload).run
    assert not log.counters.get("plan_errors") and log.tenant_service_s is not None
    of = {name: [bool(one.good) for one in log.requests if one.request.tenant == name] for name in "ab"}
    return {name: float(np.mean(met)) for name, met in of.items()}


@pytest.mark.slow
@pytest.mark.whole
def test_a_tenant_within_its_share_of_the_fleet_comes_first_where_it_has_more_than_the_other() -> None:
    """b sends more than a to the one instance that it uses, and a has most of the other one.

    By the shares of that instance alone b is beyond its own. ``benchmarks.fleet.tenant_shares`` has more of it.
    """
    workload = requests(0, 20.0, ax=18.0, ay=42.0, bx=24.0)
    each, shared = (attainment(Options(share=share), workload) for share in (False, True))
    assert shared["b"] > 0.95 > each["b"] + 0.3


def test_each_engine_is_given_what_the_other_gave() -> None:
    """Within some rounds of agents and store, whose ages the figures have."""
    fleet = LiveFleet("qlm")
    run = FleetRun(FLEET, fleet, ModelEngine, policy="auto")
    given: dict[str, dict[str, float]] = {}
    for instance in run.instances:
        assert instance.active is not None
        instance._engine.tenant_shares._of_tenants.grow(3)
        tenant = instance._engine.tenant_shares.tenants.number_of("ab"[instance.name == "q/0"])
        instance._engine.tenant_shares._of_tenants.service_s[tenant] = 8.0
    for now_s in np.arange(0.0, 5.0, 0.1):
        run._clock.now_s = float(now_s)
        for one in fleet.tick(run):
            if isinstance(one, SetElsewhere):
                given[one.instance] = dict(one.service_s)
    assert given["p/0"].keys() == {"b"} and given["q/0"].keys() == {"a"}
    for (had_s,) in (tuple(one.values()) for one in given.values()):
        assert 8.0 * 0.5 ** (5.0 / 30.0) <= had_s <= 8.0


def test_without_shares_agents_and_gateway_exchange_nothing() -> None:
    without = replace(FLEET, settings=FLEET.settings.model_copy(update={"tenant_shares": None}))
    fleet = LiveFleet("qlm")
    run = FleetRun(without, fleet, ModelEngine, policy="auto")
    assert "share" not in fleet._every_s and fleet._gateways[0]._held._shares is None
    assert not any(isinstance(one, SetElsewhere) for one in fleet.tick(run))
