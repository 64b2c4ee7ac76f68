"""The benchmark of over- and under-provisioned KV, once and small."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "econo_provision.py"


def test_quick(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), "--quick"])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    rows = [json.loads(line.partition(": ")[2]) for line in lines if line.startswith("alpaca")]
    assert len(rows) == 6
    assert all(0 < row["within"] < 1 and row["over"] > 0 and row["under"] > 0 for row in rows)
    bare, padded = rows[:2]
    assert bare["over"] < padded["over"] and bare["under"] > padded["under"] and bare["within"] < padded["within"]
