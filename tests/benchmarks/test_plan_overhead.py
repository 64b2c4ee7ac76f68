"""The benchmark of plans, once and small: a plan is a part of planning, which is a part of schedule()."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from sloserve.estimator.planning_cost import PlanningCosts
from sloserve.files.model import read_yaml_model

pytestmark = pytest.mark.vllm

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "plan_overhead.py"


def test_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What it prints is a table that the simulator can read, and no plan is free."""
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), "--quick", "--table"])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    costs = read_yaml_model(PlanningCosts, "printed", capsys.readouterr().out)
    assert set(costs.policies) == {"edf", "sjf"}
    for policy in costs.policies:
        assert costs.of(policy).plan.seconds(50, 50) > costs.step.seconds(50, 50) > 0.0


def test_quick(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), "--quick"])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert {row["policy"] for row in rows} >= {"stock", "andes", "econo"}
    for row in rows:
        assert row["steps"] > 50
        if row["policy"] != "stock":
            assert 0.0 < row["plan_us_median"] < row["planning_us_median"] < row["schedule_us_median"]
