"""Synthetic run logs for the tests of reports."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog, StageTimes, StepLog
from sloserve.core.slo import SLO, SLOClass, Targets

CLASSES = {
    "interactive": SLOClass("interactive", rank=0, targets=Targets(ttft_s=1.0, tds=5.0)),
    "batch": SLOClass("batch", rank=1, targets=Targets(e2e_s=20.0)),
    "free": SLOClass("free", rank=2),
}


def make_steps(durations_s: Sequence[float] = (), tokens: Sequence[int] = (), kv: Sequence[float] = ()) -> StepLog:
    steps = len(durations_s)
    return StepLog(
        end_s=np.cumsum(np.array(durations_s, np.float64)),
        duration_s=np.array(durations_s, np.float64),
        scheduled_tokens=np.array(tokens, np.int64),
        running=np.ones(steps, np.int64),
        waiting=np.zeros(steps, np.int64),
        kv_utilization=np.array(kv, np.float64),
    )


def make_request(
    request_id: str,
    arrival_s: float,
    times_s: Sequence[float],
    *,
    slo_class: str = "interactive",
    outcome: Outcome = Outcome.COMPLETED,
    preemptions: int = 0,
    recomputed_tokens: int = 0,
    stages: StageTimes | None = None,
) -> RequestLog:
    """One request; ``times_s`` of its tokens count from the start of the run."""
    served = CLASSES[slo_class]
    request = WorkloadRequest(request_id, arrival_s, 10, max(1, len(times_s)), SLO(served, served.targets))
    return RequestLog(request, outcome, np.array(times_s, np.float64), preemptions, recomputed_tokens, stages=stages)


def random_log(seed: int, delay_s: float, requests: int = 60) -> RunLog:
    """A run whose first tokens come ``delay_s`` seconds late on average; interactive and batch requests in turn.

    A request waits for a quarter of its latency, and is preempted and paused for an eighth each.
    """
    rng = np.random.default_rng(seed)
    logs = []
    for i in range(requests):
        arrival_s = 0.25 * i
        times_s = arrival_s + delay_s * rng.uniform(0.5, 1.5) + np.cumsum(rng.uniform(0.02, 0.06, rng.integers(1, 80)))
        eighth_s = float(times_s[-1] - arrival_s) / 8
        stages = StageTimes(waiting_s=2 * eighth_s, running_s=4 * eighth_s, preempted_s=eighth_s, paused_s=eighth_s)
        slo_class = ("interactive", "batch")[i % 2]
        logs.append(make_request(f"r{i}", arrival_s, times_s.tolist(), slo_class=slo_class, stages=stages))
    timing = {"wall_s": float(rng.uniform()), "plan_us_mean": 3.0}
    return RunLog(logs, make_steps([0.1, 0.2], [100, 200], [0.2, 0.5]), timing, token_budget=400)


@pytest.fixture
def request_log() -> Callable[..., RequestLog]:
    return make_request


@pytest.fixture
def step_log() -> Callable[..., StepLog]:
    return make_steps


@pytest.fixture
def synthetic_run() -> Callable[..., RunLog]:
    return random_log
