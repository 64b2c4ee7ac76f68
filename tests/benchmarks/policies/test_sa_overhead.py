"""The benchmark of the annealer's time, once and small."""

import ast
from collections.abc import Callable

import pytest

from benchmarks.policies.sa_overhead import EXHAUSTIVE_UP_TO, LIMITS, POLICIES, SIZES, WAITING

pytestmark = pytest.mark.slow


def test_quick(printed: Callable[..., str]) -> None:
    rows = [ast.literal_eval(line) for line in printed("policies.sa_overhead", "--quick").splitlines()]
    searches, plans = [row for row in rows if "requests" in row], [row for row in rows if "policy" in row]
    assert len(searches) == len(SIZES) * len(LIMITS)
    assert [(row["policy"], row["waiting"]) for row in plans] == [(p, n) for p in POLICIES for n in WAITING]
    assert all(row["us_median"] > 0 for row in rows)
    for row in searches:
        assert row["goodput"] >= row["goodput_of_starts"] > 0
        if row["requests"] <= EXHAUSTIVE_UP_TO:
            assert 0.9 < row["goodput_of_exhaustive"] <= 1.0
