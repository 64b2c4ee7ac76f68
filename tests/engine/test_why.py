"""Why a request was preempted: the sentence says which of the two is due first, and no duration is negative."""

import math

import pytest

from sloserve.engine.why import PHASE_IN_WORDS, SAYS, Phase, Why, preempted_for, sentence


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


def test_each_reason_and_each_phase_has_words() -> None:
    assert set(SAYS) == set(Why) and len(PHASE_IN_WORDS) == len(Phase)
