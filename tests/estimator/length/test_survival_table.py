import numpy as np
import pytest

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.estimator.length.empirical import EmpiricalLength
from sloserve.estimator.length.remaining import KnownRequests
from sloserve.estimator.length.survival_table import MOST_TOKENS, STRIDE_TOKENS, SurvivalTable

NO_CAP = 10**9


def learnt(lengths: dict[int, list[int]]) -> tuple[SurvivalTable, EmpiricalLength]:
    plain = EmpiricalLength()
    table = SurvivalTable(EmpiricalLength())
    for class_id, tokens in lengths.items():
        for one in tokens:
            plain.observe(class_id, one)
            table.observe(class_id, one)
    return table, plain


def mean(table: SurvivalTable, class_id: IntArray, output_tokens: IntArray, max_tokens: IntArray) -> FloatArray:
    return table.mean(
        KnownRequests(class_id=class_id, output_tokens=output_tokens, max_tokens=max_tokens), np.arange(class_id.size)
    )


def survival(
    table: SurvivalTable, class_id: IntArray, output_tokens: IntArray, max_tokens: IntArray, ahead: IntArray
) -> FloatArray:
    columns = KnownRequests(class_id=class_id, output_tokens=output_tokens, max_tokens=max_tokens)
    return table.chances(columns, np.arange(class_id.size), ahead).matrix().reshape(-1, ahead.size)


def mean_of(plain: EmpiricalLength, class_id: IntArray, output_tokens: IntArray, max_tokens: IntArray) -> FloatArray:
    return plain.rest(KnownRequests(class_id=class_id, output_tokens=output_tokens, max_tokens=max_tokens)).mean()


@pytest.fixture
def drawn() -> dict[int, list[int]]:
    rng = np.random.default_rng(3)
    return {0: rng.geometric(1 / 200, 64).tolist(), 1: rng.integers(20, 1000, 128).tolist(), 2: []}


def test_the_curves_are_the_estimators(drawn: dict[int, list[int]]) -> None:
    table, plain = learnt(drawn)
    class_id, so_far = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 160, 8, 800, 0, 400])
    ahead = np.arange(0, 2000, 104)
    found = survival(table, class_id, so_far, np.full(6, NO_CAP), ahead)
    for i in range(6):
        n = ahead.size
        rest = plain.rest(
            KnownRequests(
                class_id=np.full(n, class_id[i]), output_tokens=np.full(n, so_far[i]), max_tokens=np.full(n, NO_CAP)
            )
        )
        np.testing.assert_allclose(found[i], rest.survival(ahead), atol=1e-9)


def test_expectations_are_the_estimators_within_a_stride(drawn: dict[int, list[int]]) -> None:
    table, plain = learnt(drawn)
    class_id, so_far = np.repeat([0, 1, 2], 5), np.tile([0, 8, 160, 400, 1600], 3)
    for caps in (np.full(15, NO_CAP), so_far + 200, so_far + 1):
        np.testing.assert_allclose(
            mean(table, class_id, so_far, caps), mean_of(plain, class_id, so_far, caps), atol=STRIDE_TOKENS
        )


@pytest.mark.parametrize("most", [16, 160, 800])
def test_the_mean_up_to_a_limit_is_that_of_the_lengths_up_to_it(drawn: dict[int, list[int]], most: int) -> None:
    table, _ = learnt(drawn)
    class_id, so_far, ahead = np.repeat([0, 1, 2], 3), np.tile([0, 80, 400], 3), np.arange(0, most + 1, STRIDE_TOKENS)
    runs = survival(table, class_id, so_far, np.full(9, NO_CAP), ahead)
    ends = runs[:, :-1] - runs[:, 1:]
    expected = (ends * (ahead[:-1] + ahead[1:]) / 2.0).sum(axis=1) / ends.sum(axis=1)
    slots = np.arange(9)
    within = table.mean_within(
        KnownRequests(class_id=class_id, output_tokens=so_far, max_tokens=np.full(9, NO_CAP)),
        slots,
        np.full(9, float(most)),
    )
    np.testing.assert_allclose(within, expected)
    # A cap that comes first is the limit.
    capped = KnownRequests(class_id=class_id, output_tokens=so_far, max_tokens=so_far + most)
    np.testing.assert_array_equal(table.mean_within(capped, slots, np.full(9, float(most))), table.mean(capped, slots))


