"""The published tables of batches beside interactive requests follow from the published runs."""

from importlib import import_module

import pytest

from benchmarks.publish import RESULTS, RUNS, read_runs

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("lines", ["chat", "long"])
def test_the_table_follows_from_the_runs(lines: str) -> None:
    folder = RESULTS / f"fleet-colocation-{lines}"
    made = import_module("benchmarks.fleet.colocation").table(read_runs(folder / RUNS))
    assert made == (folder / "table.txt").read_text()
