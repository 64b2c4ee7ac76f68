"""The published tables of step sizes and of the step budget follow from the runs beside them."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from benchmarks.publish import RESULTS, RUNS, read_rows

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("name", "module"), [("step-sizes", "step_sizes"), ("step-budget", "step_budget_gain")])
def test_the_table_follows_from_the_runs(name: str, module: str) -> None:
    table: Callable[[list[dict[str, Any]]], str] = import_module(f"benchmarks.policies.{module}").table
    rows = read_rows(RESULTS / name / RUNS)
    assert len(rows) > 100 and table(rows) == (RESULTS / name / "table.txt").read_text()
