"""Andes' outlook: each kind of request's lead, and what serving it gains, against ``core.qoe`` and by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.digest import DigestCurves
from sloserve.core.qoe import digested_area, expected_area
from sloserve.core.rows import Rows
from sloserve.scheduler.andes.outlook import COLUMNS, Foresight, Outlook, reading_tds
from sloserve.scheduler.papers import andes_parts
from sloserve.scheduler.papers.andes_parts import OBJECTIVES
from sloserve.scheduler.policy import Snapshot

Make = Callable[..., Snapshot]
NOW_S = 1000.0
Deliveries = Sequence[tuple[float, int]]


def outlook(
    requests: Sequence[dict[str, Any]],
    deliveries: Sequence[Deliveries] = (),
    left: float = 1000.0,
    now_s: float = NOW_S,
) -> Outlook:
    """Of requests that got ``(seconds since arrival, tokens)`` each; ``left`` tokens are still to come."""
    rows, curves = Rows(COLUMNS), DigestCurves()
    for request, delivered in zip(requests, [*deliveries] or [()] * len(requests), strict=True):
        more: dict[str, Any] = {"output_tokens": sum(n for _, n in delivered)}
        if delivered:
            more["first_token_s"] = request["arrival_s"] + delivered[0][0]
        slot = np.array([rows.add(**{"prompt_tokens": 100, "max_tokens": 5000} | more | request)])
        curves.reset(int(slot[0]))
        for time_s, tokens in delivered:
            curves.deliver(slot, np.array([tokens]), np.array([time_s]), reading_tds(rows, slot))
    return Outlook(rows, np.arange(len(requests)), np.full(len(requests), left), curves, now_s)


def foresee(all_: Outlook, *steps_s: float, objective: str = "mean", **more: float) -> Foresight:
    """In a horizon of 8 s, prompts at no cost, by default with ten tokens a second."""
    options = {"prefill_token_s": 0.0, "horizon_s": 8.0, "alpha": 1.0} | more
    found = andes_parts.foresee(
        objective,
        options["alpha"],
        all_,
        np.array(steps_s or (0.1,)),
        options["prefill_token_s"],
        options["horizon_s"],
    )
    assert found.serve.shape == found.gain.shape == (len(steps_s or (0.1,)), all_.slots.size)
    return found


# Who is it?


@pytest.mark.parametrize(
    ("targets", "tds"),
    [
        ({"tds": 3.0}, 3.0),
        ({"tpot_s": 0.25}, 4.0),
        ({"tds": 3.0, "tpot_s": 0.25}, 4.0),
        ({"tds": 5.0, "tpot_s": 0.25}, 5.0),
        ({"ttft_s": 2.0}, 4.8),
        ({"e2e_s": 9.0}, 4.8),
        ({}, 4.8),
    ],
)
def test_a_reply_is_read_at_the_pace_asked_for_else_as_usual(
    targets: dict[str, float], tds: float, snapshot: Make
) -> None:
    at = snapshot([targets])
    assert reading_tds(at.rows, at.waiting) == pytest.approx([tds])


@pytest.mark.parametrize(
    ("row", "context", "prefill"),
    [
        ({}, 100, 100),
        ({"computed_tokens": 60}, 100, 40),
        # Its last token has no KV yet; that is a decode, not a prefill.
        ({"computed_tokens": 109, "output_tokens": 10}, 110, 0),
        # In flight: that token's KV is on its way too.
        ({"computed_tokens": 110, "output_tokens": 10}, 110, 0),
        # Preempted: prompt and output are computed anew.
        ({"computed_tokens": 0, "output_tokens": 10}, 110, 110),
    ],
)
def test_tokens_of_context_and_to_compute_before_the_next(row: dict[str, int], context: int, prefill: int) -> None:
    all_ = outlook([{"arrival_s": NOW_S} | row])
    assert (all_.context_tokens.tolist(), all_.prefill_tokens.tolist()) == ([context], [prefill])


# Leads: of a request that came 10 s ago.


@pytest.mark.parametrize(
    ("targets", "delivered", "lead_s"),
    [
        # No token yet: until the first is expected.
        ({"ttft_s": 12.0}, [], 2.0),
        ({"ttft_s": 4.0}, [], -6.0),
        ({"tds": 3.0}, [], -9.0),
        ({"tpot_s": 0.5}, [], -9.0),
        # Until the reader has digested what there is, from the first token's delivery on, not from when it was due.
        ({"ttft_s": 1.0, "tds": 2.0}, [(4.0, 20)], 4.0),
        ({"ttft_s": 6.0, "tds": 2.0}, [(4.0, 20)], 4.0),
        ({"tpot_s": 0.5}, [(4.0, 20)], 4.0),
        ({"ttft_s": 1.0}, [(4.0, 48)], 4.0),
        # Dry since 5 s, and again since 8 s.
        ({"tds": 2.0}, [(4.0, 2)], -5.0),
        ({"tds": 2.0}, [(4.0, 2), (7.0, 2)], -2.0),
        ({"tds": 2.0}, [(4.0, 20), (7.0, 2)], 5.0),
        # A deadline alone, whatever was delivered; none.
        ({"e2e_s": 30.0}, [(4.0, 20)], 20.0),
        ({"e2e_s": 8.0}, [], -2.0),
        ({}, [(4.0, 20)], np.inf),
        ({}, [], np.inf),
        # Who has a reader is followed by that.
        ({"e2e_s": 30.0, "tds": 2.0}, [(4.0, 20)], 4.0),
        ({"e2e_s": 30.0, "ttft_s": 12.0}, [], 2.0),
    ],
)
def test_lead(targets: dict[str, float], delivered: Deliveries, lead_s: float) -> None:
    all_ = outlook([{"arrival_s": NOW_S - 10.0} | targets], [delivered])
    assert all_.lead_s.tolist() == [pytest.approx(lead_s)]


def test_an_arrival_later_than_now_has_waited_for_nothing() -> None:
    all_ = outlook([{"arrival_s": NOW_S + 0.5, "ttft_s": 1.0}, {"arrival_s": NOW_S + 0.5, "e2e_s": 9.0}])
    assert all_.lead_s.tolist() == [1.0, 9.0]


# What serving gains.


def test_a_new_reader_is_content_if_served_in_time_and_has_nothing_if_not() -> None:
    """Both curves are ramps of 2 tokens a second, so their areas are as the squares of their lengths."""
    found = foresee(outlook([{"arrival_s": NOW_S - waited_s, "ttft_s": 1.0, "tds": 2.0} for waited_s in (0, 0.9, 3)]))
    assert found.serve[0].tolist() == pytest.approx([1.0, 1.0, ((11 - 3.1) / (11 - 1)) ** 2])
    assert found.gain.tolist() == found.serve.tolist()


def test_computing_a_context_delays_the_next_token() -> None:
    all_ = outlook([{"arrival_s": NOW_S - 3.0, "ttft_s": 1.0, "tds": 2.0, "prompt_tokens": 400}])
    found = foresee(all_, prefill_token_s=0.005)
    assert found.serve[0, 0] == pytest.approx(((11 - 5.1) / (11 - 1)) ** 2)


def test_steps_slower_than_the_reader_hold_him_to_their_pace() -> None:
    """At 4 s a token 0.25 tokens a second come, from 4 s on."""
    found = foresee(outlook([{"arrival_s": NOW_S, "ttft_s": 1.0, "tds": 2.0}]), 0.1, 0.5, 4.0)
    assert found.serve[:, 0].tolist() == pytest.approx([1.0, 1.0, 0.25 * (8 - 4) ** 2 / (2.0 * (8 - 1) ** 2)])


def test_who_is_ahead_gains_nothing_until_the_horizon_exceeds_his_lead() -> None:
    """20 tokens at 0 s last for 10 s; after that he waits until the horizon, and 40 tokens could have been read."""
    all_ = outlook([{"arrival_s": NOW_S, "ttft_s": 0.0, "tds": 2.0}], [[(0.0, 20)]])
    assert foresee(all_, horizon_s=9.0).gain[0, 0] == pytest.approx(0.0)
    assert foresee(all_, horizon_s=20.0).gain[0, 0] == pytest.approx(1.0 - (10 * 20 / 2 + 10 * 20) / (20 * 40 / 2))


def test_a_reply_that_ends_within_the_horizon_is_judged_at_its_end() -> None:
    """30 tokens at 10 a second end at 3 s, where ``T(t)`` and ``A(t)`` are 2 tokens a second from 1 s and from 0.1 s;
    one of a late request ends at 6 s."""
    all_ = outlook([{"arrival_s": NOW_S - waited_s, "ttft_s": 1.0, "tds": 2.0} for waited_s in (0, 3)], left=30)
    assert foresee(all_).serve[0].tolist() == pytest.approx([1.0, ((6 - 3.1) / (6 - 1)) ** 2])


DELIVERIES = st.lists(st.tuples(st.floats(0.0, 4.0), st.integers(1, 9)), max_size=6).map(
    lambda steps: list(zip(np.cumsum([gap for gap, _ in steps]).tolist(), (n for _, n in steps), strict=True))
)


@given(
    delivered=DELIVERIES,
    since_s=st.floats(0.0, 5.0),
    ttft_s=st.floats(0.1, 5.0),
    tds=st.floats(0.5, 9.0),
    left=st.integers(1, 300),
    horizon_s=st.floats(0.1, 20.0),
)
def test_waiting_costs_what_core_qoe_says(
    delivered: Deliveries, since_s: float, ttft_s: float, tds: float, left: int, horizon_s: float
) -> None:
    waited_s = (delivered[-1][0] if delivered else 0.0) + since_s
    row = {"arrival_s": NOW_S - waited_s, "ttft_s": ttft_s, "tds": tds}
    found = foresee(outlook([row], [delivered], left), horizon_s=horizon_s)
    times_s = np.repeat([t for t, _ in delivered], [n for _, n in delivered])
    until_s = waited_s + horizon_s
    expected = expected_area(times_s.size + left, ttft_s, tds, until_s)
    wait = 1.0 if expected == 0.0 else min(digested_area(times_s, tds, until_s) / expected, 1.0)
    assert found.gain[0, 0] == pytest.approx(max(found.serve[0, 0] - wait, 0.0), abs=1e-6)
    assert 0.0 <= found.gain[0, 0] <= found.serve[0, 0] <= 1.0


# Deadlines alone, and nothing at all.


@pytest.mark.parametrize(
    ("e2e_s", "serve", "gain"),
    [
        # 50 tokens take 5 s, and if nothing is done in the next 8 s, 13 s; the request came 10 s ago.
        (14.0, [0.0, 0.0], [0.0, 0.0]),
        (15.5, [1.0, 0.0], [1.0, 0.0]),
        (22.5, [1.0, 1.0], [1.0, 1.0]),
        # It can wait.
        (23.5, [1.0, 1.0], [0.0, 0.0]),
        (np.nan, [0.0, 0.0], [0.0, 0.0]),
    ],
)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_deadline_is_met_or_not(objective: str, e2e_s: float, serve: list[float], gain: list[float]) -> None:
    all_ = outlook([{"arrival_s": NOW_S - 10.0, "e2e_s": e2e_s}], left=50)
    found = foresee(all_, 0.1, 0.2, objective=objective)
    assert (found.serve[:, 0].tolist(), found.gain[:, 0].tolist()) == (serve, gain)


def test_a_deadline_includes_the_prefill() -> None:
    all_ = outlook([{"arrival_s": NOW_S, "e2e_s": e2e_s} for e2e_s in (5.5, 6.5)], left=50)
    assert foresee(all_, prefill_token_s=0.01).serve[0].tolist() == [0.0, 1.0]


def test_each_kind_is_foreseen_as_if_alone() -> None:
    rows = [
        {"arrival_s": NOW_S - 3.0, "tds": 2.0},
        {"arrival_s": NOW_S - 3.0, "e2e_s": 105.0},
        {"arrival_s": NOW_S - 3.0},
        {"arrival_s": NOW_S - 3.0, "tpot_s": 0.5},
    ]
    together, alone = foresee(outlook(rows)), [foresee(outlook([row])) for row in rows]
    assert together.gain[0].tolist() == [float(one.gain[0, 0]) for one in alone]
    assert together.serve[0, 0] == together.serve[0, 3] and together.serve[0, 1] == 1.0


# Objectives and penalty.

SOME = [
    {"arrival_s": NOW_S, "ttft_s": 1.0, "tds": 2.0},  # perfect so far
    {"arrival_s": NOW_S - 10.0, "ttft_s": 2.0, "tds": 2.0},  # 14 tokens came at 4 s
    {"arrival_s": NOW_S - 10.0, "ttft_s": 1.0, "tds": 2.0},  # 40 tokens came at 1 s
]
CAME: list[Deliveries] = [[], [(4.0, 14)], [(1.0, 40)]]
SECOND_NOW = 36 / 64
"""Read since 4 s, expected since 2 s."""
SECOND_WAIT = (7**2 + 14 * 7) / 16**2
"""Read from 4 s to 11 s, and nothing to 18 s."""


def test_mean_gains_the_difference() -> None:
    found = foresee(outlook(SOME, CAME))
    second = (14 / 16) ** 2
    assert found.serve[0].tolist() == pytest.approx([1.0, second, 1.0])
    assert found.gain[0].tolist() == pytest.approx([1.0, second - SECOND_WAIT, 0.0])


def test_min_gains_only_up_to_the_worst_of_today() -> None:
    found = foresee(outlook(SOME, CAME), objective="min")
    # The second would fall below what is the worst today only by waiting longer.
    assert SECOND_WAIT > SECOND_NOW
    assert found.gain[0].tolist() == pytest.approx([SECOND_NOW, 0.0, 0.0])
    found = foresee(outlook(SOME, CAME), objective="min", horizon_s=30.0)
    assert found.gain[0].tolist() == pytest.approx([SECOND_NOW, SECOND_NOW - (7**2 + 14 * 29) / 38**2, 0.0])


def test_the_worst_of_today_is_by_alpha_too() -> None:
    found = foresee(outlook(SOME, CAME), objective="min", alpha=0.9)
    assert found.gain[0, 0] == pytest.approx(SECOND_NOW * 0.9 ** (4 - 2))


def test_min_expects_nobody_to_be_lifted_above_what_serving_gives() -> None:
    late = {"arrival_s": NOW_S - 0.9, "ttft_s": 1.0, "tds": 2.0}
    found = foresee(outlook([late]), 3.0, objective="min")
    # One token each 3 s from 3.9 s on, of two a second from 1 s on; alone and in time so far, the worst of today is 1.
    assert found.gain[0, 0] == pytest.approx((5.0**2 / 3) / (2 * 7.9**2))


def test_perfect_counts_those_who_are_and_would_not_stay_so() -> None:
    found = foresee(outlook(SOME, CAME), objective="perfect")
    assert found.gain[0].tolist() == [1.0, 0.0, 0.0]
    # The third has read all in 11 s, and slow steps keep nobody perfect.
    found = foresee(outlook(SOME, CAME), 2.5, objective="perfect", horizon_s=30.0)
    assert found.gain[0].tolist() == [0.0, 0.0, 0.0]
    found = foresee(outlook(SOME, CAME), 0.1, objective="perfect", horizon_s=30.0)
    assert found.gain[0].tolist() == [1.0, 0.0, 1.0]


def test_alpha_is_raised_to_the_seconds_that_the_first_token_is_late() -> None:
    rows = [{"arrival_s": NOW_S - 3.0, "ttft_s": 1.0, "tds": 2.0}, SOME[1], SOME[2]]
    came: list[Deliveries] = [[], *CAME[1:]]
    plain, strict = foresee(outlook(rows, came)), foresee(outlook(rows, came), alpha=0.9)
    late_s = np.array([3.1 - 1.0, 4.0 - 2.0, 0.0])
    assert strict.serve[0].tolist() == pytest.approx((plain.serve[0] * 0.9**late_s).tolist())
    # Who had no token would have had none either way; of the second both ways count for less.
    assert strict.gain[0].tolist() == pytest.approx([strict.serve[0, 0], plain.gain[0, 1] * 0.81, 0.0])


def test_nobody() -> None:
    for objective in OBJECTIVES:
        assert foresee(outlook([]), 0.1, 0.2, objective=objective).gain.shape == (2, 0)
