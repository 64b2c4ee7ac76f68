"""The request table: slots are reused, columns grow, and only what a policy needs is kept."""

import numpy as np
import pytest

from sloserve.core.rows import ALWAYS_KEPT, COLUMNS, Rows, State


def test_a_fresh_row_has_the_next_seq_waits_and_holds_the_fresh_values() -> None:
    rows = Rows(frozenset(COLUMNS))
    slots = [rows.add(prompt_tokens=7), rows.add(arrival_s=3.5)]
    assert rows.seq[slots].tolist() == [0, 1]
    assert rows.state[slots].tolist() == [State.WAITING, State.WAITING]
    assert rows.prompt_tokens[slots].tolist() == [7, 0]
    assert np.isnan(rows.arrival_s[slots[0]]) and rows.arrival_s[slots[1]] == 3.5
    assert rows.oracle_output_tokens[slots].tolist() == [-1, -1]
    assert len(rows) == 2


def test_a_freed_slot_is_reused_with_nothing_left_of_its_last_request() -> None:
    rows = Rows(frozenset(COLUMNS), capacity=1)
    slot = rows.add(prompt_tokens=9, ttft_s=1.0)
    rows.preemptable[slot] = False
    rows.free(slot)
    assert len(rows) == 0 and rows.state[slot] == State.FREE
    again = rows.add()
    assert again == slot and rows.seq[again] == 1
    assert rows.prompt_tokens[again] == 0 and np.isnan(rows.ttft_s[again]) and rows.preemptable[again]


def test_growth_keeps_what_is_there() -> None:
    rows = Rows(frozenset({"prompt_tokens"}), capacity=2)
    slots = [rows.add(prompt_tokens=10 + i) for i in range(9)]
    assert sorted(slots) == slots == list(range(9))
    assert rows.prompt_tokens[slots].tolist() == [10 + i for i in range(9)]
    assert rows.seq[slots].tolist() == list(range(9))
    assert rows.capacity == rows.prompt_tokens.size == rows.state.size == 16
    assert rows.slots_in(State.WAITING).tolist() == slots


def test_seq_counts_arrivals_although_slots_do_not() -> None:
    rows = Rows(frozenset(), capacity=4)
    first, second = rows.add(), rows.add()
    rows.free(first)
    assert rows.add() == first
    assert rows.seq[first] > rows.seq[second]


def test_columns_that_are_not_needed_are_not_kept_and_values_for_them_are_ignored() -> None:
    rows = Rows(frozenset({"priority"}))
    slot = rows.add(priority=3, prompt_tokens=5)
    assert rows.kept == ALWAYS_KEPT | {"priority"}
    assert rows.priority[slot] == 3
    with pytest.raises(AttributeError, match="prompt_tokens"):
        _ = rows.prompt_tokens


def test_an_unknown_column_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"unknown row columns \['colour'\]; known: seq, state"):
        Rows(frozenset({"colour"}))


def test_slots_in_several_states_ascend() -> None:
    rows = Rows(frozenset())
    for state in (State.RUNNING, State.BLOCKED, State.PREEMPTED, State.WAITING):
        rows.add(state=state)
    assert rows.slots_in(State.WAITING, State.PREEMPTED).tolist() == [2, 3]
    assert rows.slots_in(State.BLOCKED).tolist() == [1]
    assert (rows.count(State.WAITING, State.PREEMPTED), rows.count(State.BLOCKED)) == (2, 1)
