"""The benchmark of the knapsack, once and small: no pack gains more than the exact one."""

import json
from collections.abc import Callable


def test_quick(printed: Callable[..., str]) -> None:
    rows = [json.loads(line) for line in printed("policies.knapsack_gap", "--quick").splitlines()]
    modes = ("priced", "greedy", "greedy, stops")
    shares = [row[mode] for row in rows for mode in modes if "mean" in row[mode]]
    assert len(shares) == 12
    assert all(0.0 < share["worst"] <= share["mean"] <= 1.0 + 1e-9 for share in shares)
