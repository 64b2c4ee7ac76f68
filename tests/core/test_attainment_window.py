"""Attainment of the latest requests: what is remembered, for how long, and what it adds up to."""

import numpy as np
import pytest

from sloserve.core.attainment_window import MAX_REQUESTS, SPAN_S, AttainmentWindow, not_served, ratios, shown
from sloserve.core.outcome import Outcome

T0 = 1_700_000_000.0


class Window(AttainmentWindow):
    """The only one of its class."""

    def __init__(self) -> None:
        self.stamps = np.zeros(MAX_REQUESTS, np.uint64)
        super().__init__(self.stamps)

    def ratios(self, now_s: float) -> dict[str, float]:
        return ratios([self.stamps], now_s)


def test_each_target_counts_among_those_that_have_it_and_all_of_them_together() -> None:
    window = Window()
    window.record({"ttft": True, "tpot": True}, Outcome.COMPLETED, T0)
    window.record({"ttft": True, "tpot": False}, Outcome.COMPLETED, T0)
    window.record({"e2e": False}, Outcome.REJECTED, T0)
    window.record({"ttft": False}, Outcome.COMPLETED, T0)
    assert window.ratios(T0) == pytest.approx(
        {"ttft": 2 / 3, "tpot": 1 / 2, "e2e": 0.0, "all": 1 / 4, "all_admitted": 1 / 3}
    )


def test_a_share_of_nothing_is_left_out() -> None:
    window = Window()
    assert window.ratios(T0) == {}
    window.record({"ttft": False}, Outcome.REJECTED, T0)
    assert window.ratios(T0) == {"ttft": 0.0, "all": 0.0}


def test_requests_are_forgotten_with_time_and_by_number() -> None:
    window = Window()
    window.record({"ttft": False}, Outcome.COMPLETED, T0)
    window.record({"ttft": True}, Outcome.COMPLETED, T0 + 1.0)
    assert window.ratios(T0 + SPAN_S)["all"] == 0.5
    assert window.ratios(T0 + SPAN_S + 0.5)["all"] == 1.0
    assert window.ratios(T0 + SPAN_S + 1.5) == {}
    for i in range(MAX_REQUESTS + 1):
        window.record({"ttft": i > 0}, Outcome.COMPLETED, T0)
    assert window.ratios(T0)["all"] == 1.0


def test_windows_of_several_processes_are_one_and_the_latest_of_all_count() -> None:
    first, second = Window(), Window()
    for i in range(MAX_REQUESTS):
        first.record({"ttft": False}, Outcome.COMPLETED, T0 + i * 1e-3)
    for i in range(MAX_REQUESTS // 4):
        second.record({"ttft": True}, Outcome.COMPLETED, T0 + 10.0 + i * 1e-3)
    assert ratios([first.stamps, second.stamps], T0 + 20.0)["ttft"] == 0.25


def test_requests_without_targets_count_only_if_they_were_not_served_and_apart() -> None:
    window = Window()
    window.record({"ttft": False}, Outcome.FAILED, T0)
    for outcome in Outcome:
        window.record({}, outcome, T0)
    window.record({}, Outcome.FAILED, T0 - 100.0)
    not_by_their_clients = {Outcome.REJECTED, Outcome.EVICTED, Outcome.FAILED, Outcome.LOST}
    assert not_served([window.stamps], T0) == [len(not_by_their_clients), len(not_by_their_clients) + 1]
    assert shown([window.stamps], T0) == [[0.0, 1], [0.0, 1]]
    assert window.ratios(T0) == {"ttft": 0.0, "all": 0.0, "all_admitted": 0.0}
