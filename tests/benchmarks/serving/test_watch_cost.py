"""The benchmark of the live feed's cost, once and small: without watchers a step pays next to nothing."""

import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.vllm


def test_quick(printed: Callable[..., str]) -> None:
    lines = printed("serving.watch_cost", "--quick", "--policies", "edf").splitlines()
    (row,) = [json.loads(line) for line in lines if line.startswith("{")]
    assert row["frames"] > 0 and row["no_watcher_us"] < row["watched_us"] < row["frame_us_median"]
    assert (row["tenants"], row["tasks"], row["history_rows"]) == (20, 20, 120), "the load has all its parts"
    assert 0 < row["change_bytes_median"] <= row["change_bytes_most"] < 64 * 1024
