"""What is learned from the drafts of a step, and from which requests nothing is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sloserve.core.arrays import IntArray
from sloserve.core.rows import Rows
from sloserve.engine.draft_control import DraftControl, Verified, choose_drafts, without_drafts
from sloserve.lso.drafted import DRAFT_COLUMNS
from sloserve.scheduler.policy import Plan
from tests import bounded
from tests.snapshots import make_snapshot

THREE = np.array([0, 1, 2])


def table() -> tuple[Rows, IntArray]:
    """Return a table of three requests, of classes 0, 1 and 1, and their slots."""
    rows = Rows(DRAFT_COLUMNS)
    return rows, np.array([rows.add(class_id=class_id) for class_id in (0, 1, 1)])


def test_a_request_that_got_nothing_from_the_step_before_teaches_nothing() -> None:
    """It has just begun, come back or been paused, and its drafts are placeholders."""
    (rows, slots), control = table(), DraftControl(2, 3)
    control.learn(rows, slots, np.array([4, 4, 4]), np.array([3, 3, 3]))
    assert not rows.drafts_promised[slots].any() and not rows.drafts_accepted[slots].any()
    control.learn(rows, slots[:2], np.array([4, 1]), np.array([3, 3]))
    assert rows.drafts_accepted[slots].tolist() == [3.0, 0.0, 0.0]
    assert (rows.drafts_promised[slots[:2]] > 0).all()
    control.learn(rows, slots[1:], np.array([2, 4]), np.array([3, 3]))
    assert rows.drafts_accepted[slots].tolist() == [3.0, 1.0, 0.0]
    assert control.facts.of_class[0] > control.facts.of_class[1]


def test_who_takes_the_slot_of_another_request_has_just_begun() -> None:
    rows, control = Rows(DRAFT_COLUMNS), DraftControl(1, 3)
    slot = rows.add(class_id=0)
    control.learn(rows, np.array([slot]), np.array([1]), np.array([0]))
    rows.free(slot)
    assert rows.add(class_id=0) == slot
    control.learn(rows, np.array([slot]), np.array([4]), np.array([3]))
    assert rows.drafts_accepted[slot] == 0.0


def test_a_table_may_grow_and_lack_the_columns() -> None:
    rows, control = Rows(frozenset({"prompt_tokens"})), DraftControl(1, 2)
    slots = np.array([rows.add()])
    control.learn(rows, slots, np.array([1]), np.array([0]))
    capacity = rows.capacity
    with bounded.within("the table of rows to grow"):
        while rows.capacity == capacity:
            rows.add()
    control.learn(rows, slots, np.array([3]), np.array([2]))
    assert control.facts.tokens_per_step > DraftControl(1, 2).facts.tokens_per_step


def test_what_was_learned_goes_on_with_other_rows() -> None:
    (rows, slots), before = table(), DraftControl(2, 3)
    for _ in range(2):
        before.learn(rows, slots, np.full(slots.size, 4), np.full(slots.size, 3))
    after = DraftControl(2, 3)
    after.learn_from(before)
    assert after.facts.tokens_per_step == before.facts.tokens_per_step


@pytest.mark.parametrize(("budget", "left"), [(None, None), (100, 95), (3, 1)])
def test_what_drafts_leave_is_not_for_prompts(budget: int | None, left: int | None) -> None:
    engine = replace(make_snapshot().engine, decode_tokens=4)
    verified = Verified(THREE, np.array([0, 2, 2]))
    assert without_drafts(Plan(token_budget=budget), engine, verified).token_budget == left


@pytest.mark.parametrize("own", [[0, 0], [3, 1]])
def test_the_choice_is_made_for_the_drafts_that_each_decode_has(
    monkeypatch: pytest.MonkeyPatch, own: list[int]
) -> None:
    """They take their tokens of the step, and prompts get what is left."""
    seen: list[Any] = []

    def lengths(rows: Rows, decodes: IntArray, own: IntArray, *rest: Any, by_slack: bool) -> None:
        seen.extend((own.tolist(), rest[2].prefill_tokens))

    monkeypatch.setattr("sloserve.engine.draft_control.draft_lengths", lengths)
    decode = {"prompt_tokens": 9, "output_tokens": 2, "computed_tokens": 10}
    at = make_snapshot([{"prompt_tokens": 1000}], [decode, decode], max_num_seqs=3)
    engine = replace(at.engine, decode_tokens=4, token_budget=20)
    chosen = choose_drafts(
        at.rows,
        at.running,
        Plan(),
        engine,
        0.0,
        by_slack=True,
        drafts_of=lambda slots: np.array(own),
        first_waiting=lambda most: at.waiting[:most],
        expected_left=lambda slots: np.ones(slots.size),
    )
    assert chosen is None and seen == [own, 20 - 2 - sum(own)]
