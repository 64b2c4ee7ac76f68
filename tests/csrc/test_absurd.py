"""What no caller should send: each kernel refuses it in words, or answers, and reads no memory that is not its own.

The last is seen where test_sanitized.py runs this file on an extension that is built with sanitizers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.kernels import (
    WorthColumns,
    WorthEngine,
    _csrc,
    how_many_fit,
    rank,
    requests,
    step_budget,
    survival,
    worth,
)
from sloserve.core.kernels.anneal import BatchRequests, Cooling, anneal, exhaustive
from sloserve.core.kernels.digest import DigestCurves, Replies
from sloserve.core.kernels.fleet import FleetProblem, fleet_search
from sloserve.core.kernels.knapsack import pack_exact
from sloserve.core.kernels.kv_copy import Region, copy_blocks
from sloserve.core.kernels.kv_layout import KVGroups, KVLayout
from sloserve.core.kernels.kv_reservation import FOREVER, KvHosting, KvReservation
from sloserve.estimator.length.remaining import KnownRequests
from tests.csrc.facts import COUNTED, ENGINE, PROGRESS, REPLY, STATED

pytestmark = pytest.mark.slow

CALLS = 400
REFUSED = (ValueError, TypeError, IndexError, OverflowError)
_INT64 = np.iinfo(np.int64)
INTS = (-1, -7, 2**24 + 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**61, 2**62, _INT64.max, _INT64.min, _INT64.min + 1)
FLOATS = (0.0, -0.0, -1.0, 5e-324, 1e-300, 1e12, 1e300, np.finfo(np.float64).max, np.inf, -np.inf, np.nan)


class Draw:
    """Arguments that fit together and make sense, but for some that do not."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.absurd = seed % 4 != 0  # else all make sense
        self.n = int(self.rng.choice([0, 1, 2, 5, 9, 150]))
        self.capacity = self.n + int(self.rng.integers(0, 3))

    def strikes(self, chance: float = 0.04) -> bool:
        return self.absurd and self.rng.random() < chance

    def int(self, low: int = 0, high: int = 300, pool: tuple[int, ...] = INTS) -> int:
        return int(self.rng.choice(pool)) if self.strikes() else int(self.rng.integers(low, high + 1))

    def float(self, low: float = 0.0, high: float = 9.0) -> float:
        return float(self.rng.choice(FLOATS)) if self.strikes() else float(self.rng.uniform(low, high))

    def size(self, n: int) -> int:
        return max(n + int(self.rng.choice([-1, 1])), 0) if self.strikes(0.02) else n

    def ints(self, n: int, low: int = 0, high: int = 300, pool: tuple[int, ...] = INTS) -> IntArray:
        found = self.rng.integers(low, high + 1, self.size(n))
        if found.size and self.strikes():
            found[self.rng.integers(found.size)] = self.rng.choice(pool)
        return found

    def floats(self, n: int, low: float = 0.0, high: float = 9.0) -> FloatArray:
        found = self.rng.uniform(low, high, self.size(n))
        found[self.rng.random(found.size) < 0.1] = np.nan if self.absurd else high
        if found.size and self.strikes():
            found[self.rng.integers(found.size)] = self.rng.choice(FLOATS)
        return found

    def bools(self, n: int) -> Any:
        return self.rng.random(self.size(n)) < 0.5

    def slots(self) -> IntArray:
        found = self.rng.permutation(self.capacity)[: self.size(self.n)]
        if found.size and self.strikes():
            found[self.rng.integers(found.size)] = self.rng.choice((self.capacity, *INTS))
        return found

    def stated(self) -> dict[str, FloatArray]:
        return {name: self.floats(self.capacity) for name in STATED}

    def promises(self) -> step_budget.PromiseColumns:
        stated, output_tokens, in_flight_tokens = self.stated(), self.ints(self.capacity), self.ints(self.capacity)
        return step_budget.PromiseColumns(**stated, output_tokens=output_tokens, in_flight_tokens=in_flight_tokens)

    def progress(self) -> requests.ProgressColumns:
        return requests.ProgressColumns(**{name: self.ints(self.capacity) for name in PROGRESS})

    def lengths(self) -> KnownRequests:
        return KnownRequests(
            class_id=self.ints(self.capacity, 0, 1),
            output_tokens=self.ints(self.capacity),
            max_tokens=self.ints(self.capacity),
        )

    def layout(self) -> KVLayout:
        """Of a KV cache, of one or several groups."""
        if self.rng.random() < 0.5:
            return KVLayout.full(self.int(1, 20))
        rules = [(0, 0, 0), (self.int(1, 90), 0, 0), (0, self.int(1, 90), 0), (0, 0, self.int(1, 3))]
        groups = [
            KVGroups(self.int(1, 5), self.int(1, 20), *rules[self.rng.integers(4)], *(self.int(0, 1) for _ in range(4)))
            for _ in range(int(self.rng.integers(1, 4)))
        ]
        return KVLayout(tuple(groups), self.int(0, 4), self.int(1, 2000))

    def table(self, rows: int, columns: int) -> FloatArray:
        return np.cumprod(self.rng.uniform(0.5, 1.0, (self.size(rows), self.size(columns))), axis=1) * self.float(
            0.9, 1.0
        )

    def chances(self) -> Any:
        ahead = np.unique(self.rng.integers(0, 200, self.size(6)))
        if ahead.size and not self.strikes(0.1):
            ahead[0] = 0
        if ahead.size and self.strikes():
            ahead[self.rng.integers(ahead.size)] = self.rng.choice(INTS)
        lengths = self.lengths()
        known = (self.table(3, ahead.size), self.ints(self.n, -1, 2)) if self.rng.random() < 0.5 else None
        return survival.chances(self.table(2, 12), self.int(8, 8), lengths, self.slots(), ahead, known), ahead.size


