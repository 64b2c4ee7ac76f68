"""Annealing on the paper's other devices, once and small."""

import json
from collections.abc import Callable

import pytest


@pytest.mark.slow
def test_quick_has_each_policy_relative_to_stock(printed: Callable[..., str]) -> None:
    rows = [json.loads(line) for line in printed("policies.sa_devices", "--quick").splitlines()]
    assert [row["policy"] for row in rows] == ["stock", "sjf:length=oracle", "sa:length=oracle", "sa"]
    assert rows[0]["goodput_of_stock"] == [1.0] and rows[2]["goodput_of_stock"][0] >= 1.0
