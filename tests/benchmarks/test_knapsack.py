"""The benchmark of the knapsack, once and small: no pack gains more than the exact one."""

import json
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "knapsack.py"


def test_quick(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), "--quick"])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    modes = ("priced", "greedy", "greedy, stops")
    shares = [row[mode] for row in rows for mode in modes if "mean" in row[mode]]
    assert len(shares) == 12
    assert all(0.0 < share["worst"] <= share["mean"] <= 1.0 + 1e-9 for share in shares)
