"""econo: who is served first, who fits, who sits out."""

from typing import Any

import numpy as np
import pytest

from sloserve.scheduler.econo.policy import UNHURRIED_S, Econo
from sloserve.scheduler.papers.econo_parts import EconoParts
from sloserve.scheduler.policy import Plan, Snapshot, check_plan
from tests.snapshots import make_snapshot


def plan(at: Snapshot, now_s: float = 0.0, **settings: Any) -> Plan:
    """By the variant for experiments where ``settings`` has an option of it."""
    cls = Econo if settings.keys() <= Econo.Settings.__dataclass_fields__.keys() else EconoParts
    made = cls(cls.Settings(**{"length": "oracle"} | settings)).plan(at, now_s)
    check_plan(made, at)
    return made


def order(slots: Any) -> list[int]:
    return [int(one) for one in slots]


def new(output: int, prompt: int = 16, **of: Any) -> dict[str, Any]:
    return {"oracle_output_tokens": output, "prompt_tokens": prompt, "arrival_s": 0.0} | of


def test_the_least_kv_times_steps_times_target_first() -> None:
    waiting = [
        new(100, 50, e2e_s=10.0),  # (50 + 50) * 100 * 10 = 100,000
        new(20, 390, e2e_s=10.0),  # (390 + 10) * 20 * 10 = 80,000
        new(20, 390, e2e_s=13.0),  # 104,000
        new(100, 50, e2e_s=9.0),  # 90,000
    ]
    assert order(plan(make_snapshot(waiting)).waiting) == [1, 3, 0, 2]
    assert order(plan(make_snapshot(waiting), order="fcfs").waiting) == [0, 1, 2, 3]


def test_what_is_done_already_counts_no_more() -> None:
    running = [
        new(100, 50, e2e_s=10.0, output_tokens=95, computed_tokens=144),  # (145 + 2.5) * 5 * 10
        new(20, 50, e2e_s=10.0, output_tokens=1, computed_tokens=50),  # (51 + 9.5) * 19 * 10
    ]
    made = plan(make_snapshot([new(10**4)], running))
    assert order(made.running) == [0, 1]


def test_targets_of_a_stream_make_a_target_for_the_whole() -> None:
    waiting = [
        new(100, e2e_s=6.9),
        new(100, ttft_s=1.5, tpot_s=0.05),  # 6.5
        new(100, ttft_s=1.5, tds=20.0),  # the same
        new(100, ttft_s=1.0),  # 1
        new(100, tpot_s=0.05),  # 1 by default, 6 with the tokens
        new(100),
        new(100, e2e_s=UNHURRIED_S + 1.0),
    ]
    assert order(plan(make_snapshot(waiting)).waiting) == [3, 4, 1, 2, 0, 5, 6]


def test_the_late_come_last_in_their_own_order_if_asked() -> None:
    waiting = [
        new(50, e2e_s=3.0),
        new(500, e2e_s=30.0),
        new(20, e2e_s=3.0),
        new(600, e2e_s=30.0),
    ]
    assert order(plan(make_snapshot(waiting), 4.0, late_last=True).waiting) == [1, 3, 2, 0]
    assert order(plan(make_snapshot(waiting), 3.0, late_last=True).waiting) == [2, 0, 1, 3]
    assert order(plan(make_snapshot(waiting), 4.0).waiting) == [2, 0, 1, 3]


def test_who_would_not_fit_later_waits_although_blocks_are_free() -> None:
    # 20 blocks of 16. One of 16 + 200 tokens needs 13.5 of them in the end, so a second does not fit.
    waiting = [new(200, e2e_s=10.0)] * 3
    assert plan(make_snapshot(waiting, free_blocks=20, total_blocks=20)).max_running == 1
    assert plan(make_snapshot(waiting, free_blocks=30, total_blocks=30)).max_running == 2
    assert plan(make_snapshot(waiting, free_blocks=30, total_blocks=30), reserve=0.2).max_running == 1
    assert plan(make_snapshot(waiting, free_blocks=20, total_blocks=20), foresee=False).max_running is None


def test_who_ends_before_another_grows_fits_beside_it() -> None:
    # KVC pipelining in the general form: the second half of what one will need serves another until then.
    running = [new(200, output_tokens=10, computed_tokens=25)]
    assert plan(make_snapshot([new(60)], running, free_blocks=13, total_blocks=15)).max_running == 2
    assert plan(make_snapshot([new(190)], running, free_blocks=13, total_blocks=15)).max_running == 1


def test_nobody_overtakes_who_does_not_fit() -> None:
    waiting = [new(200, 16, e2e_s=1.0), new(200, 16, e2e_s=2.0), new(5, 16, e2e_s=10**6)]
    made = plan(make_snapshot(waiting, free_blocks=20, total_blocks=20))
    assert order(made.waiting) == [0, 1, 2] and made.max_running == 1


