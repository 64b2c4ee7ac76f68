"""The published map of where swapping wins follows from the rule and the shipped profiles."""

from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_table_follows_from_the_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    published = (BENCHMARKS / "results" / "swap-map" / "table.txt").read_text()
    assert import_module("swap_map").table() == published, "python benchmarks/swap_map.py writes it anew"
