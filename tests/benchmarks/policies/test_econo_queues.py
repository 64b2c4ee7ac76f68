"""The benchmark of groups of equal length and of KV that waits, once and small."""

import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.slow


def test_quick(printed: Callable[..., str]) -> None:
    (row,) = map(json.loads, printed("policies.econo_queues", "--quick").splitlines())
    assert row["workload"] == "alpaca-poisson"
    assert 1 > row["groups"]["2"] > row["groups"]["4"] > row["groups"]["12"] > 0
    assert row["requests"]["4"] > row["groups"]["4"], "large groups hold more than their share of the requests"
    assert 0 < row["completing_steps"] < 1
