from sloserve.engine.metrics.live_state import burn_rates, calm, state_of


def test_a_single_missed_request_raises_no_alarm_but_is_named() -> None:
    attained = [[0.0, 1], [0.0, 1]]
    assert state_of(0, burn_rates(attained)) == "fine"
    assert calm({"chat": attained}) == "No alarm. Missed targets within 10 min: chat 1 of 1."


def test_without_a_missed_request_all_are_in_time() -> None:
    assert calm({"chat": [[None, 0], [1.0, 400]], "batch": [[None, 0], [None, 0]]}) == "Every class is in time."


def test_three_classes_are_named_those_with_the_largest_share_first() -> None:
    shares = {"a": (0.998, 1_000), "b": (0.5, 2), "c": (0.96, 100), "d": (0.99, 100), "e": (0.9667, 30)}
    assert calm({name: [[1.0, 3], list(one)] for name, one in shares.items()}) == (
        "No alarm. Missed targets within 10 min: b 1 of 2, c 4 of 100, e 1 of 30, other classes 3 of 1,100."
    )
