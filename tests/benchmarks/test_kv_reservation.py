"""The benchmark of the KV reservation, once and small: changes touch a request's own steps, hosts find guests."""

import json
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kv_reservation.py"


def test_quick(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), "--quick"])
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    put = [row for row in rows if row.get("operation") == "put, one"]
    assert {row["live"] for row in put} == {10, 40} and all(1 <= row["steps"] <= 4000 for row in put)
    assert [row["guests"] > 0 for row in rows if "guests" in row] == [True, True]
