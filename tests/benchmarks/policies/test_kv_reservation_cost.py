"""The benchmark of the KV reservation, once and small: changes touch a request's own steps, hosts find guests."""

import json
from collections.abc import Callable


def test_quick(printed: Callable[..., str]) -> None:
    rows = [json.loads(line) for line in printed("policies.kv_reservation_cost", "--quick").splitlines()]
    put = [row for row in rows if row.get("operation") == "put, one"]
    assert {row["live"] for row in put} == {10, 40} and all(1 <= row["steps"] <= 4000 for row in put)
    assert [row["guests"] > 0 for row in rows if "guests" in row] == [True, True]
