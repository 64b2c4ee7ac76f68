"""EDF: deadlines computed by hand, order by them, and whom it preempts for whom."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sloserve.scheduler.edf import EDF, deadlines_s
from sloserve.scheduler.policy import Plan, Snapshot, check_plan

Make = Callable[..., Snapshot]
NOW_S = 1000.0
URGENT = {"arrival_s": NOW_S, "e2e_s": 1.0}
LAX = {"arrival_s": 900.0, "e2e_s": 600.0}


@pytest.mark.parametrize(
    ("row", "deadline_s"),
    [
        ({"arrival_s": 100.0}, np.inf),
        ({"arrival_s": 100.0, "e2e_s": 30.0}, 130.0),
        ({"arrival_s": 100.0, "ttft_s": 2.0}, 102.0),
        ({"arrival_s": 100.0, "ttft_s": 2.0, "e2e_s": 30.0}, 102.0),
        ({"arrival_s": 100.0, "ttft_s": 40.0, "e2e_s": 30.0}, 130.0),
        # Only a TPOT target: nothing is promised until the first token; then the next is due a pace later.
        ({"arrival_s": 100.0, "tpot_s": 0.5}, np.inf),
        ({"arrival_s": 100.0, "tpot_s": 0.5, "first_token_s": 101.0, "output_tokens": 1}, 101.5),
        ({"arrival_s": 100.0, "tpot_s": 0.5, "first_token_s": 101.0, "output_tokens": 4}, 103.0),
        # After the first token a TTFT target binds no more; one that stands alone leaves a reader at 4.8 tokens/s.
        ({"arrival_s": 100.0, "ttft_s": 2.0, "first_token_s": 101.0, "output_tokens": 48}, 111.0),
        ({"arrival_s": 100.0, "ttft_s": 2.0, "e2e_s": 9.0, "first_token_s": 101.0, "output_tokens": 1}, 109.0),
        # TDS is a pace too; the faster of both binds.
        ({"arrival_s": 100.0, "tds": 4.0, "first_token_s": 101.0, "output_tokens": 2}, 101.5),
        ({"arrival_s": 100.0, "tds": 4.0, "tpot_s": 0.1, "first_token_s": 101.0, "output_tokens": 2}, 101.2),
        # All four: TTFT first, then the pace, and never later than e2e.
        ({"arrival_s": 100.0, "ttft_s": 2.0, "tpot_s": 1.0, "e2e_s": 5.0}, 102.0),
        (
            {
                "arrival_s": 100.0,
                "ttft_s": 2.0,
                "tpot_s": 1.0,
                "e2e_s": 5.0,
                "first_token_s": 101.0,
                "output_tokens": 9,
            },
            105.0,
        ),
    ],
)
def test_deadline(row: dict[str, float], deadline_s: float, snapshot: Make) -> None:
    at = snapshot([row])
    assert deadlines_s(at.rows, at.waiting).tolist() == [pytest.approx(deadline_s)]


def plan(at: Snapshot, **settings: Any) -> Plan:
    made = EDF(EDF.Settings(**settings)).plan(at, NOW_S)
    check_plan(made, at)
    return made


def order(slots: Any) -> list[int]:
    return [int(s) for s in slots]


def test_serves_and_admits_the_nearest_deadline_first_and_ties_by_arrival(snapshot: Make) -> None:
    due = [{"arrival_s": 1000.0, "e2e_s": e2e} for e2e in (9.0, 3.0, 9.0)] + [{"arrival_s": 0.0}]
    made = plan(snapshot(waiting=due, running=due))
    assert order(made.running) == [1, 0, 2, 3]
    assert order(made.waiting) == [5, 4, 6, 7]
    assert not made.preempt.size and not made.pause.size


def test_ties_end_in_seq_not_in_the_slot(snapshot: Make) -> None:
    at = snapshot(waiting=[{}, {}, {}])
    at.rows.seq[[0, 1, 2]] = [7, 5, 6]
    assert order(plan(at).waiting) == [1, 2, 0]


def test_names_no_more_than_a_step_can_admit(snapshot: Make) -> None:
    at = snapshot(waiting=[{"arrival_s": 1000.0, "e2e_s": 100.0 - i} for i in range(20)], max_num_seqs=3)
    assert order(plan(at).waiting) == [19, 18, 17]


def test_preempts_the_latest_deadline_when_every_slot_is_taken(snapshot: Make) -> None:
    later = {**LAX, "e2e_s": 700.0}
    made = plan(snapshot([URGENT], [LAX, later, LAX], max_num_seqs=3))
    assert order(made.preempt) == [1]
    assert order(made.running) == [0, 2]
    assert order(made.waiting) == [3]


def test_among_equal_deadlines_the_last_to_arrive_gives_way(snapshot: Make) -> None:
    assert order(plan(snapshot([URGENT, URGENT], [LAX] * 3, max_num_seqs=3)).preempt) == [2, 1]


def test_a_request_without_targets_gives_way_before_one_with_a_late_deadline(snapshot: Make) -> None:
    assert order(plan(snapshot([URGENT], [{"arrival_s": 1.0}, LAX], max_num_seqs=2)).preempt) == [0]


NOBODY = {
    "a slot is free": ([URGENT], [LAX, LAX], {"max_num_seqs": 3}, {}),
    "it is switched off": ([URGENT], [LAX, LAX], {"max_num_seqs": 2}, {"preempt": False}),
    "the deadlines lie within the margin": (
        [URGENT],
        [{"arrival_s": NOW_S, "e2e_s": 5.0}],
        {"max_num_seqs": 1},
        {"preempt_margin_s": 4.0},
    ),
    "all have been preempted often enough": (
        [URGENT],
        [{**LAX, "num_preemptions": 3}] * 2,
        {"max_num_seqs": 2},
        {"max_preemptions": 3},
    ),
    "the guards forbid it": ([URGENT], [{**LAX, "preemptable": False}] * 2, {"max_num_seqs": 2}, {}),
    "the deadline has passed": ([{"arrival_s": 900.0, "e2e_s": 99.0}], [LAX, LAX], {"max_num_seqs": 2}, {}),
    "the blocked one has no deadline": ([{"arrival_s": 1.0}], [LAX, LAX], {"max_num_seqs": 2}, {}),
    "all victims together do not hold enough blocks": (
        [{**URGENT, "prompt_tokens": 1000}],
        [LAX, LAX],
        {"max_num_seqs": 2, "free_blocks": 20},
        {},
    ),
    "nobody waits": ([], [LAX, LAX], {"max_num_seqs": 2}, {}),
    "nobody runs": ([{**URGENT, "prompt_tokens": 1000}], [], {"free_blocks": 2}, {}),
}


@pytest.mark.parametrize(("waiting", "running", "engine", "settings"), NOBODY.values(), ids=NOBODY)
def test_preempts_nobody_when(
    waiting: list[Any], running: list[Any], engine: dict[str, int], settings: dict[str, Any], snapshot: Make
) -> None:
    assert not plan(snapshot(waiting, running, **engine), **settings).preempt.size


def test_a_margin_that_is_just_exceeded_preempts(snapshot: Make) -> None:
    running = [{"arrival_s": NOW_S, "e2e_s": 5.0}]
    assert order(plan(snapshot([URGENT], running, max_num_seqs=1), preempt_margin_s=3.9).preempt) == [0]


def test_an_exhausted_request_is_passed_over_for_the_next_one(snapshot: Make) -> None:
    running = [LAX, {**LAX, "e2e_s": 900.0, "num_preemptions": 3}]
    assert order(plan(snapshot([URGENT], running, max_num_seqs=2)).preempt) == [0]


def test_preempts_as_many_as_the_missing_blocks_take(snapshot: Make) -> None:
    # 10 blocks and one more for the next token are needed; 1 % of 100 stays free, so 3 of the 4 free ones count.
    waiting = [{**URGENT, "prompt_tokens": 160}]
    at = snapshot(waiting, [{**LAX, "kv_blocks": 4}] * 4, free_blocks=4, total_blocks=100)
    assert order(plan(at).preempt) == [3, 2]
    at = snapshot(waiting, [{**LAX, "kv_blocks": 4}] * 4, free_blocks=3, total_blocks=100)
    assert order(plan(at).preempt) == [3, 2, 1]


def test_preempts_nobody_for_one_that_waits_behind_a_late_one(snapshot: Make) -> None:
    # With late_last off the late one keeps its place at the head, so whatever is freed would go to it.
    late = {"arrival_s": 900.0, "e2e_s": 50.0}
    made = plan(snapshot([URGENT, late], [LAX, LAX], max_num_seqs=2), late_last=False)
    assert order(made.waiting) == [3, 2]
    assert not made.preempt.size


def test_late_ones_go_behind_those_that_can_be_in_time_and_ahead_of_those_without_a_deadline(snapshot: Make) -> None:
    late, later = ({"arrival_s": 900.0, "e2e_s": e2e_s} for e2e_s in (50.0, 40.0))
    made = plan(snapshot([late, {"arrival_s": 1.0}, later, URGENT], [LAX, LAX], max_num_seqs=2))
    assert order(made.waiting) == [5, 4]  # as many as there are slots: the urgent one, then the one longest late
    assert order(made.preempt) == [1]


def test_a_late_request_goes_behind_its_own_class_and_not_behind_a_less_urgent_one(snapshot: Make) -> None:
    """A stream that was late waited until every line of a batch that was due in an hour had been served."""
    line = {"class_rank": 2, "arrival_s": NOW_S, "e2e_s": 3600.0}
    late = {"class_rank": 1, "arrival_s": 900.0, "e2e_s": 50.0}
    stream = {"class_rank": 1, "arrival_s": NOW_S, "e2e_s": 5.0}
    late_line = {"class_rank": 2, "arrival_s": 900.0, "e2e_s": 50.0}
    assert order(plan(snapshot([line, late, late_line, stream])).waiting) == [3, 1, 0, 2]
    # What is late takes no other's place, and what comes behind it would not get that place.
    assert not plan(snapshot([line, late], [{**line, "e2e_s": 9000.0}], max_num_seqs=1)).preempt.size


@pytest.mark.parametrize("queue", ["waiting", "running"])
def test_without_a_deadline_class_rank_decides(queue: str, snapshot: Make) -> None:
    """A request without one comes before every less urgent class, and after deadlines of its own class or above."""
    requests = [
        {"class_rank": 3, "arrival_s": NOW_S, "e2e_s": 5.0},
        {"class_rank": 1, "arrival_s": NOW_S, "e2e_s": 9.0},
        {"class_rank": 3, "arrival_s": 1.0},
        {"class_rank": 1, "arrival_s": NOW_S, "e2e_s": 3.0},
        {"class_rank": 1, "arrival_s": 1.0},
        {"class_rank": 0, "arrival_s": 2.0},
        {"class_rank": 1, "arrival_s": 0.0},
    ]
    made = plan(snapshot(**{queue: requests}))
    # The background request's deadline of 5 s decides against the 9 s of class 1, not against who has no deadline.
    assert order(getattr(made, queue)) == [5, 3, 4, 6, 0, 1, 2]


def test_a_running_request_of_an_urgent_class_without_targets_is_no_victim_of_a_less_urgent_deadline(
    snapshot: Make,
) -> None:
    background = {**URGENT, "class_rank": 3}
    assert not plan(snapshot([background], [{"class_rank": 0}] * 2, max_num_seqs=2)).preempt.size
    assert order(plan(snapshot([background], [{"class_rank": 3}] * 2, max_num_seqs=2)).preempt) == [1]


def test_who_asked_for_a_ttft_alone_keeps_its_place_after_the_first_token(snapshot: Make) -> None:
    """It was preempted for each TTFT that came: every deadline lay before none."""
    begun = {"arrival_s": NOW_S - 1.0, "ttft_s": 1.0, "first_token_s": NOW_S, "output_tokens": 1}
    waiting = {"arrival_s": NOW_S, "ttft_s": 1.0}
    assert not plan(snapshot([waiting], [begun] * 2, max_num_seqs=2)).preempt.size
    # A reply that is half a minute ahead of its reader can make room.
    ahead = {**begun, "output_tokens": 200}
    assert order(plan(snapshot([waiting], [begun, ahead], max_num_seqs=2)).preempt) == [1]
    assert not plan(snapshot([waiting], [begun, ahead], max_num_seqs=2), default_tds=20.0).preempt.size
