"""The compiled KV reservation: against a plain reference, and in a loop that allocates blocks as vLLM does."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.kv_reservation import FOREVER, KvReservation


@dataclass
class Reference:
    """Every request's blocks at every step, summed anew for each answer."""

    capacity: int
    block_size: int
    now: int = 0
    requests: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """tokens, first step of growth, end"""

    def blocks(self, profile: tuple[int, int, int], step: int) -> int:
        tokens, grow_from, end = profile
        if self.now < end <= step:
            return 0
        return -(-(tokens + max(min(step + 1, end) - grow_from, 0)) // self.block_size)

    def occupied(self, step: int) -> int:
        return sum(self.blocks(profile, step) for profile in self.requests.values())

    def horizon(self) -> int:
        ends = [end for _, _, end in self.requests.values() if end != FOREVER]
        return max([self.now, *ends]) + 1

    def put(self, id: int, tokens: int, hold: int, grow: int) -> None:
        grow_from = FOREVER if hold == FOREVER else self.now + hold
        self.requests[id] = tokens, grow_from, FOREVER if hold == FOREVER else grow_from + grow

    def first_over(self, reserve: int) -> int | None:
        over = [s for s in range(self.now, self.horizon() + 1) if self.occupied(s) > self.capacity - reserve]
        return min(over, default=None)

    def fits(self, id: int, tokens: int, hold: int, grow: int, reserve: int) -> bool:
        trial = Reference(self.capacity, self.block_size, self.now, dict(self.requests))
        trial.put(id, tokens, hold, grow)
        end = trial.requests[id][2]
        own = range(self.now, max(trial.horizon() if end in (FOREVER, self.now) else end, self.now + 1))
        return all(trial.occupied(s) <= self.capacity - reserve for s in own)

    def overrunners(self, within: int) -> list[tuple[int, int]]:
        found = []
        for id, (tokens, grow_from, end) in self.requests.items():
            if end <= self.now + within:
                due = end
                while -(-(tokens + due + 1 - grow_from) // self.block_size) <= self.blocks(
                    (tokens, grow_from, end), end - 1
                ):
                    due += 1
                found.append((end, id, due))
        return [(id, due) for _, id, due in sorted(found)]


HOLDS = st.integers(0, 5) | st.just(FOREVER)
REQUESTS = st.tuples(st.integers(0, 7), st.integers(0, 40), HOLDS, st.integers(0, 30))
CHANGES = st.one_of(
    st.tuples(st.just("put"), REQUESTS),
    st.tuples(st.just("admit"), REQUESTS),
    st.tuples(st.just("remove"), st.integers(0, 7)),
    st.tuples(st.just("advance"), st.integers(0, 12)),
)


@given(
    changes=st.lists(CHANGES, max_size=14),
    asked=REQUESTS,
    block_size=st.integers(1, 9),
    reserve=st.integers(0, 4),
    within=st.integers(0, 9),
)
def test_equals_the_reference(changes: list, asked: tuple, block_size: int, reserve: int, within: int) -> None:
    kept, plain = KvReservation(20, block_size), Reference(20, block_size)
    for name, change in changes:
        if name == "put":
            id, tokens, hold, grow = change
            kept.put(id, tokens, hold_steps=hold, grow_steps=grow)
            plain.put(*change)
        elif name == "admit":
            id, tokens, hold, grow = change
            admitted = kept.admit(id, tokens, hold_steps=hold, grow_steps=grow, reserve_blocks=reserve)
            assert admitted.tolist() == [plain.fits(*change, reserve)]
            if admitted[0]:
                plain.put(*change)
        elif name == "remove" and change in plain.requests:
            kept.remove(change)
            del plain.requests[change]
        elif name == "advance":
            plain.now += change
            kept.advance(plain.now)
        steps = range(plain.now, plain.horizon() + 2)
        assert [kept.headroom(s) for s in steps] == [20 - plain.occupied(s) for s in steps]
        assert len(kept) == len(plain.requests)
    assert kept.first_over(reserve) == plain.first_over(reserve)
    ids, due = kept.overrunners(within)
    assert list(zip(ids.tolist(), due.tolist(), strict=True)) == plain.overrunners(within)
    id, tokens, hold, grow = asked
    fits = kept.fits(id, tokens, hold_steps=hold, grow_steps=grow, reserve_blocks=reserve)
    assert fits.tolist() == [plain.fits(*asked, reserve)]
    if hold != FOREVER:
        granted = kept.grantable(id, tokens, hold_steps=hold, up_to=grow, reserve_blocks=reserve)
        most = [n for n in range(max(1 - hold, 0), grow + 1) if plain.fits(id, tokens, hold, n, reserve)]
        assert granted.tolist() == [max(most, default=0)]
    assert [kept.headroom(s) for s in steps] == [20 - plain.occupied(s) for s in steps] if changes else True


@given(
    seed=st.integers(0, 2**32 - 1),
    block_size=st.sampled_from([1, 4, 16]),
    early=st.booleans(),
    reserve=st.integers(0, 9),
)
def test_no_allocation_fails(seed: int, block_size: int, early: bool, reserve: int) -> None:
    """Prompts in chunks, one token a running request and step, blocks as needed; lengths as predicted, or shorter if
    `early`. Pauses keep space that others count on, so they are admitted like anything else.
    """
    rng = np.random.default_rng(seed)
    capacity, n = 300 // block_size + 20, 20
    kept = KvReservation(capacity, block_size)
    prompt, chunk, output = rng.integers(1, 60, n), rng.integers(10, 60, n), rng.integers(1, 60, n)
    computed, given, ends = np.zeros(n, int), np.zeros(n, int), rng.integers(1, output + 1) if early else output
    waiting, running, paused = list(range(n)), list[int](), set[int]()
    for step in range(2000):
        if not waiting and not running:
            return
        kept.advance(step)
        fits = kept.admit(
            waiting,
            prompt[waiting],
            hold_steps=-(-prompt[waiting] // chunk[waiting]),
            grow_steps=output[waiting] - 1,
            reserve_blocks=reserve,
        )
        assert fits[0] if waiting and not running else True
        running += [i for i, fit in zip(waiting, fits, strict=True) if fit]
        waiting = [i for i, fit in zip(waiting, fits, strict=True) if not fit]
        for i in running:
            if i in paused and kept.admit(i, computed[i], grow_steps=output[i] - given[i])[0]:
                paused.remove(i)
            elif (
                given[i]
                and len(paused) < 2
                and rng.random() < 0.1
                and kept.admit(i, computed[i], hold_steps=FOREVER)[0]
            ):
                paused.add(i)
        for i in set(running) - paused:
            computed[i] = computed[i] + 1 if given[i] else min(computed[i] + chunk[i], prompt[i])
        held = sum(-(-computed[i] // block_size) for i in running)
        assert held <= capacity - kept.headroom(step) and kept.first_over() is None
        for i in [i for i in running if i not in paused and computed[i] >= prompt[i]]:
            given[i] += 1
            if given[i] == ends[i]:
                running.remove(i)
                kept.remove(i)
    raise AssertionError(f"left over: {waiting} and {running}")


def test_an_early_end_frees_at_once() -> None:
    kept = KvReservation(10, 4)
    kept.put([1, 2], [8, 8], grow_steps=[24, 4])
    assert [kept.headroom(s) for s in (0, 4, 23)] == [4, 6, 2]
    kept.remove(1)
    assert [kept.headroom(s) for s in (0, 3, 4)] == [7, 7, 10] and 1 not in kept and 2 in kept


def test_an_overrun_is_told_before_space_is_missing() -> None:
    """1 was to end before step 6, and goes on; 2 needs its blocks at step 8."""
    kept = KvReservation(5, 4)
    assert kept.admit([1, 2], [4, 0], grow_steps=[6, 16]).tolist() == [True, True]
    kept.advance(5)
    assert kept.overrunners()[0].tolist() == [] and kept.first_over() is None
    assert [column.tolist() for column in kept.overrunners(1)] == [[1], [8]]
    kept.advance(6)
    ids, due = kept.overrunners()
    assert ids.tolist() == [1] and due.tolist() == [8], "its third block has room for two tokens more"
    assert kept.headroom(6) == 5 - 3 - 2 and kept.first_over() == 8, "2 takes its third block then"
    assert kept.grantable(1, 10, up_to=50).tolist() == [2]
    kept.put(1, 10, grow_steps=2)
    assert kept.first_over() is None
    kept.advance(8)
    assert kept.first_over() == 8 and kept.headroom(8) == -1
    kept.remove(1)
    assert kept.first_over() is None


def test_a_reserve_is_left_by_admission_and_used_by_overruns() -> None:
    kept = KvReservation(10, 1)
    assert kept.admit([1, 2], 1, grow_steps=[3, 3], reserve_blocks=3).tolist() == [True, False]
    kept.advance(3)
    assert kept.grantable(1, 4, up_to=20, reserve_blocks=3).tolist() == [3]
    assert kept.grantable(1, 4, up_to=20).tolist() == [6]


def test_candidates_after_a_misfit_are_tried_or_not() -> None:
    for stop, expected in ((False, [True, False, True]), (True, [True, False, False])):
        kept = KvReservation(10, 1)
        admitted = kept.admit([1, 2, 3], 1, grow_steps=[4, 20, 4], stop_at_misfit=stop)
        assert admitted.dtype == np.bool_ and admitted.tolist() == expected


def test_fractions_are_rounded_up() -> None:
    kept = KvReservation(3, 1)
    assert kept.fits([0, 0], 1, grow_steps=[2.0, 2.01]).tolist() == [True, False]


def touched(kept: KvReservation, ask: Callable[[], object]) -> int:
    before = kept.visited_steps
    ask()
    return kept.visited_steps - before


@pytest.mark.parametrize("live", [1, 10, 100, 2000])
def test_a_request_costs_its_own_steps_whatever_the_others(live: int) -> None:
    rng = np.random.default_rng(live)
    kept = KvReservation(2**24, 16)
    kept.put(np.arange(live), rng.integers(1, 4000, live), grow_steps=rng.integers(1, 4000, live))
    kept.put(-1, 100, grow_steps=4000)
    assert touched(kept, lambda: kept.admit(5000, 333, hold_steps=2, grow_steps=150)) == 2 * 152
    assert touched(kept, lambda: kept.fits(5000, 333, grow_steps=150)) == 152 + 150 + 152
    assert touched(kept, lambda: kept.put(5000, 333, hold_steps=FOREVER)) == 152
    assert touched(kept, lambda: kept.grantable(5000, 333, up_to=150)) == 150
    assert touched(kept, lambda: kept.remove(5000)) == 0
    assert touched(kept, lambda: kept.advance(3)) == 0
    assert touched(kept, lambda: kept.first_over()) == 3997


def test_long_runs_forget_the_past() -> None:
    kept = KvReservation(100, 16, now=10**15)
    for step in range(10**15, 10**15 + 3000, 7):
        kept.advance(step)
        kept.put(0, 5, grow_steps=20)
        assert [kept.headroom(step + s) for s in (0, 10, 11, 19, 20)] == [99, 99, 98, 98, 100]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda kept: kept.put(1, -1), "tokens: -1 is not within 0 to 16777216"),
        (lambda kept: kept.put(1, 1, grow_steps=2**25), "grow_steps: 33554432 is not within"),
        (lambda kept: kept.fits(1, 1, hold_steps=-1), "hold_steps: -1 is not within"),
        (lambda kept: kept.fits(1, 1, reserve_blocks=11), "reserve_blocks: 11 is not within 0 to 10"),
        (lambda kept: kept.remove(1), "id: 1 is not known"),
        (lambda kept: kept.advance(-1), "step: -1 is not within 0 to"),
        (lambda kept: kept.headroom(-1), "step: -1 is not within 0 to"),
        (lambda kept: kept.put(np.arange(129), 2**24), "tokens: the requests would hold 2147483648 blocks"),
        (lambda kept: KvReservation(0, 16), "capacity_blocks: 0 is not within 1 to 2147483647"),
        (lambda kept: KvReservation(1, 0), "block_size: 0 is not within"),
    ],
)
def test_refuses(call: Callable[[KvReservation], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(KvReservation(10, 1))
