"""The benchmark of step times learnt on line, once and small."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "step_learning.py"


def test_quick(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), "--quick"])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    (engine,) = json.loads(capsys.readouterr().out).values()
    for case in ("no profile", "wrong profile"):
        assert engine[case]["32"]["mean_error_percent"] < engine[case]["0"]["mean_error_percent"]
    assert engine["right profile"]["0"]["mean_error_percent"] == 0.0
