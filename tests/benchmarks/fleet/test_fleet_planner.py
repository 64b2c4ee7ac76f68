"""The benchmark of the fleet's planner, once and small: where the program proves its optimum, the search has it too."""

import json
from collections.abc import Callable

import pytest


@pytest.mark.slow
def test_quick(printed: Callable[..., str]) -> None:
    *exact, queue = [json.loads(line) for line in printed("fleet.fleet_planner", "--quick").splitlines()]
    # Two fleets whose deadlines bind, and two with slack.
    assert len(exact) == 4 and all(row["closed"] and abs(row["over_s"]) < 0.01 for row in exact)
    assert queue["requests"] == 1000 and queue["groups"] > 40
