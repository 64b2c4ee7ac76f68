"""What readers lived through: shares and speeds by hand, and a sample of timelines that no outcome decides."""

from collections.abc import Callable

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.runlog import RequestLog, RunLog
from sloserve.sim.report.experience import MAX_TIMELINES, experience, replies_of

MakeRequest = Callable[..., RequestLog]
MakeRun = Callable[..., RunLog]


def test_shares_and_speeds(request_log: MakeRequest) -> None:
    """Expected: the first token within 1 s, then 5 a second."""
    punctual = request_log("a", 2.0, [3.0 + i / 5 for i in range(40)])
    late = request_log("b", 2.0, [3.2 + i / 5 for i in range(40)])
    stalled = request_log("c", 2.0, [3.0, 12.0])
    found = experience([punctual, late, stalled], np.array([0.2, 0.2, 9.0, 0.0]))
    assert found["qoe_perfect_share"] == pytest.approx(1 / 3), "despite rounding"
    assert found["qoe_good_share"] == pytest.approx(2 / 3)
    assert found["tds_p90"] == pytest.approx(5.0), "a reply in one instant has no speed"
    assert found["tds_p10"] == pytest.approx(np.percentile([1 / 9, 5.0, 5.0], 10))


def test_replies_are_those_with_a_timeline(request_log: MakeRequest) -> None:
    logs = [
        request_log("a", 1.0, [2.0, 2.1]),
        request_log("b", 1.0, [9.0], slo_class="batch"),
        request_log("c", 1.0, [], outcome=Outcome.LOST),
    ]
    found = replies_of(logs, seed=0)
    assert found is not None
    assert (found.total_tokens.tolist(), found.qoe.tolist()) == ([12.0, 11.0], [1.0, 0.0])
    assert (found.timelines.ttft_s, found.timelines.tds, found.timelines.replies) == (1.0, 5.0, 2)
    assert replies_of(logs[1:2], seed=0) is None


@pytest.mark.slow
def test_timelines_are_of_the_same_requests_under_every_policy(synthetic_run: MakeRun) -> None:
    fast, slow = (synthetic_run(seed=1, delay_s=delay_s, requests=400).requests for delay_s in (0.0, 5.0))
    tokens = []
    for logs in (fast, slow):
        found = replies_of(logs, seed=3)
        assert found is not None
        sample = found.timelines.delivered_s
        assert len(sample) == 7, "3.3 % of 200 interactive ones"
        assert all(times_s[0] >= 0.0 for times_s in sample)
        tokens.append([times_s.size for times_s in sample])
    assert tokens[0] == tokens[1]
    other = replies_of(fast, seed=4)
    assert other is not None and [times_s.size for times_s in other.timelines.delivered_s] != tokens[0]


@pytest.mark.slow
def test_timelines_are_capped(request_log: MakeRequest) -> None:
    found = replies_of([request_log(f"r{i}", 0.0, [0.5]) for i in range(2000)], seed=0)
    assert found is not None and len(found.timelines.delivered_s) == MAX_TIMELINES
