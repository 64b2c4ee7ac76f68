"""The benchmark of the traces' cost, once and small: a step that preempts nobody waits for nothing."""

import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.vllm


def test_quick(printed: Callable[..., str]) -> None:
    rows = [json.loads(line) for line in printed("serving.trace_cost", "--quick").splitlines() if line.startswith("{")]
    assert [row["policy"] for row in rows] == ["fcfs", "edf", "auto"]
    assert rows[0]["held_up_us_mean"] == 0.0 < rows[0]["traced_us_median"]
