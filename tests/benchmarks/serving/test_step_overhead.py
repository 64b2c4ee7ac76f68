"""The benchmark of a step's cost, once and small: its parts are there, and a reused plan costs no plan."""

import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.vllm


def test_quick(printed: Callable[..., str]) -> None:
    lines = printed("serving.step_overhead", "--quick", "--policies", "fcfs", "edf").splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    found = {(row["policy"], row["plan"]): row for row in rows}
    assert found.keys() == {("fcfs", "reused"), ("edf", "reused"), ("edf", "fresh")}
    for (policy, plan), row in found.items():
        assert row["steps"] >= 50 and row["pace_us_median"] > 0.0
        assert (row["plan_us_median"] > 0.0) == (plan == "fresh")
        assert (row["carry_out_us_median"] > 0.0) == (policy == "edf")
        assert row["booking_us_median"] + row["pace_us_median"] <= row["adapter_us_median"] * 1.2