def test_the_first_is_admitted_even_if_it_never_fits() -> None:
    assert plan(make_snapshot([new(10**4)], free_blocks=20, total_blocks=20)).max_running == 1


def test_spread_of_lengths_keeps_room_free() -> None:
    waiting = [{"max_tokens": 1000, "arrival_s": 0.0}] * 30
    at = make_snapshot(waiting, free_blocks=200, total_blocks=200, max_num_seqs=30)
    found = [plan(at, length="predicted", sigmas=sigmas).max_running or 0 for sigmas in (0.0, 1.0, 2.0, 4.0)]
    assert found == sorted(found, reverse=True) and found[0] > found[1] > found[3] >= 1


def test_the_last_in_order_sits_out_where_the_next_block_is_missing_if_asked() -> None:
    running = [new(40 + i, e2e_s=10.0, output_tokens=17, computed_tokens=32) for i in range(4)]
    at = make_snapshot([], running, free_blocks=2)
    assert order(plan(at, pause=True).pause) == [3, 2]
    assert not plan(at).pause.size
    at.rows.pausable[3] = False
    assert order(plan(at, pause=True).pause) == [2, 1]


def crowded(*waiting: dict[str, Any], **running: Any) -> Snapshot:
    """A long request holds 20 of 40 blocks, a short one 2; nobody else fits beside."""
    held = {"output_tokens": 20, "computed_tokens": 319, "preemptable": True}
    ran = [new(320, 300, e2e_s=60.0, **held | running), new(20, 12, e2e_s=9.0, output_tokens=4, computed_tokens=15)]
    return make_snapshot(waiting, ran, free_blocks=18, total_blocks=40)


def test_a_long_request_makes_room_where_many_short_ones_wait() -> None:
    short = [new(100, 200, e2e_s=2.0)] * 40
    made = plan(crowded(*short))
    assert order(made.preempt) == [0] and order(made.running) == [1] and made.max_running == 2
    assert not plan(crowded(*short), preempt=False).preempt.size
    # Nor where it takes long to compute 320 tokens again, or for the unhurried.
    assert not plan(crowded(*short), tokens_per_step=1.0).preempt.size
    assert not plan(crowded(*[new(100, 200, e2e_s=500.0)] * 40)).preempt.size


def test_who_may_not_be_preempted_is_not() -> None:
    short = [new(100, 200, e2e_s=2.0)] * 40
    assert not plan(crowded(*short, num_preemptions=2)).preempt.size
    assert plan(crowded(*short, num_preemptions=2), max_preemptions=3).preempt.size
    at = crowded(*short)
    at.rows.preemptable[0] = False
    assert not plan(at).preempt.size


def test_nobody_gives_way_for_one_who_would_not_fit_even_so() -> None:
    large = [new(100, 600, e2e_s=0.5)] * 40
    assert not plan(crowded(*large)).preempt.size


def test_nobody_gives_way_where_there_is_room_or_the_order_is_of_arrival() -> None:
    short = [new(100, 20, e2e_s=2.0)] * 40
    assert not plan(crowded(*short)).preempt.size
    assert not plan(crowded(*[new(100, 200, e2e_s=2.0, arrival_s=1.0)] * 40), order="fcfs").preempt.size


def test_nothing_to_decide() -> None:
    assert plan(make_snapshot()) is Plan.IDENTITY
    assert plan(make_snapshot(running=[new(5)])) is Plan.IDENTITY


def test_lengths_are_learnt_from_those_that_end() -> None:
    policy = Econo()
    at = make_snapshot([{"class_id": 0, "e2e_s": 9.0}, {"class_id": 1, "e2e_s": 9.0}])
    assert order(policy.plan(at, 0.0).waiting) == [0, 1]
    ended = at.rows.add(class_id=0, output_tokens=900)
    for _ in range(8):
        policy.finished(at.rows, ended, 0.0)
    assert order(policy.plan(at, 0.0).waiting) == [1, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"order": "size"}, "order: 'size' is not one of stretch, fcfs"),
        (
            {"length": "guess"},
            "length: 'guess' is not one of predicted, predicted-gaussian, empirical, gaussian, oracle",
        ),
        ({"reserve": 0.6}, r"reserve: 0\.6 is not within 0\.\.0\.5"),
        ({"sigmas": -1.0}, r"sigmas: -1\.0 is not 0 or more, and finite"),
        ({"sigmas": np.inf}, "sigmas: inf is not 0 or more, and finite"),
        ({"max_preemptions": -1}, "max_preemptions: -1 is not 0 or more, and finite"),
        ({"tokens_per_step": 0.5}, r"tokens_per_step: 0\.5 is not 1 or more"),
        ({"length_error": np.nan}, "length_error: nan is not 0 or more, and finite"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        EconoParts.Settings(**settings)
