"""The compiled ranking against numpy's lexsort, and a plain reading of the rule of class rank."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.rank import by_class, first_places, ranked, top_k


def reference(keys: list[float], seqs: list[int], k: int) -> list[int]:
    """lexsort sorts by its last key first, is stable, and puts NaN last, as ``top_k`` promises."""
    return list(np.lexsort((np.array(seqs, np.int64), np.array(keys, np.float64)))[:k])


KEYS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1.0, 1.0, float("inf"), float("-inf"), float("nan")]),
)
SEQS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)


@given(rows=st.lists(st.tuples(KEYS, SEQS), max_size=40), k=st.integers(0, 50))
def test_equals_lexsort(rows: list[tuple[float, int]], k: int) -> None:
    keys, seqs = [key for key, _ in rows], [seq for _, seq in rows]
    assert top_k(keys, seqs, k).tolist() == reference(keys, seqs, k)


@pytest.mark.parametrize("n", [1, 2, 3, 31, 1000, 4097])
@pytest.mark.parametrize("distinct", [1, 7, 10**9])
def test_equals_lexsort_on_long_columns(n: int, distinct: int) -> None:
    rng = np.random.default_rng(n)
    keys, seqs = rng.integers(0, distinct, n).astype(float), rng.permutation(n)
    for k in (0, 1, n // 2, n - 1, n, n + 1, 2**40):
        assert top_k(keys, seqs, k).tolist() == reference(keys.tolist(), seqs.tolist(), k)


@pytest.mark.parametrize("byte", range(8))
def test_keys_that_differ_in_one_byte_alone_are_sorted(byte: int) -> None:
    """From 128 keys on they are sorted byte by byte."""
    steps = np.random.default_rng(byte).permutation(np.arange(100).repeat(2))
    keys = (np.float64(2.0).view(np.int64) + steps * 2 ** (8 * byte) * (1 if byte < 7 else 0)).view(np.float64)
    if byte == 7:
        keys = np.where(steps % 2, -keys, keys)
    assert top_k(keys, np.arange(200), 200).tolist() == reference(keys.tolist(), list(range(200)), 200)


def test_empty() -> None:
    found = top_k([], [], 3)
    assert found.dtype == np.int64 and found.shape == (0,)


def test_ties_end_in_seq_then_in_place() -> None:
    assert top_k([1.0, 1.0, 1.0, 0.0], [5, 2, 2, 9], 4).tolist() == [3, 1, 2, 0]


def test_infinities_before_nan() -> None:
    nan, inf = float("nan"), float("inf")
    assert top_k([nan, inf, -inf, 0.0, nan], [0, 1, 2, 3, -1], 5).tolist() == [2, 3, 1, 4, 0]


def test_takes_strided_columns_and_other_dtypes() -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)[::-1]
    assert top_k(table[:, 1], np.arange(8, dtype=np.int32)[::2], 2).tolist() == [3, 2]


def test_result_outlives_the_arguments() -> None:
    found = top_k(np.arange(1000.0)[::-1].copy(), np.arange(1000), 3)
    assert found.flags.writeable and found.tolist() == [999, 998, 997]


@pytest.mark.parametrize(
    ("keys", "seqs", "k", "message"),
    [
        ([1.0], [1, 2], 1, "seqs: 2 elements for 1 keys; there must be one for each key"),
        ([1.0], [], 0, "seqs: 0 elements for 1 keys"),
        ([1.0], [1], -1, "k: -1 is negative; the least is 0"),
        ([[1.0, 2.0]], [1, 2], 1, r"keys: shape \(1, 2\) is not one-dimensional"),
        ([1.0, 2.0], [[1], [2]], 1, r"seqs: shape \(2, 1\) is not one-dimensional"),
    ],
)
def test_refuses_bad_sizes(keys: list[float], seqs: list[int], k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        top_k(keys, seqs, k)


def lowered_plainly(key: np.ndarray, rank: np.ndarray, undecided: np.ndarray) -> np.ndarray:
    lowered, least = key.copy(), np.inf
    for one in sorted(set(rank.tolist()), reverse=True):
        of_class = rank == one
        lowered[of_class & undecided] = np.minimum(key[of_class & undecided], least)
        least = min(least, float(lowered[of_class].min()))
    return lowered


@pytest.mark.parametrize("n", [0, 1, 5, 60, 700])
@pytest.mark.parametrize("seed", range(4))
def test_class_rank_has_its_place(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    key = rng.choice([-np.inf, -3.0, -0.0, 0.0, 1.5, 7.0, np.inf], n) if seed % 2 else rng.normal(size=n)
    rank, seq, undecided = rng.integers(0, 1 + 2 * seed, n), rng.permutation(n), rng.random(n) < 0.3
    lowered = by_class(key, rank, undecided)
    expected = lowered_plainly(key, rank, undecided) if len(set(rank.tolist())) > 1 else key
    assert np.array_equal(lowered, expected)
    assert np.array_equal(by_class(key, rank, None), by_class(key, rank, np.ones(n, np.bool_)))
    order = np.lexsort((seq, key, rank, lowered)).tolist()
    for most in (0, 1, n // 3, n, n + 1):
        assert first_places(key=key, lowered=lowered, rank=rank, seq=seq, k=most).tolist() == order[:most]
    queued, slots = n // 2, rng.permutation(n)
    stated = {"class_rank": rank, "seq": seq, "undecided": undecided[slots]}
    found = ranked(key[slots], slots, queued=queued, **stated, most=3)
    assert np.array_equal(found[0], by_class(key[slots], rank[slots], undecided[slots]))
    for part, places, most in ((slots[:queued], found[1], 3), (slots[queued:], found[2], n)):
        lowered_part = found[0][:queued] if places is found[1] else found[0][queued:]
        first = first_places(key=key[part], lowered=lowered_part, rank=rank[part], seq=seq[part], k=most)
        assert np.array_equal(places, first)
    alone = ranked(key, np.arange(n), queued=n, class_rank=None, seq=seq, undecided=None, most=n)
    assert alone[1].tolist() == top_k(key, seq, n).tolist()
    fits = {"key": key, "lowered": lowered, "rank": rank, "seq": seq}
    for wrong in ({"lowered": lowered[1:]}, {"seq": seq[1:]}):
        if n:
            with pytest.raises(ValueError, match="there must be one for each key"):
                first_places(**(fits | wrong), k=1)
