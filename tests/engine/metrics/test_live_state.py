from collections.abc import Sequence
from typing import Any

from sloserve.engine.metrics.live_state import burn_rates, calm, how_it_fares, state_of


def figures(*attained: Sequence[float | int | None], not_served: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    return {"attained": attained, "not_served": not_served}


def test_a_single_missed_request_raises_no_alarm_but_is_named() -> None:
    one = figures([0.0, 1], [0.0, 1])
    assert state_of(0, burn_rates(one["attained"]), (0, 0)) == "fine"
    assert calm({"chat": one}) == "No alarm. Missed targets within 10 min: chat 1 of 1."


def test_without_a_missed_request_all_are_in_time() -> None:
    by_class = {"chat": figures([None, 0], [1.0, 400]), "batch": figures([None, 0], [None, 0])}
    assert calm(by_class) == "Every class is in time."


def test_three_classes_are_named_those_with_the_largest_share_first() -> None:
    shares = {"a": (0.998, 1_000), "b": (0.5, 2), "c": (0.96, 100), "d": (0.99, 100), "e": (0.9667, 30)}
    assert calm({name: figures([1.0, 3], one) for name, one in shares.items()}) == (
        "No alarm. Missed targets within 10 min: b 1 of 2, c 4 of 100, e 1 of 30, other classes 3 of 1,100."
    )


def test_requests_without_targets_that_were_not_served_are_named_and_several_of_them_hold_a_class_back() -> None:
    few = figures([None, 0], [0.5, 2], not_served=(2, 2))
    assert state_of(0, burn_rates(few["attained"]), few["not_served"]) == "fine"
    lost = {"a": 1_500, "b": 1, "c": 1}
    others = {name: figures([None, 0], [None, 0], not_served=(0, count)) for name, count in lost.items()}
    assert calm({"chat": few} | others) == (
        "No alarm. Missed targets within 10 min: chat 1 of 2. "
        "Without targets and not served within 10 min: a 1,500, chat 2, b 1, other classes 1."
    )
    many = figures([1.0, 7], [1.0, 9], not_served=(3, 3))
    assert state_of(0, burn_rates(many["attained"]), many["not_served"]) == "late"
    assert how_it_fares(many) == (
        "100% of 7 in time within 60 s, 100% of 9 in time within 10 min; 3 without targets not served within 60 s"
    )