def are_places(found: IntArray, n: int, most: int | None = None) -> None:
    """Each once, all from 0 to n - 1."""
    assert len(set(found.tolist())) == found.size <= (n if most is None else min(n, most))
    assert not found.size or (found.min() >= 0 and found.max() < n)


def ranking(draw: Draw) -> None:
    keys, seqs, k = draw.floats(draw.n, -5.0), draw.ints(draw.n), draw.int(0, draw.n)
    are_places(rank.top_k(keys, seqs, k), keys.size, k)
    key, ranks, undecided = draw.floats(draw.n), draw.ints(draw.n, 0, 2), draw.bools(draw.n)
    lowered = rank.by_class(key, ranks, undecided)
    assert lowered.size == key.size
    are_places(rank.first_places(key=key, lowered=lowered, rank=ranks, seq=seqs, k=k), key.size, k)
    slots, queued = draw.slots(), draw.int(0, draw.n)
    column = draw.ints(draw.capacity, 0, 2)
    seq = draw.ints(draw.capacity)
    found = rank.ranked(key, slots, queued=queued, class_rank=column, seq=seq, undecided=undecided, most=k)
    are_places(found[1], queued, k)
    assert sorted(found[2].tolist()) == list(range(key.size - queued))


def columns_of_requests(draw: Draw) -> None:
    progress, slots = draw.progress(), draw.slots()
    context, left = requests.context_and_uncomputed(progress, slots)
    assert (left >= 0).all() and (context >= 0).all() and requests.uncomputed_tokens(progress, slots).size == slots.size
    assert requests.tokens_without_kv(progress, slots).size == slots.size
    decodes, prompts, tokens = requests.split_running(progress, slots)
    assert sorted([*decodes, *prompts]) == sorted(slots) and tokens >= 0
    room = {"free_blocks": draw.int(), "layout": draw.layout(), "token_budget": draw.int()}
    order = requests.service_order(progress, draw.bools(draw.capacity), slots, **room, decode_tokens=draw.int(1, 3))
    assert not order.size or sorted(order) == sorted(slots)


def columns_of_targets(draw: Draw) -> None:
    slots = draw.slots()
    assert requests.token_pace(draw.floats(draw.capacity), draw.floats(draw.capacity), slots).size == slots.size
    targets = {name: draw.floats(draw.capacity) for name in ("ttft_s", "tpot_s", "e2e_s", "tds")}
    assert requests.without_targets(slots, **targets).size == slots.size
    state = draw.ints(draw.capacity, 0, 4, pool=(-128, -1, 63, 64, 127)).astype(np.int8)
    requests.slots_misused(slots, state, 1, 2)


