"""The benchmark of over- and under-provisioned KV, once and small."""

import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.vllm


def test_quick(printed: Callable[..., str]) -> None:
    lines = printed("policies.econo_provision", "--quick").splitlines()
    rows = [json.loads(line.partition(": ")[2]) for line in lines if line.startswith("alpaca")]
    assert len(rows) == 6
    assert all(0 < row["within"] < 1 and row["over"] > 0 and row["under"] > 0 for row in rows)
    bare, padded = rows[:2]
    assert bare["over"] < padded["over"] and bare["under"] > padded["under"] and bare["within"] < padded["within"]
