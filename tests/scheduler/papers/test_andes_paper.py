"""Andes as published: when it chooses, whom it chooses by either solver, and its cap on the average preemptions."""

from typing import Any

import numpy as np
import pytest

from sloserve.scheduler.papers.andes_paper import AndesPaper
from sloserve.scheduler.policy import Plan, Snapshot
from tests.scheduler.andes.readers import NOW_S, Make, Request, Steps, ahead, engine, new, order
from tests.scheduler.andes.readers import plan as checked_plan

SHORT = {"free_blocks": 100}
LONG = {"kv_blocks": 57, "computed_tokens": 897, "prompt_tokens": 480}


def told(at: Snapshot, **settings: Any) -> AndesPaper:
    policy = AndesPaper(AndesPaper.Settings(**({"length": "oracle"} | settings)))
    for slot in np.concatenate((at.waiting, at.running)).tolist():
        policy.arrived(at.rows, slot, NOW_S)
    return policy


def plan(at: Snapshot, **settings: Any) -> Plan:
    return checked_plan(at, told(at, **settings))


@pytest.mark.parametrize(
    ("free_blocks", "step_s", "plans"), [(101, 0.01, False), (100, 0.01, True), (500, 0.49, False), (500, 0.51, True)]
)
def test_chooses_only_where_memory_is_short_or_steps_are_slower_than_the_fastest_reader(
    free_blocks: int, step_s: float, plans: bool, snapshot: Make
) -> None:
    """The fastest reader here takes 2 tokens a second."""
    at = snapshot([new()], [ahead(9.0)], free_blocks=free_blocks)
    assert (plan(engine(at, step_latency=Steps(step_s))) is not Plan.IDENTITY) == plans


def test_who_gains_least_per_token_gives_way_to_who_gains_more(snapshot: Make) -> None:
    at = snapshot([new(prompt_tokens=300)], [ahead(200.0, **LONG)] * 2, total_blocks=120, free_blocks=0)
    made = plan(at)
    assert made.running is not None
    assert (order(made.preempt), order(made.waiting), order(made.running)) == ([1], [2], [0])


def test_leaves_running_who_gains_nothing_where_there_is_room(snapshot: Make) -> None:
    at = snapshot([new()], [ahead(500.0)], **SHORT)
    made = plan(at)
    assert not made.preempt.size and made.max_running is None


def crowd(snapshot: Make, preempted: int = 0) -> Snapshot:
    """Two that wait for the room of four which gain nothing, and were preempted so often already."""
    idle = ahead(20.0, kv_blocks=25, prompt_tokens=330, computed_tokens=387, num_preemptions=preempted)
    return snapshot([new(prompt_tokens=380)] * 2, [idle] * 4, total_blocks=100, free_blocks=0)


@pytest.mark.parametrize(
    ("cap", "before", "victims"), [(1.0, 0, 2), (0.2, 0, 1), (0.0, 0, 0), (9.0, 5, 2), (1.0, 2, 0)]
)
def test_caps_the_average_and_not_what_happens_to_one_request(
    cap: float, before: int, victims: int, snapshot: Make
) -> None:
    """Six have arrived; four of them were each preempted ``before`` times."""
    assert plan(crowd(snapshot, before), preemption_cap=cap).preempt.size == victims


def test_preemptions_of_requests_that_ended_count_towards_the_cap(snapshot: Make) -> None:
    at = crowd(snapshot, 1)
    policy = told(at, preemption_cap=1.0)
    assert checked_plan(at, policy).preempt.size == 2
    policy.finished(at.rows, int(at.running[0]), NOW_S)  # counted twice here: it is still in the snapshot
    assert checked_plan(at, policy).preempt.size == 1


def rich(prompt_tokens: int, waited_s: float) -> Request:
    return new(waited_s, prompt_tokens=prompt_tokens)


def test_the_exact_solver_takes_what_fits_where_the_greedy_one_stops(snapshot: Make) -> None:
    """By gain per token the lightest goes first and leaves no room for the pair of most gain."""
    waiting = [rich(15, 3.0), rich(300, 0.0), rich(319, 0.0)]
    at = snapshot(waiting, total_blocks=40, free_blocks=4, max_num_seqs=2)
    greedy, exact = told(at), told(at, solver="dp")
    assert checked_plan(at, greedy).max_running == 2 and greedy.solver_cells == 0
    made = checked_plan(at, exact)
    assert made.max_running == 2 and set(order(made.waiting)[:2]) == {1, 2}
    assert exact.solver_cells >= 3 * 2 * 640


def test_refuses_an_unknown_solver() -> None:
    with pytest.raises(ValueError, match="solver: 'milp' is not one of greedy, dp"):
        AndesPaper.Settings(solver="milp")
