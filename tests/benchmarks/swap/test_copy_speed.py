"""The benchmark of copies of KV blocks, once and small."""

import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.slow


def test_quick(printed: Callable[..., str]) -> None:
    *cpu, gpu = [json.loads(line) for line in printed("swap.copy_speed", "--quick").splitlines()]
    assert [row["run_kib"] for row in cpu] == [4, 64] and all(row["out_share"] > 0 < row["in_share"] for row in cpu)
    rows = gpu["gpu"]
    assert rows == "not run: no NVIDIA GPU on this machine" or all(row["equal"] for row in rows)
