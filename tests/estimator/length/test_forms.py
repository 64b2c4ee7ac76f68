"""Every form of length distribution against sums over its own survival, and against numbers drawn from it."""

from collections.abc import Callable

import numpy as np
import pytest

from sloserve.core.arrays import FloatArray
from sloserve.estimator.length.gaussian import NormalLengths, cut_normal
from sloserve.estimator.length.given import LogNormalLengths, RangeLengths
from sloserve.estimator.length.kaplan_meier import CurveOfEach, survival_curve
from sloserve.estimator.length.quantiles import quantile_lengths
from sloserve.estimator.length.remaining import KnownRequests, LengthForm, Rest, rest_of

SO_FAR = np.array([0, 1, 7, 30, 64, 65, 300, 5000])
N = SO_FAR.size
NO_CAP = 1 << 40
LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.9, 0.99])


Make = Callable[[int], LengthForm]


def curve(ended: list[int], running: tuple[int, ...] = ()) -> Make:
    made = survival_curve(
        np.array(ended, np.int64), np.array(running, np.int64), prior_mean_tokens=30.0, prior_weight=2.0
    )
    return lambda n: CurveOfEach([(made, np.arange(n))], n)


def normal(centre: float, sigma: float) -> Make:
    return lambda n: NormalLengths(np.full(n, centre), np.full(n, sigma))


ENDED = [5, 5, 8, 20, 64, 64, 64, 200, 300]
FORMS: dict[str, Make] = {
    "empirical": curve(ENDED),
    "censored": curve(ENDED, (3, 50, 50, 250, 400)),
    "only running": curve([], (40,)),
    "normal": normal(50.0, 20.0),
    "normal below 0": normal(-30.0, 40.0),
    "narrow normal": normal(60.0, 0.5),
    "lognormal": lambda n: LogNormalLengths(np.full(n, 4.0), np.full(n, 0.5)),
    "range": lambda n: RangeLengths(np.full(n, 20), np.full(n, 90)),
    "point": lambda n: RangeLengths(np.full(n, 64), np.full(n, 64)),
    "quantiles": lambda n: quantile_lengths(LEVELS, np.tile([3.0, 10.0, 40.0, 41.0, 150.0, 300.0], (n, 1))),
    "crossed quantiles": lambda n: quantile_lengths(LEVELS, np.tile([9.0, 9.0, 9.0, 8.0, 7.0, 90.0], (n, 1))),
}
DISCRETE = {"empirical", "censored", "range", "point", "only running"}

every_form = pytest.mark.parametrize("name", FORMS)


def survival_table(make: Make, steps: FloatArray) -> FloatArray:
    """Survival of ``steps`` more tokens by SO_FAR, ``[len(steps), N]``."""
    flat = make(steps.size * N).survival_after(np.tile(SO_FAR, steps.size), np.repeat(steps, N))
    return flat.reshape(steps.size, N)


@every_form
def test_the_mean_is_the_sum_of_the_survival(name: str) -> None:
    steps = np.arange(0.0, 6000.0) if name in DISCRETE else np.concatenate(([0.0], np.geomspace(1e-4, 6000.0, 4_000)))
    table = survival_table(FORMS[name], steps)
    assert np.isfinite(table).all() and (table[0] == pytest.approx(1.0)) and (np.diff(table, axis=0) <= 1e-12).all()
    got = FORMS[name](N).mean_after(SO_FAR)
    expected = table.sum(axis=0) if name in DISCRETE else np.trapezoid(table, steps, axis=0)
    if name == "lognormal":  # its mean is at least the one token that callers ask for
        expected = np.maximum(expected, 1.0)
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=1e-3)
    assert (got > 0.0).all()


@every_form
@pytest.mark.parametrize("q", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_quantile_is_the_least_that_the_rest_exceeds_with_at_most_the_remaining_probability(
    name: str, q: float
) -> None:
    form = FORMS[name](N)
    at = form.quantile_after(SO_FAR, np.full(N, q))
    assert np.isfinite(at).all() and (at >= 0.0).all()
    assert (form.survival_after(SO_FAR, at + 1e-6) <= 1.0 - q + 1e-6).all()
    # Between whole numbers the prior is taken as falling too, so there the bound is within one token more.
    before = np.maximum(at - (2.0 if name in DISCRETE | {"either"} else 1e-6), 0.0)
    assert (form.survival_after(SO_FAR, before) >= 1.0 - q - 1e-4).all()


@every_form
def test_a_cap_is_part_of_the_distribution(name: str) -> None:
    left = 25
    rest = Rest(FORMS[name](N), SO_FAR, np.full(N, left))
    table = survival_table(FORMS[name], np.arange(0.0, left, 0.01))
    expected = np.maximum(table.mean(axis=0) * left, 1.0)
    np.testing.assert_allclose(rest.mean(), expected, rtol=0.03)
    assert (rest.quantile(0.999) <= left).all() and (rest.survival(left) == 0.0).all()
    assert (rest.survival(0) == 1.0).all()


def test_at_least_one_token_is_to_come() -> None:
    rest = rest_of(
        NormalLengths(np.array([10.0]), np.array([1.0])),
        KnownRequests(class_id=np.zeros(1, np.int64), output_tokens=np.array([100]), max_tokens=np.array([100])),
    )
    assert rest.mean() == rest.quantile(0.5) == 1.0


def test_a_quantile_outside_0_and_1_is_refused() -> None:
    with pytest.raises(ValueError, match="ends excluded"):
        Rest(FORMS["normal"](N), SO_FAR, np.full(N, 9)).quantile(1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "deviation"), [(100.0, 20.0), (100.0, 60.0), (100.0, 95.0)])
def test_a_cut_normal_has_the_moments_it_was_asked_for(mean: float, deviation: float) -> None:
    from scipy import stats  # takes a quarter of a second

    form = cut_normal(np.array([mean]), np.array([deviation]))
    centre, sigma = float(form.centre[0]), float(form.sigma[0])
    cut = stats.truncnorm(-centre / sigma, np.inf, loc=centre, scale=sigma)
    assert (cut.mean(), cut.std()) == pytest.approx((mean, deviation), rel=2e-3)
    assert float(form.mean_after(np.array([0]))[0]) == pytest.approx(mean, rel=1e-3)


def test_a_spread_beyond_the_exponentials_keeps_the_mean() -> None:
    form = cut_normal(np.array([27.0]), np.array([60.0]))
    assert float(form.mean_after(np.array([0]))[0]) == pytest.approx(27.0, rel=1e-3)


def test_far_beyond_all_that_was_seen_a_class_predicts_its_mean() -> None:
    made = survival_curve(np.array([20] * 50), np.empty(0, np.int64), prior_mean_tokens=20.0, prior_weight=4.0)
    far = np.array([100_000])
    assert float(made.mean_after(far)[0]) == pytest.approx(20.0)
    assert float(made.quantile_after(far, np.array([0.5]))[0]) == pytest.approx(20.0 * np.log(2.0), rel=0.05)
    assert float(made.survival_after(far, np.array([20.0]))[0]) == pytest.approx(0.95**20, rel=1e-6)


def test_nobody_asked_nothing_said() -> None:
    none = np.empty(0, np.int64)
    for form in (CurveOfEach([], 0), NormalLengths(none * 1.0, none * 1.0), RangeLengths(none, none)):
        rest = Rest(form, none, none)
        assert rest.mean().shape == rest.quantile(0.5).shape == rest.survival(3).shape == (0,)
