"""Hosting in lent spans: the paper's lengths, no block needed twice, and the general form admits as much."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.kv_reservation import KvHosting, KvReservation


def hosted_lengths(host: int, lengths: list[int], buffer: int = 0) -> list[tuple[int, int]]:
    """Length and host of each guest, with blocks of one token; the host has id -1, candidate i the id i."""
    spans = KvHosting(1000, 1)
    assert spans.allocate(-1, 0, grow_steps=host)[0]
    taken, hosts = spans.host(np.arange(len(lengths)), 0, grow_steps=lengths, buffer_tokens=buffer)
    return [(lengths[i], int(h)) for i, h in zip(taken, hosts, strict=True)]


def test_lengths_of_the_papers_figure() -> None:
    """Fig. 7: a request of 32 hosts one of 16; each of the halves one of 8, and so on: 1, 2, 4, 8 guests, not more."""
    guests = hosted_lengths(32, [16] * 3 + [8] * 3 + [4] * 5 + [2] * 9)
    assert [length for length, _ in guests] == [16] + [8] * 2 + [4] * 4 + [2] * 8
    assert guests[:3] == [(16, -1), (8, -1), (8, 0)]


def test_the_closest_length_below_half_less_the_buffer() -> None:
    assert hosted_lengths(32, [3, 14, 12, 13, 12], buffer=3)[0] == (13, -1)
    assert hosted_lengths(32, [6, 5], buffer=3) == [(6, -1), (5, -1)], "16 - 3, 8 - 3"
    assert hosted_lengths(32, [14], buffer=3) == [] and hosted_lengths(1, [1]) == []


def test_the_quarter_is_of_the_span_not_of_the_guest() -> None:
    assert hosted_lengths(32, [16 - 2, 8 - 2, 8 - 2], buffer=2) == [(14, -1), (6, -1), (6, 0)]


def test_of_equals_the_first_in_the_queue() -> None:
    spans = KvHosting(100, 1)
    spans.allocate([7, 8], 0, grow_steps=8)
    taken, hosts = spans.host([1, 2, 3, 4], 0, grow_steps=[3, 4, 4, 4], buffer_tokens=0)
    assert taken.tolist()[:2] == [1, 2] and hosts.tolist()[:2] == [7, 8]


def test_blocks_are_lent_whole() -> None:
    """5 blocks to come: the last two are lent, then one of the other three; what is held already takes its own."""
    spans = KvHosting(40, 16)
    assert spans.allocate(0, 10, grow_steps=6 + 5 * 16)[0] and spans.free_blocks == 34
    taken, hosts = spans.host([1, 2, 3], [20, 0, 0], grow_steps=[33, 32, 17], buffer_tokens=0)
    assert (taken.tolist(), hosts.tolist()) == ([1], [0]) and spans.free_blocks == 34
    taken, _ = spans.host([1, 3], [20, 0], grow_steps=[16, 17], buffer_tokens=0)
    assert taken.tolist() == [0] and spans.free_blocks == 32, "two blocks for the 20 tokens it holds"


def test_what_a_candidate_holds_must_be_its_own_or_free() -> None:
    spans = KvHosting(10, 1)
    assert spans.allocate([1, 2], [3, 0], grow_steps=[0, 6]).tolist() == [True, True] and spans.free_blocks == 1
    taken, _ = spans.host([3, 1], [2, 3], grow_steps=[3, 2], buffer_tokens=0)
    assert taken.tolist() == [1] and spans.free_blocks == 1
    with pytest.raises(ValueError, match="id: 1 grows already; allocate it with 0 grow_steps before it is hosted"):
        spans.host(1, 5, grow_steps=1, buffer_tokens=0)


def test_spans_are_lent_in_the_step_in_which_their_owner_starts() -> None:
    spans = KvHosting(100, 1)
    spans.allocate(0, 0, grow_steps=32)
    spans.advance(1)
    assert spans.host(1, 0, grow_steps=2, buffer_tokens=0)[0].size == 0


def test_a_guest_that_overruns_is_told_before_its_host_needs_the_space() -> None:
    spans = KvHosting(100, 1)
    spans.allocate(0, 0, grow_steps=32)
    spans.host([1, 2], 0, grow_steps=[12, 7], buffer_tokens=1)
    spans.advance(7)
    assert spans.overrunners()[0].size == 0
    assert [column.tolist() for column in spans.overrunners(1)] == [[2], [8]]
    spans.remove(2)
    assert [column.tolist() for column in spans.overrunners(30)] == [[1, 0], [16, 32]]
    assert spans.allocate(1, 7, grow_steps=9)[0], "blocks of its own"
    assert spans.overrunners(9)[0].tolist() == [1] and spans.free_blocks == 100 - 32 - 16


def test_an_early_end_frees_all_but_what_guests_grow_in() -> None:
    spans = KvHosting(100, 1)
    spans.allocate(0, 4, grow_steps=32)
    spans.host([1, 2, 3], 0, grow_steps=[16, 8, 8], buffer_tokens=0)
    assert spans.free_blocks == 64
    spans.remove(0)
    assert spans.free_blocks == 100 - 16 - 8 and spans.overrunners(16)[0].tolist() == [2, 3, 1]
    spans.remove(1)
    assert spans.free_blocks == 100 - 8 - 8
    spans.remove([2, 3])
    assert spans.free_blocks == 100 and len(spans) == 0


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32 - 1),
    block_size=st.sampled_from([1, 2, 16]),
    capacity=st.integers(20, 120),
    early=st.booleans(),
    reserve=st.integers(0, 9),
)
def test_no_two_need_one_block_and_the_general_form_admits_the_same(
    seed: int, block_size: int, capacity: int, early: bool, reserve: int
) -> None:
    """Predictions hold, or requests end early; some wait with their prompt in the cache before they decode."""
    rng = np.random.default_rng(seed)
    spans, kept = KvHosting(capacity, block_size), KvReservation(capacity, block_size)
    n = 120
    tokens, grow = rng.integers(0, 3 * block_size, n), rng.integers(1, capacity * block_size // 2, n)
    buffer = rng.integers(0, 1 + 3 * block_size, n)
    ends, waiting = dict[int, int](), list(range(n))
    for step in range(40):
        spans.advance(step)
        kept.advance(step)
        for own in [i for i in waiting if rng.random() < 0.1][:3]:
            if spans.allocate(own, tokens[own], reserve_blocks=reserve)[0]:
                assert kept.admit(own, tokens[own], hold_steps=2**62)[0]
        queue = [i for i in waiting if rng.random() < 0.3]
        own = [
            i
            for i, fits in zip(queue, spans.allocate(queue, tokens[queue], grow_steps=grow[queue]), strict=True)
            if fits
        ]
        rest = [i for i in waiting if i not in own]
        taken, _ = spans.host(rest, tokens[rest], grow_steps=grow[rest], buffer_tokens=buffer[rest])
        for i in [*own, *(rest[j] for j in taken)]:
            assert kept.admit(i, tokens[i], grow_steps=grow[i])[0], f"step {step}"
            ends[i] = step + (int(rng.integers(1, grow[i] + 1)) if early else int(grow[i]))
            waiting.remove(i)
        assert spans.overrunners()[0].size == 0 and 0 <= spans.free_blocks <= kept.headroom(step)
        for i in [i for i, end in ends.items() if end == step + 1]:
            spans.remove(i)
            kept.remove(i)
            del ends[i]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda spans: spans.host(1, 0, grow_steps=0, buffer_tokens=0), "grow_steps: 0 is not within 1 to 16777216"),
        (lambda spans: spans.host(1, 0, grow_steps=1, buffer_tokens=-1), "buffer_tokens: -1 is not within"),
        (lambda spans: spans.allocate(1, 1, reserve_blocks=11), "reserve_blocks: 11 is not within 0 to 10"),
        (lambda spans: spans.remove(1), "id: 1 is not known"),
    ],
)
def test_refuses(call: Callable[[KvHosting], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(KvHosting(10, 1))
