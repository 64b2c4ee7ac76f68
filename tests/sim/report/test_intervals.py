"""The interval around a mean is that of the difference from stock, paired by seed, where stock ran too."""

import pytest

from sloserve.sim.report.figure_style import line_styles
from sloserve.sim.report.intervals import drawn_mean, interval_note, reference_of
from sloserve.sim.report.statistics import mean_interval, paired_interval
from sloserve.sim.report.summary import Run

pytestmark = pytest.mark.slow  # matplotlib is loaded

SEEDS = {0: 10.0, 1: 20.0, 2: 60.0}
"""Stock's latency: seeds differ by far more than policies do."""


def runs_of(policy: str, values: dict[int, float | None]) -> list[Run]:
    return [{"policy": policy, "seed": seed, "value": value} for seed, value in values.items()]


def value(run: Run) -> float | None:
    found: float | None = run["value"]
    return found


def test_what_both_share_does_not_widen_the_interval() -> None:
    runs = runs_of("stock", dict(SEEDS)) + runs_of("edf", {seed: of - 5.0 + seed for seed, of in SEEDS.items()})
    found, difference = drawn_mean(runs, "edf", "stock", value), mean_interval([-5.0, -4.0, -3.0])
    assert found is not None and difference is not None and found.high is not None and found.low is not None
    assert found.value == pytest.approx(26.0)
    assert found.high - found.value == pytest.approx(difference.high - difference.value)  # type: ignore[operator]
    assert found.value - found.low == pytest.approx(found.high - found.value)
    own = mean_interval([of - 5.0 for of in SEEDS.values()])
    assert own is not None and own.high is not None and found.high - found.value < 0.1 * (own.high - own.value)


def test_stock_has_a_mean_and_no_interval() -> None:
    found = drawn_mean(runs_of("stock", dict(SEEDS)), "stock", "stock", value)
    assert found is not None and (found.value, found.low, found.high, found.n) == (30.0, None, None, 3)


def test_a_seed_that_only_one_of_them_has_counts_in_the_mean_alone() -> None:
    assert paired_interval({0: 1.0, 1: 2.0, 5: 9.0}, {0: 1.0, 1: 2.0, 7: 0.0}) == paired_interval(
        {0: 2.0, 1: 3.0, 5: 7.0}, {0: 1.0, 1: 2.0}
    )
    one = paired_interval({0: 1.0, 1: 2.0}, {0: 4.0})
    assert one is not None and (one.value, one.low, one.n) == (1.5, None, 2)
    assert paired_interval({}, {0: 1.0}) is None


def test_without_stock_the_interval_is_the_policy_s_own() -> None:
    runs = runs_of("edf", dict(SEEDS) | {3: None})
    assert drawn_mean(runs, "edf", None, value) == mean_interval(list(SEEDS.values()))
    assert drawn_mean(runs, "sjf", None, value) is None


@pytest.mark.parametrize(
    ("policies", "reference", "note"),
    [
        (["stock", "edf"], "stock", "95 % interval of the difference from stock, paired by seed"),
        (["sjf", "edf"], None, "intervals: 95 %, of each mean over its own seeds"),
        (["stock"], None, "intervals: 95 %, of each mean over its own seeds"),
    ],
)
def test_the_picture_says_which_it_is(policies: list[str], reference: str | None, note: str) -> None:
    assert reference_of(line_styles(policies)) == reference
    runs = [run for policy in policies for run in runs_of(policy, dict(SEEDS))]
    assert interval_note(runs, reference) == note
    assert interval_note([run for run in runs if run["seed"] == 0], reference) is None
