"""Tenants of a simulated fleet: what each setting sends, the check of engines' figures, and fair gateways."""

from collections.abc import Callable

import pytest

from benchmarks.baselines.tenants import LeastAttained
from benchmarks.fleet.fair_gateway import FairGateway
from benchmarks.fleet.tenant_shares import (
    PLANNER,
    ROWS,
    SETTINGS,
    SharesTogether,
    Stream,
    fleet_of,
    requests_of,
    table,
)
from sloserve.fleet.simulated.loop import FleetRun
from sloserve.sim.model.engine import ModelEngine

FEW: list[Stream] = [("t0", 0, 60.0, 0.0, 2.0), ("t1", 0, 4.0, 0.0, 2.0)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_model_of_a_setting_is_one_of_its_fleet(setting: str) -> None:
    streams_of, heavy_ones = SETTINGS[setting]
    models = {model for _, model, *_ in streams_of(4)}
    assert models == (set(range(4)) if setting == "flood" else {0})
    assert len({tenant for tenant, *_ in streams_of(4)}) > heavy_ones


def test_means_stand_in_the_order_of_the_runs() -> None:
    figures = {"others": 90.0, "first": 10.0, "tokens_per_s": 5.0, "refused": 0.0}
    runs = [
        {"setting": "flood", "instances": 2, "row": row, "seed": seed} | figures | {"others": 90.0 + seed}
        for seed in (0, 1)
        for row in ROWS
    ]
    head, *rows = table(runs)
    assert [row[2] for row in rows] == list(ROWS)
    assert all(row[head.index("others")] == "90.500" and row[-1] == "" for row in rows)


@pytest.mark.slow
def test_a_fair_gateway_serves_all_and_first_the_tenant_with_the_fewest_tokens() -> None:
    fleet = fleet_of(1, pinned=False, shares=False)
    fleet_run = FleetRun(fleet, FairGateway(LeastAttained), ModelEngine, policy=None)
    found = fleet_run.run(requests_of(FEW, 0, fleet)).run.requests
    assert all(one.token_times_s.size == one.request.output_tokens for one in found)
    waits_s = {
        tenant: max(one.token_times_s[0] - one.request.arrival_s for one in found if one.request.tenant == tenant)
        for tenant in ("t0", "t1")
    }
    assert waits_s["t1"] < 0.7 * waits_s["t0"]


@pytest.mark.slow
def test_figures_of_engines_are_off_by_less_than_the_bound() -> None:
    fleet = fleet_of(2, pinned=False, shares=True)
    together = SharesTogether(PLANNER)
    FleetRun(fleet, together, ModelEngine, policy="auto").run(requests_of([("t0", 0, 200.0, 0.0, 3.0)], 0, fleet))
    assert 0.0 < together.error_s < 4.0


@pytest.mark.slow
def test_quick(printed: Callable[..., str]) -> None:
    *_, stock, fair, shares = printed("fleet.tenant_shares", "--quick").splitlines()
    in_time = [float(line.split()[at]) for line, at in ((stock, 3), (fair, 4), (shares, 3))]
    assert stock.split()[2] == "stock" and in_time[2] > in_time[0] + 30.0 and in_time[1] > in_time[0]
