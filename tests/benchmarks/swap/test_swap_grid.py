"""The published table of what swapping is worth follows from the published runs."""

from importlib import import_module

import pytest

from benchmarks.publish import RESULTS, RUNS

pytestmark = pytest.mark.slow


def test_the_table_follows_from_the_runs() -> None:
    grid, folder = import_module("benchmarks.swap.swap_grid"), RESULTS / "swap-grid"
    assert grid.table_of(grid.read(folder / RUNS)) == (folder / "table.txt").read_text()
