"""The published tables of step sizes and of the step budget follow from the runs beside them."""

import csv
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


@pytest.mark.parametrize(("name", "module"), [("step-sizes", "step_sizes"), ("step-budget", "step_budget_gain")])
def test_the_table_follows_from_the_runs(name: str, module: str) -> None:
    table: Callable[[list[dict[str, Any]]], str] = import_module(f"benchmarks.policies.{module}").table
    with (RESULTS / name / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 100 and table(rows) == (RESULTS / name / "table.txt").read_text()
