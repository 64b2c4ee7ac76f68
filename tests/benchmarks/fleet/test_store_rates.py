"""Rates of the store: a small run measures each database, and the published table follows from its runs."""

import itertools
from collections.abc import Callable

import pytest

from benchmarks.fleet.store_rates import DATABASES, OPERATIONS, table
from benchmarks.publish import RESULTS, read_json

pytestmark = pytest.mark.slow


def test_a_small_run_measures_each_operation_on_each_database(printed: Callable[..., str]) -> None:
    lines = printed("fleet.store_rates", "--quick").splitlines()[1:]
    for line, (database, operation) in zip(lines, itertools.product(DATABASES, OPERATIONS), strict=True):
        assert line.startswith(database) and f" {operation} " in line


def test_the_table_follows_from_the_runs() -> None:
    published = read_json(RESULTS / "fleet_store_rates.json.gz")
    assert table(published["runs"]).splitlines() == published["table"]
