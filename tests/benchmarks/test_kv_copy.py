"""The benchmark of copies of KV blocks, once and small."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kv_copy.py"


def test_quick(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(BENCHMARK), "--quick"])
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    runpy.run_path(str(BENCHMARK), run_name="__main__")
    *cpu, gpu = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["run_kib"] for row in cpu] == [4, 64] and all(row["out_share"] > 0 < row["in_share"] for row in cpu)
    rows = gpu["gpu"]
    assert rows == "not run: no NVIDIA GPU on this machine" or all(row["equal"] for row in rows)
