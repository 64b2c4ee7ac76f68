"""Hosts that come and go in virtual time: a small day."""

from collections.abc import Callable

import pytest

from benchmarks.fleet.scaled_fleet import Hosts
from benchmarks.fleet.scaling import QUICK_S, REPLAYED_DOWN_S, REPLAYED_UP_S, START_S, rules_of, run

pytestmark = pytest.mark.slow


def test_hosts_come_and_go(printed: Callable[..., str]) -> None:
    *runs, _, want, fixed = printed("fleet.scaling", "--quick").splitlines()
    assert len(runs) == 2 and all("'lost': 0" in run for run in runs)
    assert want.split()[0] == "want" and float(want.split()[-3]) > 3.0, "more hosts than at the start"
    assert fixed.startswith("fixed 3") and fixed.split()[-3:] == ["3.0", f"{float(fixed.split()[-2]):.2f}", "100"]


def test_replays_scale_a_day() -> None:
    rule, *_ = rules_of(["counterfactual 0.9"])["counterfactual 0.9"]
    hosts = Hosts(1, START_S, REPLAYED_UP_S, REPLAYED_DOWN_S)
    found = run("counterfactual 0.9", rule, hosts, 4, 0, QUICK_S)
    assert found["lost"] == 0 and found["most_hosts"] > 1
