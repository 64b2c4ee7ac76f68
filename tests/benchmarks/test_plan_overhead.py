"""The benchmark of plans, once and small: a plan is a part of planning, which is a part of schedule()."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "plan_overhead.py"


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
