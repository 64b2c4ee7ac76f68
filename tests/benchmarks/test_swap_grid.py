"""The published table of what swapping is worth follows from the published runs."""

from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_table_follows_from_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    grid, folder = import_module("swap_grid"), BENCHMARKS / "results" / "swap-grid"
    assert grid.table_of(grid.read(folder / "runs.csv")) == (folder / "table.txt").read_text()
