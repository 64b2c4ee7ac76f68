"""Hosts that a cluster is asked for, and that are let go of, from the plan in the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.spans import Phase
from sloserve.fleet.contract import plan_in_force
from sloserve.fleet.contract.plan_in_force import PlanInForce
from sloserve.fleet.contract.reports import AgentReport, InstanceReport, to_json
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.planning.scaling import FULL
from sloserve.fleet.pool.keeper import AgentKeeper
from sloserve.fleet.pool.pool import Offer
from sloserve.fleet.run.scaler import STALE_S, Scaler
from sloserve.fleet.store.records import StoredPlan
from sloserve.fleet.store.store import open_store
from sloserve.scheduler.virtual_queues.contract import RunningSums
from tests import bounded
from tests.fleet.pool.fake_pool import FakePool

FILE = """
models: {a: {model: m, profile: h100-llama3-8b}}
pool:
  ray: auto
  scaling: {up_s: 0, down_s: 60}
  devices: {h100: {devices: 2, least: 1, most: 3}}
"""


class Scaled:
    def __init__(self, folder: Path) -> None:
        self.clock, self.said = ManualClock(), list[str]()
        self.store = open_store(f"sqlite:{folder}/store", self.clock)
        self.pool = FakePool(Offer("x", "h100", 2), Offer("y", "h100", 2), Offer("other", "cpu", 1))
        self.keeper = AgentKeeper(self.pool, self.said.append, clock=self.clock)
        fleet = parse_fleet(FILE, to_run=True)
        self.scaler = Scaler(fleet, self.store, self.pool, self.keeper, self.said.append, self.clock)
        bounded.run(self.keeper.look())
        self.version = 0
        for host, requests in (("x", 5), ("y", 2)):
            instance = InstanceReport(f"{host}/0", "h100", Phase.SERVING, {}, running=RunningSums(requests))
            self.store.members.beat(f"agent:{host}", to_json(AgentReport(host, "unix:x", (instance,))))

    def turn(self, pressure: float, after_s: float = 0.0, plan_is: float = 0.0) -> dict[str, int]:
        """What is asked for with four instances under this pressure. plan_is: so many seconds old."""
        self.clock.advance_to(self.clock.now_s() + after_s)
        term = self.store.members.lead("p", 3600.0)
        self.version += 1
        made_s = self.store.now_s() - plan_is
        plan = PlanInForce(made_s, {f"n/{k}": () for k in range(4)}, pressure={"batch": pressure})
        assert term and self.store.members.write_plan("p", StoredPlan(term, self.version, plan_in_force.to_json(plan)))
        bounded.run(self.scaler.turn())
        bounded.run(self.keeper.look())
        return self.pool.wanted


@pytest.fixture
def scaled(tmp_path: Path) -> Iterator[Scaled]:
    made = Scaled(tmp_path)
    yield made
    made.store.close()


def test_a_fleet_that_is_too_full_asks_for_hosts_within_its_bounds(scaled: Scaled) -> None:
    assert scaled.turn(FULL) == {"h100": 2}
    assert scaled.turn(1.4 * FULL, 1.0) == {"h100": 3} == scaled.turn(9.0, 1.0)


@pytest.mark.slow
def test_the_least_busy_host_goes_and_works_again_once_it_is_needed(scaled: Scaled) -> None:
    assert scaled.turn(FULL / 4) == {"h100": 2} == scaled.turn(FULL / 4, 59.0)
    assert scaled.turn(FULL / 4, 1.0) == {"h100": 1}
    assert list(scaled.pool.agents) == ["x", "other"] and "host y is not needed" in scaled.said[-1]
    scaled.turn(0.0, 100.0)
    assert list(scaled.pool.agents) == ["x", "other"], "least"
    assert scaled.turn(FULL, 1.0) == {"h100": 2} and "y" in scaled.pool.agents


def test_an_old_plan_moves_nothing(scaled: Scaled) -> None:
    assert scaled.turn(9.0, plan_is=STALE_S + 1.0) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("least: 1", "least: 4"), "pool.devices.h100.most: 3 is below least, 4"),
        (("  ray: auto\n", ""), "pool.devices.h100.most: needs ray and devices to ask for hosts"),
    ],
)
def test_bounds_that_cannot_be_kept_are_named(change: tuple[str, str], message: str) -> None:
    from sloserve.core.errors import ConfigError

    with pytest.raises(ConfigError, match=message):
        parse_fleet(FILE.replace(*change), to_run=True)
