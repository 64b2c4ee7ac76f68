"""Predictors of output lengths by name: what the option ``length`` of every policy may say.

* ``predicted``: as the front end predicted each request (:mod:`sloserve.estimator.length.at_admission`), where it did;
  the others by ``empirical``.
* ``predicted-gaussian``: the same, the others by ``gaussian``.
* A name of ``CLASS_PREDICTORS``: from the requests of the class that ended, and nothing else.
* ``oracle``: as the client or the simulator states, with an error if one is asked for; requests without a statement as
  under ``predicted``.

To add a predictor, write a module with an :class:`~sloserve.estimator.length.remaining.Estimator`, and a line in
``CLASS_PREDICTORS``.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from sloserve.estimator.length.empirical import EmpiricalLength
from sloserve.estimator.length.remaining import LengthEstimator


def _gaussian() -> LengthEstimator:
    from sloserve.estimator.length.gaussian import GaussianLength  # loads scipy

    return GaussianLength()


CLASS_PREDICTORS: Final[Mapping[str, Callable[[], LengthEstimator]]] = {
    "empirical": EmpiricalLength,
    "gaussian": _gaussian,
}
PREDICTED: Final = "predicted"
PREDICTED_GAUSSIAN: Final = "predicted-gaussian"
ORACLE: Final = "oracle"


def length_names() -> tuple[str, ...]:
    """Return the values that the option ``length`` may have."""
    return (PREDICTED, PREDICTED_GAUSSIAN, *CLASS_PREDICTORS, ORACLE)


def of_class(length: str) -> LengthEstimator:
    """Return the predictor of requests of which only the class is known, where the option ``length`` has this value."""
    if length == PREDICTED_GAUSSIAN:
        return _gaussian()
    return CLASS_PREDICTORS.get(length, EmpiricalLength)()


def reads_quantiles(length: str) -> bool:
    """Return whether predictions of the front end count where the option ``length`` has this value."""
    return length not in CLASS_PREDICTORS


def check_lengths(length: str, length_error: float = 0.0) -> None:
    """Raise ValueError unless ``length`` is one of :func:`length_names` and ``length_error`` is 0 or more."""
    if length not in length_names():
        raise ValueError(f"length: {length!r} is not one of {', '.join(length_names())}")
    if not 0.0 <= length_error < np.inf:
        raise ValueError(f"length_error: {length_error} is not 0 or more, and finite")
