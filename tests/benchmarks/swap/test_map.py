"""The published map of where swapping wins follows from the rule and the shipped profiles."""

from importlib import import_module

import pytest

from benchmarks.publish import RESULTS


@pytest.mark.slow
def test_the_table_follows_from_the_profiles() -> None:
    published = (RESULTS / "swap-map" / "table.txt").read_text()
    assert import_module("benchmarks.swap.map").table() == published, "python -m benchmarks.swap.map writes it anew"
