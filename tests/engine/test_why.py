"""Why a request waits or was preempted: sentences say which request goes first, and no duration is negative."""

import math

import numpy as np
import pytest

from sloserve.engine.why import (
    NEXT_STEP,
    PHASE_IN_WORDS,
    SAYS,
    Cause,
    QueueRows,
    RequestPhase,
    Why,
    preempted_for,
    queue_causes,
    sentence,
    told_with_head,
)


@pytest.mark.parametrize(
    ("due_later_s", "why", "said"),
    [
        (93.0, Why.PLAN, "preempted for request 367, which is due 93 s earlier"),
        (-49.4, Why.PLAN_LATER, "preempted for request 367, although that is due 49.4 s later"),
        (0.0, Why.PLAN_OTHER, "preempted for request 367"),
        (-0.04, Why.PLAN_OTHER, "preempted for request 367"),
        (math.nan, Why.PLAN_OTHER, "preempted for request 367"),
    ],
)
def test_it_says_which_request_is_due_first(due_later_s: float, why: Why, said: str) -> None:
    cause = preempted_for(367.0, due_later_s)
    assert cause.why is why and sentence(SAYS[cause.why], cause.figure, cause.of) == said
    # The key of a request is "0-12345": an operator looks for the number as it stands there.
    assert "for request 12345" in sentence(SAYS[why], 12345.0, cause.of)


def test_each_reason_and_each_phase_has_words() -> None:
    assert set(SAYS) == set(Why) and len(PHASE_IN_WORDS) == len(RequestPhase)


def test_each_request_of_a_queue_has_a_reason() -> None:
    head = Cause(Why.BLOCKS, 12.0, 4.0)
    queue = QueueRows(
        class_rank=np.array([1, 0, 2, 1, 1, 0]),
        level=np.array([0, 0, 0, 0, 1, 1]),
        missed=np.array([False, False, False, False, False, True]),
    )
    found = queue_causes(queue, np.arange(6), head, running=3).tolist()
    assert found[0] == [Why.BLOCKS, 12, 4]
    assert found[1][:2] == [Why.QUEUE, 1]
    assert found[2] == [Why.CLASS, 2, 2]
    assert found[3] == [Why.CLASS, 1, 3]
    assert found[4] == [Why.SHARE, 4, 4]
    assert found[5] == [Why.GIVEN_UP, 5, 3]
    late_first = QueueRows(queue.class_rank, queue.level, ~queue.missed)
    assert queue_causes(late_first, np.array([0]), head, running=3).tolist() == [[Why.GIVEN_UP, 0, 3]]


@pytest.mark.parametrize(
    ("head", "running", "first", "second"),
    [
        (Cause(Why.ENGINE), 3, Why.ENGINE, Why.QUEUE),
        (Cause(Why.TOKENS, 8.0, 8.0), 3, Why.TOKENS, Why.GIVEN_UP),
        (Cause(), 0, Why.NOTHING, Why.GIVEN_UP),
        (Cause(Why.PLACES, 3.0, 3.0), 3, Why.GIVEN_UP, Why.GIVEN_UP),
    ],
)
def test_a_request_is_given_up_only_where_the_plan_holds_it_up(
    head: Cause, running: int, first: Why, second: Why
) -> None:
    queue = QueueRows(np.zeros(2, np.int64), np.zeros(2, np.int64), np.ones(2, np.bool_))
    assert queue_causes(queue, np.arange(2), head, running)[:, 0].tolist() == [first, second]


def test_a_request_behind_others_is_told_what_holds_up_the_first() -> None:
    head = Cause(Why.BLOCKS, 12.0, 4.0)
    said, next_step = told_with_head(Cause(Why.CLASS, 2.0, 3.0), head)
    assert said == (
        "requests ahead of it: 3, of more urgent classes: 2; the first of the queue waits: it needs 12 KV blocks, and "
        "4 are free"
    )
    assert next_step == NEXT_STEP[Why.BLOCKS]
    assert told_with_head(Cause(Why.SHARE, 2.0), head) == (sentence(SAYS[Why.SHARE], 2, None), NEXT_STEP[Why.SHARE])
    assert told_with_head(Cause(), Cause()) == ("", None)
