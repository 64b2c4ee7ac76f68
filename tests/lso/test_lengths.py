"""Lengths as policies see them: the surest of what is known of each request, capped, under every predictor's name."""

from collections.abc import Callable

import numpy as np
import pytest

from sloserve.core.rows import LENGTH_QUANTILES
from sloserve.estimator.length.at_admission import LEVELS
from sloserve.estimator.length.choice import ORACLE, length_names
from sloserve.lso.lengths import Lengths
from sloserve.scheduler.policy import Snapshot

UNIFORM = dict(zip(LENGTH_QUANTILES, (100.0 * LEVELS).tolist(), strict=True))
"""Quantiles of a reply of 0 to 100 tokens, every length alike."""


def lengths_of(snapshot: Callable[..., Snapshot], length: str) -> tuple[Lengths, Snapshot]:
    at = snapshot(
        [
            {},
            UNIFORM,
            {"oracle_output_tokens": 70},
            UNIFORM | {"oracle_output_tokens": 70},
            UNIFORM | {"max_tokens": 20},
            UNIFORM | {"output_tokens": 90},
        ]
    )
    lengths = Lengths(length, seed=0)
    for slot in [0] * 64:
        at.rows.output_tokens[slot] = 400
        lengths.observe(at.rows, slot)
    at.rows.output_tokens[0] = 0
    return lengths, at


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        ("empirical", [400, 400, 400, 400, 20, 310]),
        ("predicted", [400, 50, 400, 50, 18, 16]),
        ("predicted-gaussian", [400, 50, 400, 50, 18, 16]),
        ("oracle", [400, 50, 70, 70, 18, 16]),
    ],
)
def test_the_surest_that_is_known_counts(snapshot: Callable[..., Snapshot], length: str, expected: list[float]) -> None:
    lengths, at = lengths_of(snapshot, length)
    left = lengths.left(at.rows, at.waiting)
    # The class has ended with 400 tokens 64 times; its prior and the table's stride move the mean by a few.
    np.testing.assert_allclose(left, expected, rtol=0.06, atol=3.0)


@pytest.mark.parametrize("length", length_names())
def test_the_mean_is_the_sum_of_the_survival(snapshot: Callable[..., Snapshot], length: str) -> None:
    lengths, at = lengths_of(snapshot, length)
    ahead = np.arange(0, 4000)
    runs = lengths.survival(at.rows, at.waiting, ahead)
    assert (np.diff(runs, axis=1) <= 1e-9).all() and (runs[:, 0] == 1.0).all()
    np.testing.assert_allclose(lengths.left(at.rows, at.waiting), runs.sum(axis=1), rtol=0.02, atol=8.0)


def test_lengths_that_are_known_are_not_taken_for_shorter_ones(snapshot: Callable[..., Snapshot]) -> None:
    lengths, at = lengths_of(snapshot, ORACLE)
    left = lengths.left(at.rows, at.waiting)
    within = lengths.left_within(at.rows, at.waiting, np.full(6, 30.0))
    assert within[0] < 30.0
    np.testing.assert_array_equal(within[1:], left[1:])


@pytest.mark.parametrize("cut", [{"max_tokens": 400}, {"aborted": True}])
def test_a_reply_that_was_cut_is_known_only_to_be_longer(
    snapshot: Callable[..., Snapshot], cut: dict[str, int]
) -> None:
    left = []
    for ended in ({}, cut):
        at = snapshot([{}, {"output_tokens": 400} | ended])
        lengths = Lengths(seed=0)
        for _ in range(32):
            lengths.observe(at.rows, 1)
        left.append(float(lengths.left(at.rows, np.array([0]))[0]))
    assert left[1] > 2 * left[0]
