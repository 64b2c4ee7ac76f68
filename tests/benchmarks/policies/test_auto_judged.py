"""What counts as dominated, on which cells `auto` is judged, and which load is the highest."""

import math

import pytest

from benchmarks.policies.auto_judged import DEEP, NUM_CELLS, SIGNS, cells, dominates
from benchmarks.policies.highest_load import Ladder

OURS = {"slo_attainment": 0.8, "qoe_mean": 0.9, "output_throughput": 1000.0, "normalized_latency_ms": 50.0}


def test_the_cells_are_those_with_targets_and_the_deep_ones_each_once() -> None:
    found = cells()
    assert len(set(found)) == len(found) == NUM_CELLS
    assert found[-len(DEEP) :] == DEEP
    assert all(cell.targets != "none" and float(cell.load) >= 1.0 for cell in found)


@pytest.mark.parametrize(
    ("rival", "expected"),
    [
        ([{}, {}, {}], False),  # a tie
        ([{"slo_attainment": 0.82}] * 3, True),
        ([{"normalized_latency_ms": 45.0}] * 3, True),  # less is better
        ([{"slo_attainment": 0.95}, {"slo_attainment": 0.8}, {"slo_attainment": 0.8}], False),  # within the interval
        ([{"slo_attainment": 0.9, "output_throughput": 999.0}] * 3, False),  # worse in one, by however little
        ([{"slo_attainment": 0.82, "qoe_mean": math.nan}] * 3, True),  # says nothing
    ],
)
def test_a_rival_dominates_where_it_is_better_beyond_the_interval_and_nowhere_worse(
    rival: list[dict[str, float]], expected: bool
) -> None:
    assert set(OURS) == set(SIGNS)
    assert dominates([OURS | one for one in rival], [OURS] * 3) is expected


@pytest.mark.parametrize(
    ("in_time", "expected"),
    [
        (range(0), -1),
        (range(40), 39),
        ([*range(40), 41], 41),  # one step that fails is stepped over
        ([*range(40), 43], 39),  # two in a row are the end
        (range(84), 83),
        ([*range(75), *range(76, 84)], 83),  # one that fails below what bisection finds
        ([*range(70), *range(74, 84)], 69),  # several: what lies above them is not kept up to there
    ],
)
def test_the_highest_load_is_the_last_before_two_steps_that_fail(
    monkeypatch: pytest.MonkeyPatch, in_time: range | list[int], expected: int
) -> None:
    """Nor does it lie above others that fail."""
    ladder = object.__new__(Ladder)
    monkeypatch.setattr(ladder, "late", lambda step: 0.0 if step in in_time else 0.5, raising=False)
    assert ladder.highest(0.01) == expected
