"""Foreseen occupancy against drawn lengths, against the exact reservation, and whom it lets in against plain sums."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.kernels.kv_reservation import KvReservation
from sloserve.lso.forecast import AHEAD, counted_once, how_many_fit, how_many_fit_to_the_end, occupancy
from sloserve.lso.lengths import Lengths
from tests.snapshots import make_snapshot

BLOCK = 16
LAYOUT = KVLayout.full(BLOCK)
KNOWN = Lengths("oracle", 0.0, seed=0)
PREDICTED = Lengths("predicted", 0.0, seed=0)
"""Learnt from nobody."""


def learnt(ended: list[int]) -> Lengths:
    lengths = Lengths("predicted", 0.0, seed=0)
    rows = make_snapshot(running=[{"max_tokens": 10**6}]).rows
    for tokens in ended:
        rows.output_tokens[0] = tokens
        lengths.observe(rows, 0)
    return lengths


def test_occupancy_is_that_of_drawn_lengths() -> None:
    rng = np.random.default_rng(1)
    ended = rng.geometric(1 / 150, 512)
    at = make_snapshot(running=[{"prompt_tokens": 100, "output_tokens": 40, "max_tokens": 10**6}])
    mean, variance = occupancy(learnt(ended.tolist()), at.rows, at.running, LAYOUT)
    assert mean.shape == variance.shape == (1, AHEAD.size)
    drawn = rng.choice(ended[ended > 40], 20_000) - 40
    until = np.append(AHEAD[1:], AHEAD[-1])
    held = np.where(drawn[:, None] > AHEAD, (140 + (AHEAD + until) / 2) / BLOCK + 0.5, 0.0)
    # The learnt curve is mixed with a prior worth four requests, and is looked up for every eighth length.
    np.testing.assert_allclose(mean[0], held.mean(axis=0), atol=0.5)
    later = AHEAD >= 8
    np.testing.assert_allclose(np.sqrt(variance[0])[later], held.std(axis=0)[later], atol=0.9)


def test_known_lengths_are_exact_and_certain() -> None:
    running = [
        {"prompt_tokens": p, "output_tokens": d, "oracle_output_tokens": n, "computed_tokens": p + d - 1}
        for p, d, n in ((16, 5, 50), (100, 1, 400), (7, 20, 27), (300, 90, 99))
    ]
    at = make_snapshot(running=running)
    mean, variance = occupancy(KNOWN, at.rows, at.running, LAYOUT)
    assert not variance.any()
    exact = KvReservation(1000, BLOCK)
    left = at.rows.oracle_output_tokens[at.running] - at.rows.output_tokens[at.running]
    tokens = at.rows.prompt_tokens[at.running] + at.rows.output_tokens[at.running]
    exact.put(at.running, tokens, grow_steps=left)
    for i, (ahead, until) in enumerate(pairwise(AHEAD[AHEAD < 400].tolist())):
        # Halfway to the next step looked at, and for each a block that is half full.
        slack = len(running) * (0.5 + (until - ahead) / 2 / BLOCK)
        assert abs(float(mean[:, i].sum()) - (1000 - exact.headroom(ahead))) <= slack, ahead
    np.testing.assert_allclose(KNOWN.left(at.rows, at.running), left)


def test_an_error_spreads_what_is_stated_and_who_states_nothing_is_predicted() -> None:
    at = make_snapshot(running=[{"oracle_output_tokens": 200}, {"oracle_output_tokens": -1}])
    erring = Lengths("oracle", 0.3, seed=1)
    assert KNOWN.left(at.rows, at.running)[0] == 200.0
    predicted = PREDICTED.left(at.rows, at.running)
    for one in (KNOWN, erring):
        assert one.left(at.rows, at.running)[1] == predicted[1]
    assert not occupancy(KNOWN, at.rows, at.running, LAYOUT)[1][0].any()
    assert occupancy(erring, at.rows, at.running, LAYOUT)[1][0].any()


def test_max_tokens_is_the_end_of_all() -> None:
    at = make_snapshot(running=[{"max_tokens": 30, "output_tokens": 10}])
    mean, _ = occupancy(PREDICTED, at.rows, at.running, LAYOUT)
    assert (mean[0, AHEAD < 20] > 0.0).all() and not mean[0, AHEAD >= 20].any()


@given(
    st.integers(0, 5),
    st.integers(0, 6),
    st.integers(1, 4),
    st.floats(0.0, 100.0),
    st.sampled_from([0.0, 1.0, 2.5]),
    st.integers(0, 2**32 - 1),
)
def test_who_fits_is_who_fits_one_by_one(
    running: int, asked: int, steps: int, capacity: float, sigmas: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    held, wanted = ((rng.uniform(0, 9, (n, steps)), rng.uniform(0, 9, (n, steps))) for n in (running, asked))
    fit = 0
    for n in range(1, asked + 1):
        mean = held[0].sum(0) + wanted[0][:n].sum(0)
        spread = np.sqrt(held[1].sum(0) + wanted[1][:n].sum(0))
        if (mean + sigmas * spread > capacity + 1e-9).any():
            break
        fit = n
    total = held[0].sum(0), held[1].sum(0)
    assert how_many_fit(total, wanted, capacity + 1e-9, sigmas) == fit


@pytest.mark.parametrize("seed", range(5))
def test_the_compiled_sum_lets_in_whom_the_plain_one_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = learnt(rng.geometric(1 / 200, 64).tolist())

    def some(n: int) -> list[dict[str, int]]:
        tokens = rng.integers(1, 900, (n, 2)).tolist()
        return [{"max_tokens": 4000, "prompt_tokens": p, "output_tokens": out} for p, out in tokens]

    at = make_snapshot(some(20), some(12), max_num_seqs=32)
    slots = np.concatenate((at.waiting, at.running))
    runs = lengths.chances(at.rows, slots, AHEAD)
    context = at.rows.prompt_tokens[slots] + at.rows.output_tokens[slots]
    asked, held = rng.permutation(20), 20 + rng.permutation(12)
    beside = occupancy(lengths, at.rows, slots[held], LAYOUT)
    total, wanted = (beside[0].sum(0), beside[1].sum(0)), occupancy(lengths, at.rows, slots[asked], LAYOUT)
    found = {
        capacity: how_many_fit_to_the_end(runs, context, LAYOUT, held, asked, capacity, 1.0)
        for capacity in range(300, 2100, 150)
    }
    assert found == {capacity: how_many_fit(total, wanted, capacity, 1.0) for capacity in found}
    assert 0 in found.values() and len(set(found.values())) > 5
    with pytest.raises(ValueError, match="place 32 of 32"):
        how_many_fit_to_the_end(runs, context, LAYOUT, held, asked + 13, 9e9, 1.0)


@pytest.mark.parametrize("sigmas", [0.0, 2.0])
def test_errors_even_out_over_many_requests(sigmas: float) -> None:
    """What has to be kept free for the spread is a smaller share of a larger cache."""
    lengths = learnt(np.random.default_rng(2).geometric(1 / 200, 256).tolist())

    def share(n: int) -> float:
        at = make_snapshot([{"max_tokens": 4000, "prompt_tokens": 160}] * n, max_num_seqs=n)
        asked = occupancy(lengths, at.rows, at.waiting, LAYOUT)
        none = (np.zeros(AHEAD.size), np.zeros(AHEAD.size))
        return how_many_fit(none, asked, n * 8.0, sigmas) / n

    assert share(400) > share(25) if sigmas else share(400) == pytest.approx(share(25), abs=0.05)


def test_blocks_of_a_shared_prefix_count_once() -> None:
    """Four requests of 100 blocks each share 90 of them, and hold 130 together."""
    running = [{"prompt_tokens": 100 * BLOCK, "kv_blocks": 100} for _ in range(4)]
    at = replace(make_snapshot(running=running), shared_blocks=3 * 90)
    context = at.rows.prompt_tokens[at.running]
    assert counted_once(at, context, at.running).sum() / BLOCK == pytest.approx(130, abs=1)
    assert counted_once(replace(at, shared_blocks=0), context, at.running) is context
    assert counted_once(at, context[:0], at.running[:0]).size == 0


def test_no_request_counts_less_than_nothing() -> None:
    at = replace(make_snapshot(running=[{"prompt_tokens": BLOCK, "kv_blocks": 2}]), shared_blocks=99)
    assert counted_once(at, at.rows.prompt_tokens[at.running], at.running).tolist() == [0]
