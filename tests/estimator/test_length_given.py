"""Ranges, oracles and their errors: what is stated is predicted, what is not is left to another predictor."""

from dataclasses import replace

import numpy as np
import pytest

from sloserve.estimator.length import EmpiricalLength
from sloserve.estimator.length_given import OracleLength, RangeLength
from sloserve.estimator.length_rest import Requests

NO_CAP = 1 << 40


def requests(*stated: int, so_far: int = 0) -> Requests:
    n = len(stated)
    return Requests(
        class_id=np.zeros(n, np.int64),
        output_tokens=np.full(n, so_far),
        max_tokens=np.full(n, NO_CAP),
        stated_tokens=np.array(stated),
        seq=np.arange(n),
    )


def test_an_oracle_knows_and_predicts_the_rest_of_which_nothing_is_stated() -> None:
    predictor = OracleLength(otherwise=EmpiricalLength(prior_mean_tokens=40.0))
    rest = predictor.rest(requests(100, 7, -1, so_far=6))
    assert rest.mean().tolist() == pytest.approx([94.0, 1.0, 40.0])
    assert rest.quantile(0.01).tolist()[:2] == rest.quantile(0.99).tolist()[:2] == [94.0, 1.0]
    assert rest.survival(93).tolist()[:2] == [1.0, 0.0]


def test_without_statements_an_oracle_predicts_from_those_that_ended() -> None:
    predictor = OracleLength()
    for _ in range(500):
        predictor.observe(0, 20)
    one = np.array([0])
    assert float(predictor.remaining(one, one, np.array([NO_CAP]))[0]) == pytest.approx(20.0, rel=0.03)


@pytest.mark.parametrize(("error", "spread"), [(0.05, "normal"), (0.05, "lognormal"), (0.5, "lognormal")])
def test_errors_have_the_size_asked_for_and_the_quantiles_know_it(error: float, spread: str) -> None:
    rest = OracleLength(error, spread, seed=1).rest(requests(*[1000] * 4000))
    off = rest.quantile(0.5) / 1000.0 - 1.0 if spread == "normal" else np.log(rest.quantile(0.5) / 1000.0)
    assert float(off.std()) == pytest.approx(error, rel=0.05) and abs(float(off.mean())) < 3 * error / 4000**0.5 + 1e-3
    assert float((rest.quantile(0.9) >= 1000).mean()) == pytest.approx(0.9, abs=0.05)


def test_errors_follow_from_seed_and_seq_alone() -> None:
    asked = requests(*[500] * 50)
    first = OracleLength(0.2, seed=3).rest(asked).mean()
    backwards = OracleLength(0.2, seed=3).rest(asked.take(np.arange(50)[::-1])).mean()
    np.testing.assert_array_equal(first, backwards[::-1])
    assert (first != OracleLength(0.2, seed=4).rest(asked).mean()).all()
    assert np.unique(first).size == 50


def test_an_error_without_seq_is_refused() -> None:
    with pytest.raises(ValueError, match="seq"):
        OracleLength(0.1).rest(replace(requests(5), seq=None))


def test_a_request_longer_than_stated_still_has_tokens_to_come() -> None:
    for predictor in (OracleLength(), OracleLength(0.1), OracleLength(0.1, "normal")):
        rest = predictor.rest(requests(50, so_far=400))
        assert rest.mean() >= 1.0 and rest.quantile(0.9) >= 1.0


def test_a_requests_range_comes_before_its_classs_and_both_before_a_prediction() -> None:
    predictor = RangeLength({0: (100, 200)}, otherwise=EmpiricalLength(prior_mean_tokens=40.0))
    asked = replace(
        requests(-1, -1, -1),
        class_id=np.array([0, 0, 1]),
        lower_tokens=np.array([10, -1, -1]),
        upper_tokens=np.array([20, -1, -1]),
    )
    assert predictor.rest(asked).mean().tolist() == pytest.approx([15.0, 150.0, 40.0])
    assert predictor.rest(asked).quantile(0.9).tolist()[:2] == [19.0, 190.0]
    later = predictor.rest(replace(asked, output_tokens=np.array([15, 150, 0])))
    assert later.mean().tolist()[:2] == pytest.approx([3.0, 25.5])


def test_a_range_alone_needs_no_other_predictor() -> None:
    predictor = RangeLength({0: (5, 5)})
    predictor.observe(0, 900)
    assert predictor.rest(requests(-1, -1)).mean().tolist() == [5.0, 5.0]


@pytest.mark.parametrize("given", [(0, 5), (6, 5)])
def test_an_impossible_range_is_refused(given: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="class 2"):
        RangeLength({2: given})


@pytest.mark.parametrize(("error", "spread"), [(-0.1, "normal"), (float("nan"), "normal"), (0.1, "uniform")])
def test_an_impossible_error_is_refused(error: float, spread: str) -> None:
    with pytest.raises(ValueError, match="error"):
        OracleLength(error, spread)