def test_a_limit_below_a_stride_limits_nothing(drawn: dict[int, list[int]]) -> None:
    table, _ = learnt(drawn)
    columns, slots = (
        KnownRequests(class_id=np.zeros(2, np.int64), output_tokens=np.array([0, 160]), max_tokens=np.full(2, NO_CAP)),
        np.arange(2),
    )
    for most in (0.0, -5.0, STRIDE_TOKENS - 1.0):
        within = table.mean_within(columns, slots, np.full(2, most))
        np.testing.assert_array_equal(within, table.mean(columns, slots))


def test_max_tokens_ends_everything(drawn: dict[int, list[int]]) -> None:
    table, _ = learnt(drawn)
    one = np.array([1])
    found = survival(table, one, np.array([50]), np.array([90]), np.array([0, 39, 40, 41]))
    assert found[0, 0] == 1.0 and found[0, 1] > 0.0 and (found[0, 2:] == 0.0).all()
    assert mean(table, one, np.array([50]), np.array([90])) <= 40.0
    assert mean(table, one, np.array([90]), np.array([90])) == 1.0


def test_beyond_all_lengths_something_is_left(drawn: dict[int, list[int]]) -> None:
    table, _ = learnt(drawn)
    found = survival(table, np.array([0]), np.array([10 * MOST_TOKENS]), np.array([NO_CAP]), np.array([0, 8, 800]))
    assert np.isfinite(found).all() and (found >= 0.0).all() and (found <= 1.0).all()
    assert mean(table, np.array([0]), np.array([10 * MOST_TOKENS]), np.array([NO_CAP])) >= 1.0


def test_new_lengths_come_in_after_some_have_ended() -> None:
    table = SurvivalTable(EmpiricalLength())
    ask = (np.array([0]), np.array([0]), np.array([NO_CAP]), np.array([0, 80]))
    before = float(survival(table, *ask)[0, 1])
    for _ in range(64):
        table.observe(0, 40)
    assert survival(table, *ask)[0, 1] < before / 2


def test_a_class_is_renewed_after_1_2_4_8_16_and_every_32_of_its_own() -> None:
    table, plain = SurvivalTable(EmpiricalLength()), EmpiricalLength()
    at = (np.array([2]), np.array([0]), np.array([NO_CAP]))
    rng = np.random.default_rng(5)
    mean(table, *at)
    for ended in range(1, 130):
        before, tokens = mean(table, *at), int(rng.integers(1, 900))
        table.observe(2, tokens)
        plain.observe(2, tokens)
        table.observe(0, 7)
        if ended in (1, 2, 4, 8, 16, 32, 64, 96, 128):
            np.testing.assert_allclose(mean(table, *at), mean_of(plain, *at), atol=STRIDE_TOKENS)
        else:
            assert mean(table, *at) == before


@pytest.mark.slow
def test_the_same_ends_give_the_same_answers_whatever_was_asked_between() -> None:
    rng = np.random.default_rng(3)
    one, other = SurvivalTable(EmpiricalLength()), SurvivalTable(EmpiricalLength())
    first = (np.array([3]), np.array([0]), np.array([NO_CAP]))
    mean(one, *first)
    mean(other, *first)
    for class_id, tokens in zip(rng.integers(0, 4, 200).tolist(), rng.integers(1, 900, 200).tolist(), strict=True):
        one.observe(class_id, tokens)
        other.observe(class_id, tokens)
        mean(other, np.array([class_id]), np.array([tokens]), np.array([NO_CAP]))
    asked = np.repeat(np.arange(4), 3), np.tile([0, 100, 700], 4), np.full(12, NO_CAP)
    assert (mean(one, *asked) == mean(other, *asked)).all()
