"""Rates at equal latency under one target for all: what the target is, and what is compared."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.policies.econo_rates import Rates, capacities
from sloserve.sim.report.latency_capacity import KEY


@pytest.mark.slow
def test_one_target_for_all_which_is_the_rule_of_the_row_for_the_mean_reply() -> None:
    built = Rates("econo-sharegpt", 50, {"stock": "1"}, 1).experiment("stock")
    assert built.slos is not None
    requests = built.requests(0, rps=1.0)
    (e2e_s,) = {request.slo.targets.e2e_s for request in requests}
    mean = sum(request.output_tokens for request in built.workload.requests(4000, 0, 1.0)) / 4000
    assert e2e_s is not None and abs(e2e_s - 2.0 * (0.0495 + 0.0238 * mean)) < 0.05


def test_a_system_may_begin_below_the_least_load_of_stock() -> None:
    def runs(policy: str, *points: tuple[float, float]) -> list[dict[str, Any]]:
        return [{"policy": policy, "seed": 0, "load": x, KEY: ms} for x, ms in points]

    stock = runs("stock", (0.5, 20.0), (1.0, 30.0), (1.5, 50.0))
    found = capacities(stock + runs("orca", (0.1, 20.0), (0.25, 30.0), (0.5, 70.0)))
    assert [(one.policy, one.threshold, one.load.value) for one in found] == [
        ("stock", 40.0, 1.25),
        ("orca", 40.0, 0.3125),
    ]


@pytest.mark.slow
def test_quick_compares_a_split_of_two_engines_with_policies_on_one(printed: Callable[..., str]) -> None:
    rows = [json.loads(line) for line in printed("policies.econo_rates", "--quick").splitlines()]
    assert [row["policy"] for row in rows] == ["stock", "econo", "distserve"]
    assert len({row["threshold"] for row in rows}) == 1
