"""The benchmark of the fleet's planner, once and small: where the program proves its optimum, the search has it too."""

import json
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "fleet_planner.py"


@pytest.mark.slow
def test_quick(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), "--quick"])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    *exact, queue = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    # Two fleets whose deadlines bind, and two with slack.
    assert len(exact) == 4 and all(row["closed"] and abs(row["over_s"]) < 0.01 for row in exact)
    assert queue["requests"] == 1000 and queue["groups"] > 40
