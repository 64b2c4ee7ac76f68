"""The published tables of auto follow from the runs beside them, and the cells are those that the design gives."""

from importlib import import_module
from typing import Any

import pytest

from benchmarks.publish import RESULTS, RUNS, read_rows

pytestmark = pytest.mark.slow


@pytest.fixture
def cells() -> Any:
    return import_module("benchmarks.policies.auto_cells")


def test_the_cells_are_those_that_the_design_gives(cells: Any) -> None:
    assert dict(enumerate(cells.design())) == cells.read_cells()


@pytest.mark.parametrize(("folder", "module"), [("auto", "auto_report"), ("auto-parts", "auto_parts")])
def test_the_table_follows_from_the_runs(cells: Any, folder: str, module: str) -> None:
    made, results = import_module(f"benchmarks.policies.{module}"), RESULTS / folder
    rows = read_rows(results / RUNS)
    assert len(rows) > 30 and made.table(rows, cells.read_cells()) == (results / "table.txt").read_text()
