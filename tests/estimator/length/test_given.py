"""Oracles and their errors: what is stated is predicted."""

from dataclasses import replace

import numpy as np
import pytest

from sloserve.estimator.length.given import OracleLength
from sloserve.estimator.length.remaining import KnownRequests

NO_CAP = 1 << 40


def requests(*stated: int, so_far: int = 0) -> KnownRequests:
    n = len(stated)
    return KnownRequests(
        class_id=np.zeros(n, np.int64),
        output_tokens=np.full(n, so_far),
        max_tokens=np.full(n, NO_CAP),
        stated_tokens=np.array(stated),
        seq=np.arange(n),
    )


def test_an_oracle_knows() -> None:
    rest = OracleLength().rest(requests(100, 7, so_far=6))
    assert rest.mean().tolist() == pytest.approx([94.0, 1.0])
    assert rest.quantile(0.01).tolist() == rest.quantile(0.99).tolist() == [94.0, 1.0]
    assert rest.survival(93).tolist() == [1.0, 0.0]


def test_an_oracle_is_asked_of_stated_lengths_alone() -> None:
    with pytest.raises(ValueError, match="stated_tokens"):
        OracleLength().rest(requests(100, -1))


@pytest.mark.parametrize("error", [0.05, 0.5])
def test_errors_have_the_size_asked_for_and_the_quantiles_know_it(error: float) -> None:
    rest = OracleLength(error, seed=1).rest(requests(*[1000] * 4000))
    off = np.log(rest.quantile(0.5) / 1000.0)
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
    for predictor in (OracleLength(), OracleLength(0.1)):
        rest = predictor.rest(requests(50, so_far=400))
        assert rest.mean() >= 1.0 and rest.quantile(0.9) >= 1.0


@pytest.mark.parametrize("error", [-0.1, float("nan"), float("inf")])
def test_an_impossible_error_is_refused(error: float) -> None:
    with pytest.raises(ValueError, match="error"):
        OracleLength(error)
