"""The need by replays: what is replayed, how it is judged, and which numbers of replicas are tried."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.fleet.contract.traffic import RecentTraffic, SeenRequest
from sloserve.fleet.planning.counterfactual import (
    LINE,
    WARM_S,
    AttainedShare,
    Failures,
    Needed,
    TrafficReplay,
    attained,
    peak_in_flight,
    replay_of,
    replicas_needed,
)

CLASS = "interactive"
TARGETS = Targets(ttft_s=2.0)
NO_STEPS = StepLog(*(np.empty(0) for _ in range(2)), *(np.empty(0, np.int64) for _ in range(3)), np.empty(0))  # type: ignore[arg-type]


def seen(age_s: float, tokens: int = 20, *, ended: bool = True, **more: object) -> SeenRequest:
    return SeenRequest(age_s, "a", CLASS, 100, None, tokens, ended, TARGETS, **more)  # type: ignore[arg-type]


def steady(covers_s: float, per_s: float) -> RecentTraffic:
    ages_s = np.arange(covers_s, 0.0, -1.0 / per_s)
    return RecentTraffic(covers_s, tuple(seen(float(age_s)) for age_s in ages_s))


def served(requests: Sequence[WorkloadRequest], late: Callable[[WorkloadRequest], bool]) -> RunLog:
    logs = [
        RequestLog(one, Outcome.COMPLETED, np.array([one.arrival_s + (3.0 if late(one) else 1.0)])) for one in requests
    ]
    return RunLog(logs, NO_STEPS)


def test_a_replay_keeps_the_order_the_gaps_and_the_lengths() -> None:
    replay = replay_of(RecentTraffic(100.0, (seen(90.0, 7), seen(40.0, 9, is_line=True))), DEFAULT_CLASSES)
    assert [(one.arrival_s, one.output_tokens, one.task) for one in replay.requests] == [(10.0, 7, ""), (60.0, 9, LINE)]
    assert replay.requests[0].slo.targets == TARGETS and replay.counted_s == 30.0
    assert replay_of(steady(600.0, 1.0), DEFAULT_CLASSES).counted_s == pytest.approx(WARM_S, rel=0.02)


def test_a_class_that_the_fleet_does_not_have_is_left_out() -> None:
    odd = SeenRequest(10.0, "a", "no such class", 1)
    assert replay_of(RecentTraffic(60.0, (odd,)), DEFAULT_CLASSES).requests == ()


def test_lengths_that_are_not_known_are_drawn_from_the_ones_that_are() -> None:
    ended = tuple(seen(500.0 - k, 50 + k % 50) for k in range(300))
    cut = tuple(seen(100.0 - k, 80, ended=False) for k in range(50))
    traffic = RecentTraffic(600.0, (*ended, *cut, seen(1.0, 0, ended=False)))
    first, again = (replay_of(traffic, DEFAULT_CLASSES, seed=3) for _ in range(2))
    assert first == again != replay_of(traffic, DEFAULT_CLASSES, seed=4)
    lengths = [one.output_tokens for one in first.requests[300:350]]
    assert min(lengths) > 80 and np.median(lengths) < 100, "they outlive what they had"
    limited = SeenRequest(1.0, "a", CLASS, 1, 30, 0, False, TARGETS)
    assert replay_of(RecentTraffic(600.0, (*ended, limited)), DEFAULT_CLASSES).requests[-1].output_tokens <= 30


def test_a_rate_that_rises_is_replayed_at_the_rate_to_come() -> None:
    at_s = np.linspace(0.0, 600.0, 601)
    came = at_s + at_s**2 / 1200.0  # the rate rises from 1 to 2 a second
    ages_s = 600.0 - np.interp(np.arange(900.0), came, at_s)
    rising = RecentTraffic(600.0, tuple(seen(float(age_s)) for age_s in ages_s))
    falling = RecentTraffic(600.0, tuple(seen(600.0 - one.age_s) for one in reversed(rising.requests)))
    rates = [
        replay_of(one, DEFAULT_CLASSES, lead_s=lead_s).load[0] for one in (rising, falling) for lead_s in (0.0, 120.0)
    ]
    assert rates == pytest.approx([2.0, 2.2, 1.0, 0.9], abs=0.03)
    faster = replay_of(rising, DEFAULT_CLASSES, lead_s=120.0)
    assert faster.requests[-1].arrival_s == pytest.approx(600.0 * 1.5 / 2.2, rel=0.02)
    assert replay_of(falling, DEFAULT_CLASSES, lead_s=1200.0).load[0] == pytest.approx(0.6 * 1.5), "bounded"


def test_the_newest_requests_are_replayed_where_there_are_too_many() -> None:
    traffic = steady(600.0, 2.0)
    replay = replay_of(traffic, DEFAULT_CLASSES, most=300)
    assert len(replay.requests) == 300 and replay.requests[-1].arrival_s == pytest.approx(150.0, abs=5.0)
    assert replay.load[0] == pytest.approx(2.0, rel=0.01)


def test_attainment_is_the_one_of_the_worst_class_and_has_an_interval() -> None:
    slo = {name: DEFAULT_CLASSES.slo(name, TARGETS) for name in ("interactive", "batch")}
    requests = [
        WorkloadRequest(f"r{k}", float(k), 10, 10, slo["batch" if k % 2 else "interactive"]) for k in range(600)
    ]
    found = attained(served(requests, lambda one: one.slo is slo["batch"] and 300 <= one.arrival_s < 360), 0.0)
    assert found.expected == 0.9 and found.low < 0.87 and 0.93 < found.high <= 1.0
    assert attained(served(requests, lambda one: one.arrival_s < 100.0), 100.0) == AttainedShare(1.0, 1.0, 1.0)
    assert attained(served([], lambda one: True), 0.0).expected == 1.0


class Fleet:
    """Replicas of which ``enough`` keep the objective; ``tried`` says which numbers were served."""

    def __init__(self, enough: int) -> None:
        self.enough, self.tried = enough, list[int]()
        slo = DEFAULT_CLASSES.slo(CLASS, TARGETS)
        self.replay = TrafficReplay(tuple(WorkloadRequest(f"r{k}", float(k), 10, 10, slo) for k in range(200)), 0.0)

    def serve(self, requests: Sequence[WorkloadRequest], count: int) -> RunLog:
        self.tried.append(count)
        return served(requests, lambda one: count < self.enough)

    def needed(self, there: int, most: int = 20, **more: object) -> Needed:
        return replicas_needed(self.replay, self.serve, there, most, 0.95, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("enough", "there", "tried", "expected"),
    [
        (3, 3, [3, 2], 3),
        (3, 4, [4, 3, 2], 3),
        (3, 2, [2, 3], 3),
        (1, 1, [1], 1),
        (1, 9, [9, 8, 7, 6], 6),
        (9, 2, [2, 3, 4, 5], 6),
        (2, 0, [1, 2], 2),
    ],
)
def test_the_search_begins_at_what_there_is_and_is_bounded(
    enough: int, there: int, tried: list[int], expected: int
) -> None:
    fleet = Fleet(enough)
    found = fleet.needed(there)
    assert (fleet.tried, found.expected) == (tried, expected)
    assert found.low <= found.expected <= found.high


def test_no_more_are_needed_than_there_may_be() -> None:
    fleet = Fleet(9)
    found = fleet.needed(3, most=4)
    assert (found.expected, found.high, fleet.tried) == (4, 4, [3, 4])


def test_what_has_failed_is_not_tried_again_at_no_less_load() -> None:
    fleet, failures = Fleet(3), Failures()
    failures.note(fleet.needed(3), (1.0, 100.0), 0.95, 0.0)
    fleet.tried.clear()
    found = fleet.needed(3, misses=lambda count: failures.misses(count, (1.0, 100.0), 60.0))
    assert fleet.tried == [3] and found.expected == 3
    assert failures.misses(1, (1.0, 100.0), 60.0), "fewer fail, too"
    assert not failures.misses(2, (0.9, 100.0), 60.0) and not failures.misses(2, (1.0, 100.0), 301.0)
    assert not failures.misses(3, (1.0, 100.0), 60.0)


def test_the_streams_of_busy_replicas_are_counted() -> None:
    slo = DEFAULT_CLASSES.slo(CLASS, TARGETS)
    requests = [WorkloadRequest(f"r{k}", float(k), 10, 10, slo) for k in range(100)]
    assert peak_in_flight(served(requests, lambda one: True), 0.0) == pytest.approx(3.0, abs=1.0)
    lines = [WorkloadRequest(f"r{k}", float(k), 10, 10, slo, task=LINE) for k in range(100)]
    assert peak_in_flight(served(lines, lambda one: True), 0.0) is None
    found = Fleet(2).needed(2)
    assert found.in_flight is not None and found.in_flight >= 1.0
