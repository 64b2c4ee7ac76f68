"""The published tables of what QLM's virtual queues gain follow from the published runs."""

from importlib import import_module

import pytest

from benchmarks.publish import RESULTS
from sloserve.report.runs_csv import read_runs


@pytest.mark.slow
def test_the_tables_follow_from_the_runs() -> None:
    sections = import_module("benchmarks.fleet.fleet_qlm").SECTIONS
    table = import_module("benchmarks.fleet.fleet_tables").table
    folders = sorted(RESULTS.glob("fleet-qlm-*"))
    assert len(folders) > 5
    for folder in folders:
        name = folder.name.removeprefix("fleet-qlm-")
        section = sections[name]
        rows, axis = read_runs(folder / "runs.csv"), section.cells[0].axis
        made = table(section.question, axis, rows, section.shows, ladder=bool(section.rates))
        assert made == (folder / "table.txt").read_text(), name
