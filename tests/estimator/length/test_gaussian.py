"""GaussianLength against moments of what it observed."""

import numpy as np
import pytest

from sloserve.estimator.length.gaussian import GaussianLength
from sloserve.estimator.length.remaining import PRIOR_MEAN_TOKENS, KnownRequests, Rest

NO_CAP = 1 << 40


def rest(predictor: GaussianLength, so_far: int = 0, class_id: int = 0) -> Rest:
    return predictor.rest(
        KnownRequests(class_id=np.array([class_id]), output_tokens=np.array([so_far]), max_tokens=np.array([NO_CAP]))
    )


def fed(*lengths: int, memory: int = 512, cut_fit: bool = True) -> GaussianLength:
    predictor = GaussianLength(memory, cut_fit=cut_fit)
    for length in lengths:
        predictor.observe(0, length)
    return predictor


def gaussian(mean: float, deviation: float, n: int = 2000) -> list[int]:
    return np.maximum(np.random.default_rng(0).normal(mean, deviation, n), 1).astype(int).tolist()


@pytest.mark.parametrize("so_far", [0, 100, 120])
def test_conditional_quantiles_are_those_of_the_survivors(so_far: int) -> None:
    lengths = np.array(gaussian(100, 15))
    predictor = fed(*lengths.tolist(), memory=4096)
    left = lengths[lengths > so_far] - so_far
    for q in (0.5, 0.9):
        assert float(rest(predictor, so_far).quantile(q)[0]) == pytest.approx(np.quantile(left, q), abs=2)
    assert float(rest(predictor, so_far).mean()[0]) == pytest.approx(left.mean(), rel=0.07)


def test_a_class_that_spreads_more_than_an_exponential_keeps_its_mean_where_the_papers_fit_does_not() -> None:
    lengths = [10] * 900 + [400] * 100
    assert float(rest(fed(*lengths, memory=4096)).mean()[0]) == pytest.approx(49.0, rel=0.05)
    assert float(rest(fed(*lengths, memory=4096, cut_fit=False)).mean()[0]) > 90.0


def test_a_new_class_predicts_the_prior() -> None:
    assert float(rest(GaussianLength(), class_id=5).mean()[0]) == pytest.approx(PRIOR_MEAN_TOKENS, rel=0.01)


def test_classes_are_apart_and_the_old_fades() -> None:
    predictor = fed(*[1000] * 100, *[50] * 100, memory=16)
    predictor.observe(1, 7)
    assert float(rest(predictor).mean()[0]) == pytest.approx(91, abs=9)
    assert float(rest(predictor, class_id=1).mean()[0]) > 150


def test_far_beyond_the_mean_a_token_is_to_come() -> None:
    far = rest(fed(*[20] * 100), so_far=100_000)
    assert far.mean() >= 1.0 and np.isfinite(far.quantile(0.99)).all()


def test_no_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="memory: 0 is not a whole number >= 1"):
        GaussianLength(0)


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="output_tokens: 0"):
        GaussianLength().observe(0, 0)
