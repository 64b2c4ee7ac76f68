"""Three ledgers of promises: what fits, what is left, and that each admits no less than the one before it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.kv_reservation import FOREVER, KvReservation
from sloserve.scheduler.papers.reservations import Exact, Future, Hosting, make_ledger
from sloserve.scheduler.policy import NO_SLOTS

BLOCK_SIZE = 4
NOBODY = (NO_SLOTS, NO_SLOTS, NO_SLOTS)


def column(*values: int) -> IntArray:
    return np.array(values, np.int64)


def stated(ledger: Exact, capacity: int, tokens: IntArray) -> Exact:
    """Nobody is granted; each of slots 0, 1, ... holds ``tokens``."""
    ledger.state(capacity, NOBODY, (np.arange(tokens.size), tokens))
    return ledger


@pytest.mark.parametrize("pipeline", ["none", "hosting"])
def test_grants_are_a_prefix_and_leave_the_reserve(pipeline: str) -> None:
    tokens, goals = column(8, 8, 8), column(20, 28, 9)
    ledger = stated(make_ledger(pipeline, BLOCK_SIZE), 14, tokens)
    assert ledger.free_blocks == 8
    # 3 blocks more, then 5, then 1.
    assert ledger.grant(np.arange(3), tokens, goals, 1) == 1
    assert ledger.free_blocks == 5
    assert ledger.grant(column(1, 2), tokens[1:], goals[1:], 0) == 1
    assert ledger.free_blocks == 0


@pytest.mark.parametrize("pipeline", ["none", "hosting"])
def test_fill_takes_the_largest_that_fits_again_and_again(pipeline: str) -> None:
    tokens = column(4, 4, 4, 4, 4)
    goals = column(40, 12, 24, 20, 8)  # 9, 2, 5, 4 and 1 more
    ledger = stated(make_ledger(pipeline, BLOCK_SIZE), 13, tokens)
    assert ledger.fill(np.arange(5), tokens, goals, 0).tolist() == [2, 1, 4]
    assert ledger.free_blocks == 0


def test_future_counts_a_promise_as_it_grows() -> None:
    tokens, goals = column(4, 4), column(12, 20)
    # The first has gone when the second needs its fourth block: at no step more than 3 + 3.
    for capacity, fit in ((6, 2), (5, 1)):
        ledger = stated(Future(BLOCK_SIZE), capacity, tokens)
        assert ledger.grant(np.arange(2), tokens, goals, 0) == fit
    assert stated(Exact(BLOCK_SIZE), 7, tokens).grant(np.arange(2), tokens, goals, 0) == 1


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.booleans()), min_size=1, max_size=8),
    st.integers(1, 90),
)
def test_what_future_has_left_fits_forever_and_no_block_more(some: list[tuple[int, int, bool]], capacity: int) -> None:
    tokens = column(*(one[0] for one in some))
    goals = tokens + column(*(one[1] for one in some))
    granted = np.array([one[2] for one in some])
    slots = np.arange(tokens.size)
    ledger = Future(BLOCK_SIZE)
    ledger.state(capacity, (slots[granted], tokens[granted], goals[granted]), (slots[~granted], tokens[~granted]))
    peak = 0
    for step in range(1, 41):
        runs = granted & (step <= goals - tokens)
        held = np.where(runs, tokens + step, np.where(granted, 0, tokens))
        peak = max(peak, int((-(-held // BLOCK_SIZE)).sum()))
    if peak <= capacity:
        assert ledger.free_blocks == capacity - peak
    else:
        assert ledger.free_blocks <= 0


def test_a_guest_takes_nothing_of_what_is_free_and_goes_on_until_its_host_needs_the_span() -> None:
    tokens, goals = column(4, 4, 4), column(36, 10, 21)
    ledger = stated(Hosting(BLOCK_SIZE), 11, tokens)
    slots = np.arange(3)
    assert ledger.grant(slots[:1], tokens[:1], goals[:1], 0) == 1
    assert ledger.free_blocks == 0
    # Of 32 tokens to come the second 16 are lent: 6 and a buffer of 1 fit, 17 do not.
    assert ledger.host(slots[1:], tokens[1:], goals[1:], 0.15).tolist() == [0]
    assert ledger.free_blocks == 0
    granted = slots[:2]
    for done, over in ((6, [False, False]), (15, [False, False]), (16, [False, True])):
        assert ledger.overrun(granted, tokens[:2] + done, goals[:2]).tolist() == over
    # Without it, the span is its host's alone; what it holds counts.
    ledger.release(1)
    ledger.state(11, (slots[:1], tokens[:1] + 16, goals[:1]), (slots[1:], column(20, 4)))
    assert ledger.free_blocks == 11 - 9 - 5 - 1


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 60)), min_size=1, max_size=16),
    st.integers(10, 80),
    st.integers(0, 10),
    st.sampled_from([0.0, 0.15]),
)
def test_whoever_hosting_grants_fits_at_every_future_step(
    some: list[tuple[int, int]], capacity: int, reserve: int, buffer: float
) -> None:
    tokens = column(*(one[0] for one in some))
    goals = tokens + column(*(one[1] for one in some))
    slots = np.arange(tokens.size)
    ledger = stated(Hosting(BLOCK_SIZE), capacity, tokens)
    before = ledger.free_blocks
    fit = ledger.grant(slots, tokens, goals, reserve)
    guests = fit + ledger.host(slots[fit:], tokens[fit:], goals[fit:], buffer)
    if before < 0:
        assert not fit and not guests.size
        return
    granted = np.concatenate((slots[:fit], guests))
    others = np.setdiff1d(slots, granted)
    steps = KvReservation(capacity, BLOCK_SIZE)
    steps.put(others, tokens[others], hold_steps=FOREVER)
    assert steps.admit(granted, tokens[granted], grow_steps=(goals - tokens)[granted]).all()
