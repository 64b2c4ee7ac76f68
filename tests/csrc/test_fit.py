"""Least squares with coefficients that are not negative, against scipy's, and what is no such problem."""

import numpy as np
import pytest
from scipy.optimize import nnls

from sloserve.core.kernels import fit_nonnegative


def equations(n: int, weight: float) -> dict[str, np.ndarray]:
    theta = np.ones(n)
    return {
        "information": np.eye(n) * weight,
        "aim": theta * weight,
        "theta": theta,
        "positive": np.ones(n, np.bool_),
    }


@pytest.mark.parametrize("seed", range(8))
def test_it_finds_what_scipy_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, steps = int(rng.integers(1, 9)), 60
    shares = rng.random((steps, n)) ** 2
    true = np.maximum(rng.standard_normal(n), 0.0) * 3.0
    targets = shares @ true + 0.3 * rng.standard_normal(steps)
    found = equations(n, 1e-6)
    for share, target in zip(shares, targets, strict=True):
        fit_nonnegative(**found, share=share, target=float(target), keep=1.0, leak=0.0, most_solves=3)
    for _ in range(n):  # no more is observed: what was wrong about zeros is corrected
        fit_nonnegative(**found, share=np.zeros(n), target=0.0, keep=1.0, leak=0.0, most_solves=3)
    best, _ = nnls(np.vstack([shares, np.eye(n) * 1e-3]), np.concatenate([targets, np.full(n, 1e-3)]))
    np.testing.assert_allclose(found["theta"], best, rtol=1e-6, atol=1e-9)


def test_what_is_kept_and_what_leaks() -> None:
    found = equations(2, 0.5)
    fit_nonnegative(**found, share=np.array([1.0, 0.0]), target=3.0, keep=0.5, leak=0.25, most_solves=3)
    assert found["information"].tolist() == [[1.5, 0.0], [0.0, 0.5]] and found["aim"].tolist() == [3.5, 0.5]
    np.testing.assert_allclose(found["theta"], [3.5 / 1.5, 1.0])


@pytest.mark.parametrize("wrong", ["information", "aim", "theta", "positive", "share", "terms"])
def test_arrays_of_other_sizes_are_refused(wrong: str) -> None:
    n = 17 if wrong == "terms" else 3
    given = equations(n, 1.0) | {"share": np.ones(n)}
    if wrong != "terms":
        given[wrong] = np.ascontiguousarray(given[wrong][:-1])
    with pytest.raises(ValueError):
        fit_nonnegative(**given, target=1.0, keep=1.0, leak=0.0, most_solves=3)