def lengths(draw: Draw) -> None:
    chances, steps = draw.chances()
    matrix = chances.matrix()
    assert matrix.size % max(steps, 1) == 0
    columns = draw.lengths()
    longer, slots = draw.table(2, 12), draw.slots()
    mean = survival.mean_left(longer, longer * 9.0, draw.int(8, 8), columns, slots)
    assert mean.size == slots.size
    held, asked = (draw.ints(draw.n // 2, 0, draw.n - 1) if draw.n > 1 else np.zeros(0, np.int64) for _ in range(2))
    fit = how_many_fit(
        chances,
        draw.layout(),
        tokens=draw.ints(draw.n),
        grown=draw.floats(steps),
        held=held,
        asked=asked,
        capacity=draw.float(),
        sigmas=draw.float(),
    )
    assert 0 <= fit <= asked.size


def gain_and_cost(draw: Draw) -> None:
    chances, _ = draw.chances()
    columns = WorthColumns(**draw.stated(), **{name: draw.ints(draw.capacity) for name in COUNTED})
    queued = draw.int(0, draw.n)
    gain, cost, urgency, _ = worth(
        chances,
        draw.layout(),
        WorthEngine(**dict(zip(ENGINE, draw.floats(len(ENGINE), 0.01).tolist(), strict=False))),
        columns,
        queued=queued,
        left=draw.floats(draw.n, 1.0),
        per_step=draw.floats(draw.n),
        prefill=draw.ints(draw.n),
        again_s=draw.floats(max(draw.n - queued, 0)),
        weights=draw.floats(3),
        now_s=draw.float(),
    )
    assert gain.size == cost.size == urgency.size == draw.n


def decodes(draw: Draw) -> None:
    promises, slots = draw.promises(), draw.slots()
    step_budget.any_promised(promises, slots)
    times = {
        "starts_s": draw.float(),
        "alone_s": draw.float(0.001, 0.1),
        "headroom": draw.float(),
        "spend_tokens": 64.0,
    }
    left, per_step = draw.floats(draw.n, 1.0, 99.0), draw.floats(draw.n)
    found = step_budget.decoding(promises, slots, left=left, per_step=per_step, **times)
    bearable = [found.bearable_s(place) for place in range(len(found))]
    assert bearable == sorted(bearable) and len(found) <= slots.size
    lost = found.lost(step_s=draw.float(), rate=draw.float(0.1), pending=draw.float(), arrival_rate=draw.float())
    assert 0 <= lost <= len(found) - found.lost_already


def prompts(draw: Draw) -> None:
    progress, slots = draw.progress(), draw.slots()
    room = {"layout": draw.layout(), "free_blocks": draw.int(0, 900)}
    found = step_budget.step_prompts(progress, slots[: draw.n // 2], slots[draw.n // 2 :], **room)
    assert set(found.slots.tolist()) <= set(slots.tolist()) and found.startable <= slots.size
    ends = [found.end(place) for place in range(len(found))]
    assert ends == sorted(ends) and all(found.prefix(place) >= 0 for place in range(len(found)))
    tokens, chunks, pairs = found.load(draw.int())
    assert 0 <= tokens <= (ends or [0])[-1] and 0 <= chunks <= len(found) and pairs >= 0
    found.promise(draw.promises(), left=draw.floats(len(found)), step_s=draw.float(), starts_s=draw.float())
    assert 0 <= found.late(draw.float(), draw.float()) <= len(found)
    assert 0 <= found.late_by_token(draw.float(), draw.float()) <= len(found)
    if ends:
        found.end(draw.int(0, len(ends) - 1))


def digests(draw: Draw) -> None:
    curves, slots = DigestCurves(), draw.slots()
    curves.reset(draw.capacity)
    for _ in range(2):
        curves.deliver(slots, draw.ints(draw.n, 1, 5), draw.floats(draw.n), draw.floats(draw.n, 1.0))
    columns = {name: draw.rng.uniform(1.0, 9.0, draw.size(slots.size)) for name in REPLY}
    if slots.size and draw.strikes():
        columns[REPLY[draw.rng.integers(len(REPLY))]][0:1] = draw.rng.choice(FLOATS)
    replies = Replies.of(slots, **columns)
    serve, wait = curves.foresee(replies, draw.floats(3, 0.1), draw.float(), alpha=draw.float(0.5, 1.0))
    assert serve.shape == (3, slots.size) or draw.absurd
    assert wait.size == curves.current(replies, alpha=draw.float(0.5, 1.0)).size == slots.size


def exact_packs(draw: Draw) -> None:
    n, heavy = min(draw.n, 9), (-1, 0, 2**40, 2**62, _INT64.max)  # weights between are tables of a GiB
    gain, weight = draw.floats(n, -1.0), draw.ints(n, 1, 40, heavy)
    most = draw.int(0, n)
    found = pack_exact(gain, weight, draw.int(0, 100, heavy), most, at_most=bool(draw.rng.random() < 0.5))
    if found is not None:
        are_places(found, gain.size, most)


def batches(draw: Draw) -> None:
    n = min(draw.n, 9)
    rows = draw.rng.uniform(0.0, 1.0, (draw.size(9), n))
    if rows.size and draw.strikes(0.3):
        rows[draw.rng.integers(len(rows)), draw.rng.integers(n)] = draw.rng.choice(FLOATS)
    fixed, batch = draw.int(0, min(n, 1)), draw.int(1, 4)
    cooling = Cooling(
        draw.float(0.1, 0.6), max(draw.float(0.05, 0.1), 1e-3), draw.float(0.3, 0.9), draw.int(0, 9, (-1,))
    )
    for found in (
        anneal(BatchRequests(rows), batch, fixed=fixed, cooling=cooling, seed=3),
        *([exhaustive(BatchRequests(rows[:, :5].copy()), batch, fixed=fixed)] if draw.rng.random() < 0.2 else ()),
    ):
        are_places(found.order, n)
        assert int(found.sizes.sum()) == found.order.size


def fleets(draw: Draw) -> None:
    groups, instances, models = min(draw.n, 9), int(draw.rng.integers(0, 4)), int(draw.rng.integers(1, 4))
    swap = np.full((instances, models + 1, models), 2.0)
    for model in range(models):
        swap[:, model, model] = 0.0
    if swap.size and draw.strikes():
        swap.flat[draw.rng.integers(swap.size)] = draw.rng.choice(FLOATS)
    of_kind = [draw.rng.uniform(0.0, 9.0, (draw.size(1), groups)) for _ in range(3)]
    last = [list(range(groups // 2)), *([] for _ in range(instances - 1))] if draw.rng.random() < 0.5 else ()
    last = last[:instances]
    due = [draw.floats(groups, -5.0, 60.0) for _ in range(2)]
    if not draw.absurd or not draw.strikes(0.5):
        due = [np.nan_to_num(one) for one in due]
    problem = FleetProblem(
        draw.ints(groups, 0, models - 1),
        *due,
        draw.rng.uniform(0.0, 9.0, draw.size(groups)),
        *of_kind,
        draw.ints(instances, 0, 0),
        draw.ints(instances, -1, models - 1),
        *(draw.rng.uniform(0.0, 9.0, draw.size(instances)) for _ in range(2)),
        swap,
        draw.float(),
        draw.float(),
    )
    moves = draw.int(0, 300, (-1, 2**40 + 1, 2**62, _INT64.max))
    found = fleet_search(problem, last, moves=moves, seed=1)
    assert sorted(group for queue in found.queues for group in queue) == list(range(problem.model.size))


def reservations(draw: Draw) -> None:
    pool = (-1, 2**24 + 1, 2**62, FOREVER - 1, _INT64.max, _INT64.min)
    books = KvReservation(draw.int(1, 300, pool), draw.int(1, 20, pool), draw.int(0, 99, pool))
    ids = np.arange(min(draw.n, 9))
    n, now, reserve = ids.size, books.now, draw.int(0, 1, pool)

    def profile() -> tuple[Any, Any, dict[str, Any]]:
        steps = {"hold_steps": draw.ints(n, 0, 20, (*pool, FOREVER)), "grow_steps": draw.ints(n, 0, 90, pool)}
        return ids, draw.ints(n, 0, 99, pool), steps

    for _ in range(3):
        now += draw.int(0, 30, pool)
        if not 0 <= now < 2**63:
            raise ValueError("now: beyond 63 bits")
        books.advance(now)
        some, tokens, steps = profile()
        books.put(some, tokens, **steps)
        some, tokens, steps = profile()
        books.fits(some, tokens, **steps, reserve_blocks=reserve)
        books.admit(some, tokens, **steps, reserve_blocks=reserve)
        books.grantable(some, tokens, up_to=steps["grow_steps"], hold_steps=steps["hold_steps"], reserve_blocks=reserve)
        books.overrunners(draw.int(0, 30, pool))
        books.first_over(reserve)
        books.headroom(now + draw.int(0, 60, pool))
        books.remove(ids[: n // 2])
    assert len(books) == n - n // 2


def hosting(draw: Draw) -> None:
    pool = (-1, 2**24 + 1, 2**62, _INT64.max, _INT64.min)
    spans = KvHosting(draw.int(1, 300, pool), draw.int(1, 20, pool), draw.int(0, 99, pool))
    n, now = min(draw.n, 9), spans.now
    for turn in range(3):
        now += draw.int(0, 30, pool)
        if not 0 <= now < 2**63:
            raise ValueError("now: beyond 63 bits")
        spans.advance(now)
        ids = np.arange(n) + 100 * turn
        spans.allocate(ids, draw.ints(n, 0, 99, pool), grow_steps=draw.ints(n, 0, 90, pool), reserve_blocks=0)
        waiting = {"grow_steps": draw.ints(n, 1, 40, pool), "buffer_tokens": draw.ints(n, 0, 5, pool)}
        guests, hosts = spans.host(ids + 50, draw.ints(n, 0, 20, pool), **waiting)
        are_places(guests, n)
        assert all(int(host) in spans for host in hosts)
        spans.overrunners(draw.int(0, 30, pool))
        here = [one for one in range(100 * turn + 60) if one in spans]
        spans.remove(np.array(here[::2], np.int64))
    assert spans.free_blocks >= 0


def copies(draw: Draw) -> None:
    """Addresses are not checked, and cannot be: those here are real."""
    cache, pool = np.zeros(16 * 8, np.uint8), np.full(16 * 4, 7, np.uint8)
    ids = draw.rng.permutation(8)[:3], draw.rng.permutation(4)[: draw.size(3)]
    for some in ids:
        if some.size and draw.strikes(0.3):
            some[0] = draw.rng.choice((some[-1], 8, *INTS))
    region = Region(cache.ctypes.data, draw.int(16, 16, (-1, 0, 15, 2**62)), draw.int(16, 16, (-1, 0, 17, 2**62)))
    copy_blocks([region], 8, pool.ctypes.data, 4, *ids, to_host=False, threads=draw.int(1, 3))
    assert int((cache == 7).sum()) == 16 * len(ids[0])


KERNELS: tuple[Callable[[Draw], None], ...] = (
    *(ranking, columns_of_requests, columns_of_targets, lengths, gain_and_cost, decodes, prompts, digests),
    *(exact_packs, batches, fleets, reservations, hosting, copies),
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where an argument is rounded to an integer
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_a_kernel_answers_or_refuses(kernel: Callable[[Draw], None]) -> None:
    refused = set()
    for seed in range(CALLS):
        try:
            kernel(Draw(seed))
        except REFUSED as error:
            assert seed % 4 or "no instance serves" in str(error), f"seed {seed} makes sense: {error}"
            assert str(error)
            refused.add(str(error))
    assert refused, "nothing absurd was tried"


def test_arrays_that_change_after_they_were_checked_are_checked_again() -> None:
    """A look-up is made later than its arguments are given."""
    class_id, slots, row = np.zeros(2, np.int64), np.arange(2), np.zeros(2, np.int64)
    zero = np.zeros(2, np.int64)
    runs = survival.chances(
        np.ones((1, 3)),
        8,
        KnownRequests(class_id=class_id, output_tokens=zero, max_tokens=zero),
        slots,
        np.arange(3),
        (np.ones((1, 3)), row),
    )
    runs.matrix()
    for column, wrong, why in ((class_id, 9, "class_id"), (slots, 2, "slot 2 of 2"), (row, 1, "known_row")):
        before, column[1] = column[1], wrong
        with pytest.raises(ValueError, match=why):
            runs.matrix()
        column[1] = before


def test_a_list_that_an_attribute_changes_is_refused() -> None:
    class Meddler:
        @property
        def number(self) -> int:
            objects.clear()
            return 1

    objects: list[Any] = [Meddler() for _ in range(9)]
    with pytest.raises(ValueError, match="the list changed"):
        _csrc.counts_of(objects, ("number", "number"))
    objects.extend(Meddler() for _ in range(9))
    with pytest.raises(ValueError, match="the list changed"):
        _csrc.read_counts(objects, np.arange(9), ("number",), [np.zeros(9, np.int64)])
