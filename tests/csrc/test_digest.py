"""The compiled digest curves against ``core.qoe``, numeric integration, and readers followed token by token."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sloserve.core.arrays import FloatArray
from sloserve.core.kernels.digest import DigestCurves, Replies
from sloserve.core.qoe import digested_area, expected_area, qoe
from tests.csrc.facts import REPLY

Deliveries = list[tuple[float, int]]
NAN = float("nan")


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def floats(*values: float) -> FloatArray:
    return np.array(values, np.float64)


def delivered(deliveries: Deliveries, tds: float, slot: int = 0) -> DigestCurves:
    curves = DigestCurves()
    curves.reset(slot)
    for time_s, tokens in deliveries:
        curves.deliver(ints(slot), ints(tokens), floats(time_s), floats(tds))
    return curves


def reply(
    now_s: float,
    ttft_s: float,
    tds: float,
    left: float,
    prefill_s: float = 0.0,
    first_s: float = NAN,
    *,
    slots: tuple[int, ...] = (0,),
) -> Replies:
    """Return replies that are alike, one for each of ``slots``."""
    each = len(slots)
    return Replies.of(
        ints(*slots),
        now_s=np.full(each, now_s),
        ttft_s=np.full(each, ttft_s),
        tds=np.full(each, tds),
        left_tokens=np.full(each, float(left)),
        prefill_s=np.full(each, prefill_s),
        first_token_s=np.full(each, first_s),
    )


def times_of(deliveries: Deliveries) -> FloatArray:
    """One time a token."""
    return np.repeat([time_s for time_s, _ in deliveries], [tokens for _, tokens in deliveries]).astype(np.float64)


def ratio(actual: float, expected: float) -> float:
    return 1.0 if expected <= 0.0 else min(actual / expected, 1.0)


# Gaps of 0 are bursts and ties; long ones leave the reader dry.
DELIVERIES = st.lists(
    st.tuples(st.just(0.0) | st.floats(0.0, 1.0) | st.floats(0.0, 20.0), st.integers(1, 6)), min_size=1, max_size=40
).map(lambda steps: [(float(t), n) for t, (_, n) in zip(np.cumsum([gap for gap, _ in steps]), steps, strict=True)])
TTFT_S = st.floats(0.05, 5.0)
TDS = st.floats(0.2, 30.0) | st.just(4.8)


# What is delivered.


def digested(deliveries: Deliveries, tds: float, t: float) -> float:
    """A(t) as the least of what is there and of what could be read since each delivery."""
    found, tokens = math.inf, 0
    for time_s, count in deliveries:
        if time_s > t:
            break
        found = min(found, tokens + tds * (t - time_s))
        tokens += count
    return min(found, tokens)


def integral(corners: list[float], until_s: float, curve: Any) -> float:
    """Trapezoids between the corners of a piecewise linear curve, each cut in three."""
    inner = sorted({0.0, until_s, *(c for c in corners if 0.0 < c < until_s)})
    grid = sorted({a + (b - a) * k / 3 for a, b in pairwise(inner) for k in range(4)} | {until_s})
    return sum((b - a) * (curve(a) + curve(b)) / 2 for a, b in pairwise(grid))


@given(
    deliveries=DELIVERIES, ttft_s=TTFT_S, tds=TDS, later_s=st.just(0.0) | st.floats(0.0, 9.0), left=st.integers(0, 60)
)
def test_the_tracker_is_the_integral_of_both_curves(
    deliveries: Deliveries, ttft_s: float, tds: float, later_s: float, left: int
) -> None:
    now_s, tokens = deliveries[-1][0] + later_s, sum(count for _, count in deliveries)
    so_far = np.cumsum([count for _, count in deliveries])
    dry = [t + (n - digested(deliveries, tds, t)) / tds for (t, _), n in zip(deliveries, so_far, strict=True)]
    actual = integral([t for t, _ in deliveries] + dry, now_s, lambda t: digested(deliveries, tds, t))
    whole = tokens + left
    expected = integral([ttft_s, ttft_s + whole / tds], now_s, lambda t: min(tds * max(0.0, t - ttft_s), whole))

    curves = delivered(deliveries, tds)
    found = float(curves.current(reply(now_s, ttft_s, tds, left))[0])
    if expected > 1e-3:
        assert found == pytest.approx(ratio(actual, expected), abs=1e-6)
    elif expected == 0.0:
        assert found == 1.0
    assert curves.dry_s(ints(0)) == pytest.approx([dry[-1]], rel=1e-9, abs=1e-9)


@given(deliveries=DELIVERIES, ttft_s=TTFT_S, tds=TDS, later_s=st.floats(0.0, 9.0), left=st.integers(1, 60))
def test_the_tracker_equals_core_qoe(
    deliveries: Deliveries, ttft_s: float, tds: float, later_s: float, left: int
) -> None:
    curves, times_s = delivered(deliveries, tds), times_of(deliveries)
    last_s = deliveries[-1][0]
    for now_s, rest in ((last_s, 0), (last_s, left), (last_s + later_s, left)):
        expected = expected_area(times_s.size + rest, ttft_s, tds, now_s)
        found = curves.current(reply(now_s, ttft_s, tds, rest))[0]
        if expected > 1e-6:
            assert found == pytest.approx(ratio(digested_area(times_s, tds, now_s), expected), abs=1e-6)
    # At its last token, and with nothing left, that is the QoE of the reply.
    if expected_area(times_s.size, ttft_s, tds, last_s) > 1e-6:
        alpha = curves.current(reply(last_s, ttft_s, tds, 0, first_s=times_s[0]), alpha=0.7)[0]
        assert alpha == pytest.approx(qoe(times_s, ttft_s=ttft_s, tds=tds, alpha=0.7), abs=1e-6)


def test_many_readers_at_once_in_a_table_that_grows() -> None:
    rng = np.random.default_rng(1)
    curves, slots = DigestCurves(), rng.permutation(300)
    tds, ttft_s = rng.uniform(1.0, 20.0, 300), rng.uniform(0.1, 3.0, 300)
    timelines: list[list[float]] = [[] for _ in range(300)]
    for slot in slots.tolist():
        curves.reset(slot)
    now_s = 0.0
    for _ in range(60):
        now_s += float(rng.choice([0.02, 0.05, 2.0]))
        some = rng.permutation(slots)[: rng.integers(1, 300)]
        tokens = rng.integers(1, 4, some.size)
        curves.deliver(some, tokens, np.full(some.size, now_s), tds[some])
        for slot, count in zip(some.tolist(), tokens.tolist(), strict=True):
            timelines[slot] += [now_s] * count
    left = rng.integers(1, 50, 300).astype(np.float64)
    replies = Replies.of(
        np.arange(300),
        now_s=np.full(300, now_s),
        ttft_s=ttft_s,
        tds=tds,
        left_tokens=left,
        prefill_s=np.zeros(300),
        first_token_s=floats(*(times[0] for times in timelines)),
    )
    expected = [
        ratio(
            digested_area(floats(*times), tds[slot], now_s),
            expected_area(len(times) + int(left[slot]), ttft_s[slot], tds[slot], now_s),
        )
        for slot, times in enumerate(timelines)
    ]
    assert curves.current(replies) == pytest.approx(expected, abs=1e-9)


def test_a_slot_used_again_begins_anew() -> None:
    curves = delivered([(1.0, 5), (2.0, 7)], tds=2.0)
    curves.reset(0)
    assert curves.dry_s(ints(0)).tolist() == [0.0]
    curves.deliver(ints(0), ints(3), floats(4.0), floats(1.0))
    fresh = delivered([(4.0, 3)], tds=1.0)
    assert curves.dry_s(ints(0)).tolist() == [7.0]
    assert curves.current(reply(6.0, 1.0, 1.0, 4)).tolist() == fresh.current(reply(6.0, 1.0, 1.0, 4)).tolist()


def test_growing_keeps_what_the_others_have_read() -> None:
    curves = delivered([(1.0, 5)], tds=2.0)
    before = curves.current(reply(3.0, 1.0, 2.0, 4)).tolist()
    for slot in (63, 64, 1000):
        curves.reset(slot)
        curves.deliver(ints(slot), ints(1), floats(2.0), floats(2.0))
    assert curves.dry_s(ints(0, 63, 64, 1000)).tolist() == [3.5, 2.5, 2.5, 2.5]
    assert curves.current(reply(3.0, 1.0, 2.0, 4)).tolist() == before


@pytest.mark.slow
def test_a_reply_of_ten_thousand_tokens_is_kept_exactly() -> None:
    times_s = np.cumsum(np.random.default_rng(2).exponential(0.2, 10_000))
    curves = delivered([(t, 1) for t in times_s.tolist()], tds=5.0)
    found = curves.current(reply(float(times_s[-1]), 1.0, 5.0, 0))
    assert found == pytest.approx([qoe(times_s, ttft_s=1.0, tds=5.0)], abs=1e-9)


def test_who_has_nothing_yet_is_perfect_until_something_is_expected() -> None:
    curves = delivered([], tds=4.0)
    assert curves.dry_s(ints(0)).tolist() == [0.0]
    assert [float(curves.current(reply(now_s, 1.0, 4.0, 9))[0]) for now_s in (0.0, 1.0, 1.01, 9.0)] == [1, 1, 0, 0]


# What is to come.


def served(
    deliveries: Deliveries, now_s: float, prefill_s: float, step_s: float, left: int, horizon_s: float
) -> tuple[FloatArray, float]:
    """Token by token, one at the end of each step: all token times until the limit, and that limit."""
    to_come = [now_s + prefill_s + step_s * (k + 1) for k in range(left)]
    until_s = min(to_come[-1], now_s + horizon_s)
    return np.concatenate((times_of(deliveries), [t for t in to_come if t <= until_s])), until_s


NO_DELIVERIES: st.SearchStrategy[Deliveries] = st.just([])


@given(
    deliveries=DELIVERIES | NO_DELIVERIES,
    later_s=st.just(0.0) | st.floats(0.0, 9.0),
    ttft_s=TTFT_S,
    tds=TDS,
    left=st.integers(1, 80),
    prefill_s=st.just(0.0) | st.floats(0.0, 3.0),
    steps_s=st.lists(st.floats(0.005, 2.0), min_size=1, max_size=4),
    horizon_s=st.floats(0.0, 40.0),
    alpha=st.just(1.0) | st.floats(0.0, 1.0),
)
def test_what_is_foreseen_against_tokens_one_by_one(
    deliveries: Deliveries,
    later_s: float,
    ttft_s: float,
    tds: float,
    left: int,
    prefill_s: float,
    steps_s: list[float],
    horizon_s: float,
    alpha: float,
) -> None:
    """Exact for who waits, and for who is served at least as fast as it reads.

    Slower than that the kernel's line lies below the stairs of whole tokens: a reader who has caught up reads each
    token as it comes, in 1 / tds of the step, and stands at most ``1 - rate / tds`` tokens above the line, half of that
    on average over a step. So the area is never above the true one, nor below it by more than that half over the time
    served, a last step that is cut included.
    """
    times_s, tokens = times_of(deliveries), sum(count for _, count in deliveries)
    now_s = (deliveries[-1][0] if deliveries else 0.0) + later_s
    first_s = deliveries[0][0] if deliveries else None

    def penalty(until_s: float, next_s: float) -> float:
        late_s = (min(next_s, until_s) if first_s is None else first_s) - ttft_s
        return float(alpha ** max(late_s, 0.0))

    curves = delivered(deliveries, tds)
    asked = reply(now_s, ttft_s, tds, left, prefill_s, NAN if first_s is None else first_s)
    serve, wait = curves.foresee(asked, floats(*steps_s), horizon_s, alpha=alpha)
    assert serve.shape == (len(steps_s), 1) and wait.shape == (1,)

    until_s = now_s + horizon_s
    expected = expected_area(tokens + left, ttft_s, tds, until_s)
    if expected > 1e-6:
        area = digested_area(times_s, tds, until_s) if deliveries else 0.0
        assert wait[0] == pytest.approx(ratio(area, expected) * penalty(until_s, math.inf), abs=1e-6)

    for step_s, found in zip(steps_s, serve[:, 0].tolist(), strict=True):
        all_times_s, until_s = served(deliveries, now_s, prefill_s, step_s, left, horizon_s)
        expected = expected_area(tokens + left, ttft_s, tds, until_s)
        from_s = now_s + prefill_s + step_s
        if expected == 0.0:
            assert found == 1.0
        if expected <= 1e-6:
            continue
        area = digested_area(all_times_s, tds, until_s) if all_times_s.size else 0.0
        below = 0.5 * max(1.0 - 1.0 / (step_s * tds), 0.0) * (max(until_s - from_s, 0.0) + step_s)
        factor = penalty(until_s, from_s)
        assert found <= ratio(area, expected) * factor + 1e-6
        assert found >= ratio(area - below, expected) * factor - 1e-6


def test_the_bound_on_slow_service_is_reached() -> None:
    """Three tokens a second for who reads six: the line is a quarter of a token below, on average."""
    times_s = 1.0 + (np.arange(60) + 1) / 3.0
    serve, _ = delivered([], 6.0).foresee(reply(1.0, 1.0, 6.0, 60), floats(1 / 3), 10.0 + 1 / 3)
    until_s = 11.0 + 1 / 3
    missing = digested_area(times_s[times_s < until_s], 6.0, until_s) - serve[0, 0] * expected_area(
        60, 1.0, 6.0, until_s
    )
    assert missing == pytest.approx(0.25 * 10.0)
    assert missing / expected_area(60, 1.0, 6.0, until_s) < 0.01


@pytest.mark.parametrize(
    ("step_s", "horizon_s", "perfect"),
    [
        (0.1, 9.0, True),  # ten tokens a second for who reads four
        (0.25, 9.0, True),  # just as fast as read
        (0.5, 5.4, True),  # half as fast: of 12 tokens in store 10 are left as it begins, and last for 5 s from there
        (0.5, 5.6, False),
    ],
)
def test_slow_steps_do_no_harm_while_the_reader_has_a_store(step_s: float, horizon_s: float, perfect: bool) -> None:
    # As expected so far: the first token at 1 s, and 12 ahead of the reader at 5 s.
    curves = delivered([(1.0, 28)], tds=4.0)
    serve, _ = curves.foresee(reply(5.0, 1.0, 4.0, 100, first_s=1.0), floats(step_s), horizon_s)
    assert bool(serve[0, 0] > 1.0 - 1e-9) is perfect


def test_slower_steps_and_longer_prompts_never_help_a_reply_that_outlasts_the_horizon() -> None:
    curves = delivered([(2.0, 4)], tds=4.0)
    serve, wait = curves.foresee(reply(4.0, 1.0, 4.0, 2000, first_s=2.0), np.linspace(0.01, 3.0, 200), 9.0)
    assert np.all(np.diff(serve[:, 0]) <= 1e-12) and serve[-1, 0] >= wait[0]
    later = [
        float(curves.foresee(reply(4.0, 1.0, 4.0, 2000, prefill_s, 2.0), floats(0.1), 9.0)[0][0, 0])
        for prefill_s in (0.0, 0.5, 2.0, 8.0, 20.0)
    ]
    assert later == sorted(later, reverse=True)
    # A prompt that takes longer than the horizon is no better than to wait.
    assert later[-1] == wait[0]


def test_a_late_reply_that_ends_soon_is_the_worse_the_faster_it_ends() -> None:
    """As Eq. 1 has it, which stops at the last token: what is read afterwards does not count."""
    serve, _ = delivered([], tds=4.0).foresee(reply(4.0, 1.0, 4.0, 20), floats(0.01, 0.1, 0.25), 60.0)
    assert serve[0, 0] < serve[1, 0] < serve[2, 0] < 1.0


def test_a_reply_that_ends_sooner_is_judged_at_its_last_token() -> None:
    curves = delivered([], tds=4.0)
    serve, wait = curves.foresee(reply(0.0, 1.0, 4.0, 3), floats(0.25), 60.0)
    assert serve[0, 0] == 1.0 and wait[0] == 0.0
    late, _ = curves.foresee(reply(2.0, 1.0, 2.0, 3), floats(0.5), 60.0)
    assert late[0, 0] == pytest.approx(qoe(floats(2.5, 3.0, 3.5), ttft_s=1.0, tds=2.0))


# Shapes and refusals.


def test_nobody_and_no_step_times() -> None:
    curves, none = DigestCurves(), floats()
    nobody = Replies.of(ints(), **dict.fromkeys(REPLY, none))
    serve, wait = curves.foresee(nobody, floats(0.1, 0.2), 1.0)
    assert serve.shape == (2, 0) and wait.shape == (0,) and curves.current(nobody).shape == (0,)
    curves.deliver(ints(), ints(), none, none)
    serve, wait = curves.foresee(reply(1.0, 1.0, 1.0, 1), none, 1.0)
    assert serve.shape == (0, 1) and wait.shape == (1,)


def test_step_times_are_the_rows() -> None:
    curves = DigestCurves()
    replies = reply(1.0, 1.0, 4.0, 40, slots=(0, 1, 2))
    serve, wait = curves.foresee(replies, floats(0.2, 1.0), 9.0)
    assert serve.shape == (2, 3) and wait.shape == (3,)
    assert np.all(serve == serve[:, :1]) and np.all(serve[0] > serve[1])


@pytest.mark.parametrize("slot", [-1, 64, 2**40])
def test_a_slot_out_of_range_is_refused_before_anything_is_changed(slot: int) -> None:
    curves = delivered([(1.0, 2)], tds=2.0)
    with pytest.raises(ValueError, match=f"slots: {slot} is outside 0..64"):
        curves.deliver(ints(0, slot), ints(1, 1), floats(5.0, 5.0), floats(2.0, 2.0))
    assert curves.dry_s(ints(0)).tolist() == [2.0]
    asked = reply(1.0, 1.0, 2.0, 1, slots=(slot,))
    for ask in (lambda: curves.foresee(asked, floats(0.1), 1.0), lambda: curves.current(asked)):
        with pytest.raises(ValueError, match=f"slots: {slot} is outside 0..64"):
            ask()


def test_columns_of_other_lengths_are_refused() -> None:
    curves = DigestCurves()
    good: dict[str, Any] = {"slots": ints(0, 1), "tokens": ints(1, 1), "times_s": floats(1, 1), "tds": floats(1, 1)}
    for name, column in good.items():
        with pytest.raises(ValueError, match="slots; there must be one for each"):
            curves.deliver(**(good | {name: column[:1]}))
        with pytest.raises(TypeError):
            curves.deliver(**(good | {name: column[:, None]}))


@pytest.mark.parametrize("wrong", [{"tds": 2}, dict.fromkeys(REPLY, 2), dict.fromkeys(REPLY, 0)])
def test_replies_of_another_length_are_refused(wrong: dict[str, int]) -> None:
    sizes = dict.fromkeys(REPLY, 1) | wrong
    curves, asked = DigestCurves(), Replies.of(ints(0), **{name: np.ones(size) for name, size in sizes.items()})
    for ask in (lambda: curves.foresee(asked, floats(0.1), 1.0), lambda: curves.current(asked)):
        with pytest.raises(ValueError, match="columns of several lengths|replies: . elements for 1 slots"):
            ask()
