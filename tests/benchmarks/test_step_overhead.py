"""The benchmark of a step's cost, once and small: its parts are there, and a reused plan costs no plan."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "step_overhead.py"


def test_quick(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), "--quick", "--policies", "fcfs", "edf"])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    found = {(row["policy"], row["plan"]): row for row in rows}
    assert found.keys() == {("fcfs", "reused"), ("edf", "reused"), ("edf", "fresh")}
    for (policy, plan), row in found.items():
        assert row["steps"] >= 100 and row["pace_us_median"] > 0.0
        assert (row["plan_us_median"] > 0.0) == (plan == "fresh")
        assert (row["carry_out_us_median"] > 0.0) == (policy == "edf")
        assert row["booking_us_median"] + row["pace_us_median"] <= row["adapter_us_median"] * 1.2
