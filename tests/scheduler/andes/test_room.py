"""How Andes makes room: victims against a plain reference, and who sits out when the next block is short."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.kernels.digest import DigestCurves
from sloserve.scheduler.andes.outlook import Outlook
from sloserve.scheduler.andes.room import (
    PAUSING_LEAD_S,
    HeadOfLine,
    longest_lead_first,
    short_of_blocks,
    victims_for,
)
from sloserve.scheduler.papers.andes_parts import least_worth_first
from sloserve.scheduler.policy import Snapshot
from tests.snapshots import make_snapshot

Make = Callable[..., Snapshot]
Request = dict[str, Any]
LONGEST_LEAD, LEAST_WORTH = 40.0, None
"""The least lead of a victim, or none: the least worth is preempted first."""


def outlook(at: Snapshot) -> Outlook:
    """At time 0 of requests that arrived at 0; the waiting ones come first, as in a plan."""
    slots = np.concatenate((at.waiting, at.running))
    return Outlook(at.rows, slots, np.ones(slots.size), DigestCurves(), 0.0)


def due(lead_s: float, **more: Any) -> Request:
    """Has nothing but a deadline, which is its lead."""
    return {"arrival_s": 0.0, "e2e_s": lead_s, "kv_blocks": 4} | more


def by_lead(at: Snapshot, all_: Outlook) -> Any:
    places = range(at.waiting.size, all_.slots.size)
    return np.array(sorted(places, key=lambda i: (all_.lead_s[i], at.rows.seq[all_.slots[i]])), np.int64)


def victims(
    at: Snapshot,
    lead_s: float | None = LONGEST_LEAD,
    *,
    max_preemptions: int = 1,
    blocks: Sequence[int] | None = None,
    worth: Sequence[float] | None = None,
    free_slots: int = 0,
    free_blocks: int = 0,
    most: int = 99,
) -> list[int]:
    """Slots that give way for all that wait, 4 blocks each if not said otherwise; slots count the running first."""
    all_ = outlook(at)
    queued = at.waiting.size
    heads = HeadOfLine(np.arange(queued), np.array([4] * queued if blocks is None else blocks, np.int64))
    if heads.fit(free_slots, free_blocks):
        return []
    if lead_s is None:
        order = least_worth_first(all_, np.array(worth, np.float64), by_lead(at, all_), at.rows)
    else:
        order = longest_lead_first(all_, by_lead(at, all_), lead_s, np.ones(at.running.size))
    found = victims_for(
        heads,
        all_,
        order,
        replace(at, engine=replace(at.engine, free_slots=free_slots)),
        max_preemptions=max_preemptions,
        free_blocks=free_blocks,
        most=most,
    )
    return [int(slot) for slot in all_.slots[found]]


# Victims.


def test_the_longest_leads_give_way_first_and_the_last_to_arrive_of_equals(snapshot: Make) -> None:
    at = snapshot([due(0.0)] * 4, [due(60.0), due(90.0), due(60.0), due(np.nan), due(50.0)])
    assert victims(at) == [3, 1, 2, 0]


def test_ties_end_in_seq_not_in_the_slot(snapshot: Make) -> None:
    at = snapshot([due(0.0)] * 2, [due(60.0)] * 3)
    at.rows.seq[[0, 1, 2]] = [7, 5, 6]
    assert victims(at) == [0, 2]


@pytest.mark.parametrize(
    ("head_s", "lead_s", "gives_way"),
    [
        (0.0, 40.0, False),
        (0.0, 40.1, True),
        # Who gives way has so much more than the other, whose lateness does not count.
        (0.4, 40.3, False),
        (0.4, 40.5, True),
        (-30.0, 40.0, False),
        (-30.0, 40.1, True),
    ],
)
def test_a_victim_is_ahead_by_the_least_lead(head_s: float, lead_s: float, gives_way: bool, snapshot: Make) -> None:
    assert victims(snapshot([due(head_s)], [due(lead_s)])) == ([0] if gives_way else [])


def test_without_a_least_lead_who_is_ahead_at_all_gives_way(snapshot: Make) -> None:
    at = snapshot([due(0.3)], [due(0.2), due(0.4)])
    assert victims(at, 0.0) == [1]


@pytest.mark.parametrize(
    ("more", "max_preemptions", "gives_way"),
    [
        ({"preemptable": False}, 1, False),
        ({"num_preemptions": 1}, 1, False),
        ({"num_preemptions": 1}, 2, True),
        ({"num_preemptions": 2}, 2, False),
        ({}, 0, False),
        ({"pausable": False}, 1, True),
    ],
)
@pytest.mark.parametrize("lead_s", [40.0, None])
def test_whom_nobody_may_preempt(
    lead_s: float | None, more: Request, max_preemptions: int, gives_way: bool, snapshot: Make
) -> None:
    at = snapshot([due(0.0)], [due(50.0), due(90.0, **more)])
    at.rows.num_preemptions[0] = 9  # so that it stays in any case
    found = victims(at, lead_s, worth=[0.5, 0.1, 0.0], max_preemptions=max_preemptions)
    assert found == ([1] if gives_way else [])


def test_those_who_may_not_are_passed_over(snapshot: Make) -> None:
    at = snapshot([due(0.0)] * 2, [due(50.0), due(90.0, preemptable=False), due(70.0, num_preemptions=1), due(60.0)])
    assert victims(at) == [3, 0]


@pytest.mark.parametrize(
    ("free_slots", "free_blocks", "expected"),
    [
        (0, 99, [2, 1]),
        (1, 99, [2]),
        (2, 99, []),
        (9, 8, []),
        (9, 7, [2]),
        (9, 4, [2]),
        # Nothing is free, or even less, with what is left for growth.
        (9, 0, [2, 1]),
        (9, -1, [2, 1, 0]),
        # Enough for the first, not for the second.
        (9, -6, [2, 1, 0]),
        # Not enough for anybody.
        (9, -9, []),
    ],
)
def test_as_many_as_slots_and_blocks_take(
    free_slots: int, free_blocks: int, expected: list[int], snapshot: Make
) -> None:
    at = snapshot([due(0.0)] * 2, [due(50.0), due(60.0), due(70.0)])
    assert victims(at, free_slots=free_slots, free_blocks=free_blocks) == expected


def test_who_cannot_be_admitted_ends_it_also_for_those_behind(snapshot: Make) -> None:
    at = snapshot([due(0.0)] * 3, [due(60.0)] * 4)
    assert victims(at, blocks=[4, 99, 4]) == [3]
    assert victims(at, blocks=[99, 4, 4]) == []


@pytest.mark.parametrize(("most", "expected"), [(0, []), (1, [3]), (2, [3, 2]), (9, [3, 2, 1])])
def test_at_most_so_many(most: int, expected: list[int], snapshot: Make) -> None:
    at = snapshot([due(0.0)] * 3, [due(60.0)] * 4)
    assert victims(at, most=most) == expected
    assert victims(at, LEAST_WORTH, worth=[0.5] * 3 + [0.4, 0.3, 0.2, 0.1], most=most) == expected


def test_one_that_needs_more_victims_than_are_allowed_gets_none(snapshot: Make) -> None:
    at = snapshot([due(0.0)], [due(60.0)] * 4)
    assert victims(at, blocks=[8], most=1) == [] and victims(at, blocks=[8], most=2) == [3, 2]


@pytest.mark.parametrize("lead_s", [LONGEST_LEAD, LEAST_WORTH])
def test_nobody_waits_or_nobody_runs(lead_s: float | None, snapshot: Make) -> None:
    assert victims(snapshot([], [due(60.0)] * 2), lead_s, worth=[1.0, 1.0]) == []
    assert victims(snapshot([due(0.0)]), lead_s, worth=[1.0]) == []


def test_the_papers_rule_preempts_who_is_worth_less_whatever_his_lead(snapshot: Make) -> None:
    at = snapshot([due(0.0)] * 2, [due(1.0), due(90.0), due(2.0), due(-5.0)])
    # The first two are worth of those that wait. Equal worth is not less.
    assert victims(at, LEAST_WORTH, worth=[0.5, 0.4, 0.1, 0.4, 0.2, 0.3]) == [0, 2]
    assert victims(at, LEAST_WORTH, worth=[0.5, 0.1, 0.1, 0.4, 0.2, 0.3]) == [0]
    assert victims(at, LEAST_WORTH, worth=[0.5, 0.4, 0.3, 0.3, 0.3, 0.3]) == [0, 1]


RUNNING = st.lists(
    st.builds(
        due,
        st.integers(-20, 99),
        kv_blocks=st.integers(1, 9),
        preemptable=st.booleans() | st.just(True),
        num_preemptions=st.integers(0, 2),
    ),
    max_size=8,
)


@given(
    heads=st.lists(st.tuples(st.integers(-20, 20), st.integers(1, 20)), max_size=5),
    running=RUNNING,
    lead_s=st.none() | st.integers(0, 60),
    free_slots=st.integers(0, 4),
    free_blocks=st.integers(-10, 30),
    most=st.integers(0, 8),
    max_preemptions=st.integers(0, 3),
    chance=st.randoms(use_true_random=False),
)
def test_against_the_least_sufficient_number(
    heads: list[tuple[int, int]],
    running: list[Request],
    lead_s: int | None,
    free_slots: int,
    free_blocks: int,
    most: int,
    max_preemptions: int,
    chance: Any,
) -> None:
    worth = [chance.randrange(5) / 4 for _ in [*heads, *running]]
    worth[: len(heads)] = sorted(worth[: len(heads)], reverse=True)
    at = make_snapshot([due(lead) for lead, _ in heads], running, max_num_seqs=99)

    # In what order they would go, and by how much each exceeds a head.
    may = [i for i, r in enumerate(running) if r["preemptable"] and r["num_preemptions"] < max_preemptions]
    if lead_s is None:
        order = sorted(may, key=lambda i: (worth[len(heads) + i], i))
    else:
        order = sorted((i for i in may if running[i]["e2e_s"] >= lead_s), key=lambda i: (-running[i]["e2e_s"], -i))
    order = order[:most]

    def gives_way(i: int, head: int) -> bool:
        if lead_s is None:
            return worth[len(heads) + i] < worth[head]
        return bool(running[i]["e2e_s"] - max(heads[head][0], 0) > lead_s)

    taken = 0
    for head in range(len(heads)):
        need = sum(blocks for _, blocks in heads[: head + 1])
        enough = [
            n
            for n in range(taken, len(order) + 1)
            if free_slots + n > head and free_blocks + sum(running[i]["kv_blocks"] for i in order[:n]) >= need
        ]
        if not enough or not all(gives_way(i, head) for i in order[taken : enough[0]]):
            break
        taken = enough[0]

    found = victims(
        at,
        None if lead_s is None else float(lead_s),
        max_preemptions=max_preemptions,
        blocks=[blocks for _, blocks in heads],
        worth=worth,
        free_slots=free_slots,
        free_blocks=free_blocks,
        most=most,
    )
    assert found == order[:taken]


# Pauses.


def reply(lead_s: float, computed: int = 32, **more: Any) -> Request:
    """Of a prompt of 16 tokens; at each multiple of 16 it needs a block for the next one."""
    return due(lead_s, computed_tokens=computed) | more


def sit_out(at: Snapshot) -> list[int]:
    all_ = outlook(at)
    return [int(slot) for slot in short_of_blocks(all_, by_lead(at, all_), at.rows, at.engine)]


@pytest.mark.parametrize(("free_blocks", "expected"), [(0, [1, 2, 0]), (1, [1, 2]), (2, [1]), (3, []), (4, [])])
def test_as_many_sit_out_as_blocks_are_missing_the_longest_lead_first(
    free_blocks: int, expected: list[int], snapshot: Make
) -> None:
    at = snapshot(running=[reply(10.0), reply(30.0), reply(20.0), reply(40.0, computed=33)], free_blocks=free_blocks)
    assert sit_out(at) == expected


def test_nobody_sits_out_where_more_blocks_are_free_than_are_needed(snapshot: Make) -> None:
    running = [reply(10.0), reply(30.0), reply(20.0, computed=33), reply(40.0, computed=33)]
    assert sit_out(snapshot(running=running, free_blocks=3)) == []


@pytest.mark.parametrize(
    ("one", "sits_out"),
    [
        (reply(PAUSING_LEAD_S), False),
        (reply(PAUSING_LEAD_S + 0.1), True),
        (reply(-9.0), False),
        (reply(np.nan), True),
        (reply(50.0, pausable=False), False),
        (reply(50.0, preemptable=False), True),
        # Needs no block now, or has its blocks allocated by the prompt.
        (reply(50.0, computed=31), False),
        (reply(50.0, computed=33), False),
        (reply(50.0, prompt_tokens=64), False),
        (reply(50.0, prompt_tokens=32), True),
        (reply(50.0, computed=0, prompt_tokens=16), False),
        # Resumed: half of its output so far is still to be computed again.
        (reply(50.0, output_tokens=32), False),
        (reply(50.0, output_tokens=17), True),
    ],
)
def test_who_sits_out_when_his_next_block_is_missing(one: Request, sits_out: bool, snapshot: Make) -> None:
    assert PAUSING_LEAD_S == 5.0
    assert sit_out(snapshot(running=[one], free_blocks=0)) == ([0] if sits_out else [])


def test_those_who_may_not_sit_out_still_need_their_blocks(snapshot: Make) -> None:
    running = [reply(1.0), reply(90.0, pausable=False), reply(10.0), reply(20.0)]
    assert sit_out(snapshot(running=running, free_blocks=2)) == [3, 2]
    assert sit_out(snapshot(running=running, free_blocks=3)) == [3]


def test_the_next_block_is_by_the_block_size(snapshot: Make) -> None:
    running = [reply(50.0, computed=48), reply(50.0, computed=64)]
    assert sit_out(snapshot(running=running, free_blocks=0, block_size=32)) == [1]
