"""The benchmark of the gap to the best order, on few instances: no order is better than the best."""

import itertools

import numpy as np
import pytest

pytestmark = pytest.mark.slow


def test_no_order_beats_the_best_and_auto_is_near_it() -> None:
    from benchmarks.policies import auto_gap

    for seats in auto_gap.SEATS:
        requests = auto_gap.drawn(np.random.default_rng(seats), 4, seats)
        best = auto_gap.best(requests, seats)
        values = [auto_gap.value(requests, order, seats) for order in itertools.permutations(range(4))]
        assert best == pytest.approx(max(values)) and min(values) < best
    rows = auto_gap.measured(9, 4)
    gaps = {policy: np.mean([row[policy] for row in rows]) for policy in auto_gap.POLICIES}
    auto = gaps.pop(auto_gap.POLICIES[-1])
    assert -1e-9 <= auto < min(gaps.values())
