"""The published tables of batches beside interactive requests follow from the published runs."""

from importlib import import_module
from pathlib import Path

import pytest

from sloserve.report.runs_csv import read_runs

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("lines", ["chat", "long"])
def test_the_table_follows_from_the_runs(monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    folder = BENCHMARKS / "results" / f"fleet-colocation-{lines}"
    made = import_module("fleet_colocation").table(read_runs(folder / "runs.csv"))
    assert made == (folder / "table.txt").read_text()
