"""The benchmark of a tenant's burst on a real engine: what is sent, by whom, and what is counted."""

from pathlib import Path

import pytest
import yaml

from benchmarks.serving.tenant_burst import TENANTS, TIMES, Answered, Call, calls_of, keys_file, row_of, settings_file
from sloserve.scheduler.server_keys import read_server_keys
from sloserve.scheduler.settings import PluginSettings, plugin_settings


def test_one_tenant_sends_ten_times_as_much_in_the_second_span() -> None:
    calls = calls_of(rate=30.0, load=1.0, span_s=20.0, seed=1)
    assert calls == sorted(calls, key=lambda call: call.at_s) == calls_of(rate=30.0, load=1.0, span_s=20.0, seed=1)
    count = {
        (tenant, span): sum(call.tenant == tenant and span == int(call.at_s // 20.0) for call in calls)
        for tenant in TENANTS
        for span in range(3)
    }
    for (tenant, span), found in count.items():
        expected = 200.0 * (TIMES if (tenant, span) == (TENANTS[0], 1) else 1.0)
        assert found == pytest.approx(expected, rel=0.3), (tenant, span)


@pytest.mark.parametrize("shares", [True, False])
def test_shares_are_what_the_settings_say(tmp_path: Path, shares: bool) -> None:
    path, keys = keys_file(tmp_path)
    assert {one.name for one in read_server_keys(path, PluginSettings().classes)} == set(TENANTS) == set(keys)
    section = yaml.safe_load(settings_file(tmp_path, shares=shares).read_text())
    found = plugin_settings({"sloserve": {"policy": "auto", **section}}).tenant_shares
    assert (found is not None) is shares


def test_a_row_counts_each_tenant_and_outputs_unlike_stocks() -> None:
    calls = [Call(float(i), tenant, "a", 10) for i, tenant in enumerate([*TENANTS, TENANTS[1]])]
    found = [Answered(0.1, 1.0, "x"), Answered(0.1, 2.0, "x"), Answered(0.9, 3.0, "y"), Answered(0.1, 4.0, "x")]
    stock = [Answered(0.1, 1.0, "x")] * 4
    row = row_of(calls, found, stock, {"ttft": 0.5, "e2e": 3.5})
    assert row["in_time"] == {TENANTS[0]: 1.0, TENANTS[1]: 0.5, TENANTS[2]: 0.0}
    assert row["mean_e2e_s"] == {TENANTS[0]: 1.0, TENANTS[1]: 3.0, TENANTS[2]: 3.0}
    assert (row["outputs_unlike_stock"], row["tokens_per_s"]) == (1, round(40 / 7.0, 1))
