"""The lookup of expected lengths: its predictor's answers on the grid, as of the last renewal, under each cap."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sloserve.estimator.length import EmpiricalLength
from sloserve.estimator.length_table import MOST_TOKENS, STRIDE_TOKENS, LengthTable

NO_CAP = 10**9
LENGTHS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3000)), max_size=80)


def asked(predictor: Any, *requests: tuple[int, int, int]) -> list[float]:
    """class_id, output_tokens and max_tokens of each."""
    columns = np.array(requests, np.int64).reshape(-1, 3).T
    found = predictor.remaining(*columns)
    assert found.dtype == np.float64 and found.shape == (len(requests),)
    return [float(one) for one in found]


class Counted:
    """A predictor whose answer counts the requests of a class that have ended; a class's rows asked for are noted."""

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}
        self.rows: list[int] = []

    def observe(self, class_id: int, output_tokens: int) -> None:
        self.ended[class_id] = self.ended.get(class_id, 0) + 1

    def remaining(
        self, class_id: NDArray[np.int64], output_tokens: NDArray[np.int64], max_tokens: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        self.rows.append(int(class_id[0]))
        return np.array([100.0 + self.ended.get(int(one), 0) for one in class_id])


@given(lengths=LENGTHS, at=st.integers(0, MOST_TOKENS // STRIDE_TOKENS), cap=st.integers(1, 500) | st.just(NO_CAP))
def test_gives_the_predictors_answers_on_the_grid(lengths: list[tuple[int, int]], at: int, cap: int) -> None:
    table, predictor = LengthTable(EmpiricalLength()), EmpiricalLength()
    for class_id, tokens in lengths:
        table.observe(class_id, tokens)
        predictor.observe(class_id, tokens)
    so_far = at * STRIDE_TOKENS
    requests = [(class_id, so_far, so_far + cap) for class_id in range(4)]
    assert asked(table, *requests) == asked(predictor, *requests)


@pytest.mark.parametrize("so_far", [0, 1, 31, 32, 33, MOST_TOKENS - 1, MOST_TOKENS, MOST_TOKENS + 1, 10**6])
def test_between_and_beyond_the_grid_it_gives_the_answer_of_the_place_below(so_far: int) -> None:
    table, predictor = LengthTable(EmpiricalLength()), EmpiricalLength()
    for tokens in range(10, 2000, 70):
        table.observe(0, tokens)
        predictor.observe(0, tokens)
    below = min(so_far // STRIDE_TOKENS * STRIDE_TOKENS, MOST_TOKENS)
    assert asked(table, (0, so_far, NO_CAP)) == asked(predictor, (0, below, NO_CAP))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9000), st.integers(-5, 300)), max_size=20))
def test_at_least_one_token_and_at_most_what_the_cap_leaves(requests: list[tuple[int, int, int]]) -> None:
    table = LengthTable(EmpiricalLength())
    for tokens in (5, 50, 500):
        table.observe(1, tokens)
    found = asked(table, *((class_id, so_far, so_far + left) for class_id, so_far, left in requests))
    assert all(1.0 <= one <= max(left, 1) for one, (_, _, left) in zip(found, requests, strict=True))


def test_a_class_is_renewed_after_1_2_4_8_16_and_every_32_of_its_own() -> None:
    table = LengthTable(Counted())
    seen = []
    for ended in range(1, 130):
        table.observe(2, 7)
        seen.append(asked(table, (2, 0, NO_CAP))[0] - 100.0)
        # Until it is renewed, it says what it said before; others' ends do not renew it.
        table.observe(0, 7)
        assert asked(table, (2, 64, NO_CAP))[0] - 100.0 == seen[-1] <= ended
    renewed = [1, 2, 4, 8, 16, 32, 64, 96, 128]
    assert seen == [max(one for one in renewed if one <= ended) for ended in range(1, 130)]


def test_what_ended_before_a_class_was_asked_for_counts() -> None:
    table = LengthTable(Counted())
    for _ in range(7):
        table.observe(5, 7)
    assert asked(table, (5, 0, NO_CAP)) == [107.0]


def test_plans_ask_the_predictor_for_new_classes_only() -> None:
    predictor = Counted()
    table = LengthTable(predictor)
    asked(table, (1, 0, NO_CAP), (0, 40, NO_CAP))
    assert predictor.rows == [0, 1]
    asked(table, (1, 500, NO_CAP))
    asked(table, (3, 0, NO_CAP), (1, 0, NO_CAP))
    assert predictor.rows == [0, 1, 2, 3]
    assert asked(table) == [] and predictor.rows == [0, 1, 2, 3]


def test_the_same_ends_in_the_same_order_give_the_same_answers_whatever_was_asked_between() -> None:
    rng = np.random.default_rng(3)
    one, other = LengthTable(EmpiricalLength()), LengthTable(EmpiricalLength())
    asked(one, (3, 0, NO_CAP))
    asked(other, (3, 0, NO_CAP))
    for class_id, tokens in zip(rng.integers(0, 4, 200).tolist(), rng.integers(1, 900, 200).tolist(), strict=True):
        one.observe(class_id, tokens)
        other.observe(class_id, tokens)
        asked(other, (class_id, tokens, NO_CAP))
    requests = [(class_id, so_far, NO_CAP) for class_id in range(4) for so_far in (0, 100, 700)]
    assert asked(one, *requests) == asked(other, *requests)
