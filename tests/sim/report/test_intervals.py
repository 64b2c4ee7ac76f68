"""The intervals that figures draw: of a mean over its seeds, of a difference seed by seed, none for too few seeds."""

import pytest

from sloserve.sim.report.figure_style import line_styles
from sloserve.sim.report.intervals import drawn_difference, drawn_mean, interval_note, reference_of
from sloserve.sim.report.statistics import Mean, mean_interval
from sloserve.sim.report.summary import Run

pytestmark = pytest.mark.slow  # matplotlib is loaded

SEEDS = {0: 10.0, 1: 20.0, 2: 60.0}
"""Stock's latency: seeds differ by far more than policies do."""


def runs_of(policy: str, values: dict[int, float | None]) -> list[Run]:
    return [{"policy": policy, "seed": seed, "value": value} for seed, value in values.items()]


def value(run: Run) -> float | None:
    found: float | None = run["value"]
    return found


RUNS = runs_of("stock", dict(SEEDS)) + runs_of("edf", {seed: of - 5.0 + seed for seed, of in SEEDS.items()})


def test_a_whisker_is_the_interval_of_the_value_itself() -> None:
    assert drawn_mean(RUNS, "stock", value) == mean_interval(list(SEEDS.values()))
    assert drawn_mean(RUNS, "edf", value) == mean_interval([5.0, 16.0, 57.0])
    same = runs_of("edf", dict.fromkeys(SEEDS, 1.0))  # all in time, whatever stock does
    assert drawn_mean(RUNS + same, "sjf", value) is None and drawn_mean(same, "edf", value) == Mean(1.0, 1.0, 1.0, 3)


def test_what_both_share_does_not_widen_the_interval_of_the_difference() -> None:
    assert drawn_difference(RUNS, "edf", "stock", value) == mean_interval([-5.0, -4.0, -3.0])


def test_too_few_seeds_have_a_mean_and_no_interval() -> None:
    few = [run for run in RUNS if run["seed"] < 2]
    assert drawn_mean(few, "edf", value) == Mean(10.5, None, None, 2)
    assert drawn_difference(few, "edf", "stock", value) is None
    apart = runs_of("stock", {0: 1.0, 1: 2.0, 7: 3.0}) + runs_of("edf", {0: 1.0, 1: 2.0, 5: 9.0, 6: None})
    found = drawn_mean(apart, "edf", value)
    assert found is not None and (found.value, found.n) == (4.0, 3) and found.low is not None
    assert drawn_difference(apart, "edf", "stock", value) is None  # two seeds in common


@pytest.mark.parametrize(
    ("policies", "seeds", "reference", "note"),
    [
        (
            ["stock", "edf"],
            3,
            "stock",
            "whiskers: 95 % interval of the mean over 3 seeds; differences are taken seed by seed",
        ),
        (["sjf", "edf"], 3, None, "whiskers: 95 % interval of the mean over 3 seeds"),
        (["stock"], 3, None, "whiskers: 95 % interval of the mean over 3 seeds"),
        (["stock", "edf"], 2, None, "no whiskers: 2 seeds, and an interval needs 3"),
        (["stock", "edf"], 1, None, "no whiskers: 1 seed, and an interval needs 3"),
    ],
)
def test_the_picture_says_which_it_is(policies: list[str], seeds: int, reference: str | None, note: str) -> None:
    runs = [run for policy in policies for run in runs_of(policy, dict(SEEDS)) if run["seed"] < seeds]
    assert reference_of(line_styles(policies), runs) == reference
    assert interval_note(runs, reference) == note
