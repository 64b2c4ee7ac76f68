"""Service that tenants had in the other engines of a fleet: it counts as service here does, and decays as it does."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.tenants import MOST_REPORTED, MOST_TENANTS, TenantTable
from sloserve.engine.tenant_shares import TenantShares
from sloserve.estimator.step_time.profile import load_profile
from sloserve.lso.plan import Snapshot
from sloserve.sim.model.engine import ModelEngine
from tests.engine.test_tenant_shares import PACE, SETTINGS, A, B, burst, shares_of
from tests.snapshots import make_snapshot


def both_wait() -> Snapshot:
    return make_snapshot([{"account": A}, {"account": B}])


def levels(shares: TenantShares, snapshot: Snapshot, now_s: float) -> list[int]:
    shares.charge(snapshot, PACE, now_s)
    standing = shares.standing(snapshot.rows)
    assert standing is not None
    return [int(level) for level in standing.level[[A, B]]]


def test_service_elsewhere_counts_as_service_here() -> None:
    shares = shares_of()
    shares.set_elsewhere({"a": 20.0}, 0.0)
    assert levels(shares, both_wait(), 0.0) == [1, 0]
    shares.set_elsewhere({"b": 20.0}, 1.0)
    assert levels(shares, both_wait(), 1.0) == [0, 1], "what was set before no longer counts"
    shares.set_elsewhere({}, 2.0)
    assert levels(shares, both_wait(), 2.0) == [0, 0]


def test_figures_that_nobody_renews_decay_as_service_does() -> None:
    """a had 40 s here, b 30 s elsewhere 10 s later; both halve every 10 s, whether or not steps were planned."""
    shares = shares_of(half_life_s=10.0)
    rows = both_wait().rows
    shares.charge(both_wait(), PACE, 0.0)
    shares._of_tenants.service_s[A] = 40.0
    shares.set_elsewhere({"b": 30.0}, 10.0)
    assert shares.balances(rows, 10.0).service_s[[A, B]].tolist() == pytest.approx([20.0, 30.0])
    assert shares.balances(rows, 20.0).service_s[[A, B]].tolist() == pytest.approx([10.0, 15.0])
    assert shares.balances(rows, 20.0).debt_s.sum() == pytest.approx(0.0)
    assert levels(shares, both_wait(), 20.0) == [0, 1]
    assert levels(shares, both_wait(), 1000.0) == [0, 0]


def test_names_from_elsewhere_take_no_place_in_the_table_and_count_once_their_requests_come() -> None:
    shares = shares_of()
    shares.set_elsewhere({f"t{i}": 50.0 for i in range(3 * MOST_TENANTS)}, 0.0)
    assert len(shares.tenants) == 4 and len(shares._named_elsewhere_s) == MOST_TENANTS
    late = shares.tenants.account_of("t5")
    snapshot = make_snapshot([{"account": A}, {"account": late}])
    shares.charge(snapshot, PACE, 0.0)
    standing = shares.standing(snapshot.rows)
    assert standing is not None and standing.level[[A, late]].tolist() == [0, 1]


def test_a_name_beyond_a_full_table_counts_for_the_entry_that_such_tenants_share() -> None:
    shares = TenantShares(TenantTable({f"t{i}": 1.0 for i in range(MOST_TENANTS)}), 30.0)
    shares.set_elsewhere({"t1": 3.0, "beyond": 2.0, "": 1.0}, 0.0)
    found = shares.balances(make_snapshot([{"account": 0}, {"account": 2}]).rows, 0.0).service_s
    assert (found[0], found[2]) == (3.0, 3.0), "account 2 is of t1"


def test_the_report_has_the_tenants_with_most_service_by_name_until_now() -> None:
    shares = TenantShares(TenantTable({f"t{i}": 1.0 for i in range(100)}), half_life_s=10.0)
    assert shares.reported(5.0) == {}
    shares.charge(make_snapshot(), PACE, 0.0)
    shares._of_tenants.service_s[:] = np.arange(101.0)
    shares.set_elsewhere({"t3": 1e6}, 0.0)
    found = shares.reported(10.0)
    assert len(found) == MOST_REPORTED
    assert found["t99"] == 50.0 and found["t36"] == 18.5 and "t35" not in found
    shares._of_tenants.service_s[:] = [2.0, 0.0009, *[0.0] * 99]
    assert shares.reported(0.0) == {"": 2.0}


@given(
    figures=st.dictionaries(st.text(max_size=3), st.floats(0.0, 1e9), max_size=8),
    at_s=st.floats(-1e9, 1e9),
    now_s=st.floats(-1e9, 1e9),
)
def test_no_figure_or_time_makes_a_decision_fail(figures: dict[str, float], at_s: float, now_s: float) -> None:
    shares = shares_of(half_life_s=30.0)
    shares.charge(both_wait(), PACE, 0.0)
    shares.set_elsewhere(figures, at_s)
    assert set(levels(shares, both_wait(), now_s)) <= {0, 1, 2}
    assert np.isfinite(shares.balances(both_wait().rows, now_s).debt_s).all()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["auto", "edf"])
def test_with_nothing_elsewhere_every_decision_stays(policy: str) -> None:
    times: list[Any] = []
    for elsewhere in (None, {}, {"others": 99.0}):
        engine = ModelEngine(
            SETTINGS, load_profile("a100-llama3-70b-tp4"), {"sloserve": {"policy": policy, "tenant_shares": {}}}
        )
        if elsewhere is not None:
            engine.set_elsewhere(elsewhere, 0.0)
        times.append([one.token_times_s.tolist() for one in engine.run(burst()[:150]).requests])
    assert times[0] == times[1] == times[2]
