"""Every predictor by its name, and all of them behind the one interface."""

import numpy as np
import pytest

from sloserve.estimator.length.choice import CLASS_PREDICTORS, check_lengths, length_names
from sloserve.estimator.length.remaining import KnownRequests


@pytest.mark.parametrize("name", CLASS_PREDICTORS)
def test_one_interface(name: str) -> None:
    predictor = CLASS_PREDICTORS[name]()
    predictor.observe(0, 30)
    asked = KnownRequests(
        class_id=np.array([0, 1, 1]), output_tokens=np.array([0, 10, 5000]), max_tokens=np.array([1000, 1000, 5100])
    )
    rest = predictor.rest(asked)
    median, p90, mean = rest.quantile(0.5), rest.quantile(0.9), rest.mean()
    for values in (median, p90, mean):
        assert values.shape == (3,) and (values >= 1).all() and (values <= [1000, 990, 100]).all()
    assert (median <= p90).all() and (rest.survival(median) <= 0.55).all()


def test_a_name_and_an_error_are_checked() -> None:
    for name in length_names():
        check_lengths(name)
    with pytest.raises(
        ValueError, match="'guess' is not one of predicted, predicted-gaussian, empirical, gaussian, oracle"
    ):
        check_lengths("guess")
    with pytest.raises(ValueError, match="length_error: -1"):
        check_lengths("oracle", -1.0)
