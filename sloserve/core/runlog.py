"""The log of one run of a workload: for each request the time of every token, for each engine step what it did.

Written by the virtual engine and by the bench client alike, read by reports. Times are seconds from the start of the
run.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.finished import FinishedRequest, Latency
from sloserve.core.outcome import Outcome
from sloserve.core.predicted import Predicted
from sloserve.core.promises import Promised
from sloserve.core.qoe import expectation, qoe
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import SLO
from sloserve.core.task_outcome import TaskOutcome


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds that a request spent in each stage, from its arrival to its last token; the sum is its e2e latency.

    Args:
        waiting_s: Seconds until the step began that first served the request.
        running_s: Seconds in which the request was admitted and in none of the following stages, in prefill or decode.
        preempted_s: Seconds without KV, until the step began that admitted the request again.
        paused_s: Seconds in which a plan passed over the request and its KV was kept.
    """

    waiting_s: float
    running_s: float
    preempted_s: float
    paused_s: float


def latency_of(arrival_s: float, first_token_s: float, last_token_s: float, tokens: int) -> Latency:
    """Return the latency of a completed request that got ``tokens`` tokens, at least one."""
    tpot_s = (last_token_s - first_token_s) / (tokens - 1) if tokens > 1 else 0.0
    return Latency(ttft_s=first_token_s - arrival_s, tpot_s=tpot_s, e2e_s=last_token_s - arrival_s)


@dataclass(frozen=True, eq=False)
class RequestLog(FinishedRequest):
    """The course of one request.

    Args:
        token_times_s: When each token left the engine, ``[tokens delivered]``, ascending; empty if none did.
        recomputed_tokens: Tokens of which KV was computed again after preemptions.
        num_swaps: How often KV of the request was copied to the host and back.
        cached_tokens: Tokens of the prompt that the prefix cache had when the request was first admitted.
        predicted: The latency that was predicted at admission.
        promised: The promise that was given at admission; ``None`` for none.
        stages: Seconds in each stage; ``None`` if the request was not completed, or where stages are not known, as on a
            client's side.
    """

    request: WorkloadRequest
    outcome: Outcome
    token_times_s: FloatArray
    num_preemptions: int = 0
    recomputed_tokens: int = 0
    predicted: Predicted | None = None
    stages: StageTimes | None = None
    num_swaps: int = 0
    cached_tokens: int = 0
    promised: Promised | None = None

    @property
    def asked(self) -> SLO:
        return self.request.slo

    @cached_property
    def latency(self) -> Latency | None:
        if self.outcome is not Outcome.COMPLETED or not self.token_times_s.size:
            return None
        first_s, last_s = float(self.token_times_s[0]), float(self.token_times_s[-1])
        return latency_of(self.request.arrival_s, first_s, last_s, self.token_times_s.size)

    @cached_property
    def qoe(self) -> float | None:
        expected = expectation(self.request.slo.targets)
        if expected is None:
            return None
        if self.latency is None:
            return 0.0
        ttft_s, tds = expected
        # Arrival and tokens are different sums of floats: a token in the instant of arrival may lie 1e-10 s before it.
        since_arrival_s = np.maximum(self.token_times_s - self.request.arrival_s, 0.0)
        return qoe(since_arrival_s, ttft_s=ttft_s, tds=tds)

    @property
    def first_token_s(self) -> float | None:
        return float(self.token_times_s[0]) if self.token_times_s.size else None

    @property
    def finish_s(self) -> float | None:
        """Time of the last token of a completed request, else ``None``."""
        return float(self.token_times_s[-1]) if self.outcome is Outcome.COMPLETED and self.token_times_s.size else None


@dataclass(frozen=True, slots=True, eq=False)
class StepLog:
    """One entry per executed engine step, all ``[steps]``: its end, its duration, its tokens, and the engine around it.

    Args:
        kv_utilization: Share of KV blocks in use, 0..1, when the step was scheduled.
    """

    end_s: FloatArray
    duration_s: FloatArray
    scheduled_tokens: IntArray
    running: IntArray
    waiting: IntArray
    kv_utilization: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class RunLog:
    """One run: the requests in the order of the workload, the steps, and wall-clock measurements.

    Args:
        timing: Measurements, which differ from run to run while all other fields do not: plan_us_mean, plan_us_p99,
            vllm_schedule_us_mean, wall_s.
        token_budget: Most tokens that a step of this engine may compute; ``None`` where it is not known.
        tenant_service_s: Service of each tenant in seconds of the engine; ``None`` where tenants have no shares.
        tasks: The tasks of which the requests are calls; ``None`` for a run without tasks.
    """

    requests: list[RequestLog]
    steps: StepLog
    timing: dict[str, float] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    token_budget: int | None = None
    tenant_service_s: dict[str, float] | None = None
    tasks: list[TaskOutcome] | None = None
