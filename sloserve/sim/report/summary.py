"""One run in figures: the record that goes under ``runs`` of ``result.json``, in the words of ``vllm bench serve``.

Latencies are the latencies of completed requests, from arrival, queueing included; attainment and QoE count every
request that states a target. A figure that has no data is ``None``. All but ``timing`` follows from the run log alone.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.finished import seconds_beyond
from sloserve.core.goodput import attainment, attainment_by_class, by_class
from sloserve.core.outcome import Outcome
from sloserve.core.promises import PROMISES_KEPT
from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.sim.report.experience import TimedOutputs, experience, qoe_samples
from sloserve.sim.report.statistics import mean_of, percentile_of
from sloserve.sim.report.task_report import task_record

Run = dict[str, Any]
"""The record of one run, as :func:`summarize` makes it: safe to write as JSON."""

SPLIT_KEYS = ("waiting_s", "running_s", "evicted_s", "paused_s")
"""The fields of :class:`~sloserve.core.runlog.StageTimes`, as result.json names them."""
TIMING_KEYS = ("plan_us_mean", "plan_us_p99", "vllm_schedule_us_mean", "wall_s")


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """Latency samples of some requests, in seconds.

    Args:
        requests: Number of requests, completed or not.
        ttft_s: Time to the first token, ``[completed]``.
        tpot_s: Time per output token, ``[completed with two or more tokens]``.
        itl_s: Every gap between two tokens of a completed request.
        e2e_s: End-to-end latency, ``[completed]``.
        normalized_s: End-to-end latency per output token, ``[completed]``.
    """

    requests: int
    ttft_s: FloatArray
    tpot_s: FloatArray
    itl_s: FloatArray
    e2e_s: FloatArray
    normalized_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class LatencySample:
    """What is kept of one run for its figures; ``replies`` is ``None`` where outputs are not drawn one by one."""

    policy: str
    load: float
    latencies: Latencies
    replies: TimedOutputs | None = None


def latencies(logs: Sequence[RequestLog]) -> Latencies:
    """Return the latency samples of ``logs``, in their order."""
    served = [(log.token_times_s, log.latency) for log in logs if log.latency is not None]
    gaps_s = [np.diff(times_s) for times_s, _ in served]
    return Latencies(
        requests=len(logs),
        ttft_s=np.array([found.ttft_s for _, found in served]),
        tpot_s=np.array([found.tpot_s for times_s, found in served if times_s.size > 1]),
        itl_s=np.concatenate(gaps_s) if gaps_s else np.empty(0),
        e2e_s=np.array([found.e2e_s for _, found in served]),
        normalized_s=np.array([found.e2e_s / times_s.size for times_s, found in served]),
    )


def duration_s(log: RunLog) -> float:
    """Return the seconds from the start of the run to its last token or, if that is later, to its last arrival."""
    ends_s = (
        max(r.request.arrival_s, float(r.token_times_s[-1]) if r.token_times_s.size else 0.0) for r in log.requests
    )
    return max(ends_s, default=0.0)


def summarize(log: RunLog, *, policy: str, seed: int, rps: float, load: float | None = None) -> Run:
    """Return the record of one run.

    Args:
        log: The log of the run.
        policy: Name of the run, for the record.
        seed: Seed of the run, for the record.
        rps: Requests offered per second; of a run with tasks, tasks per second.
        load: Offered rate in multiples of stock's capacity, where that is the experiment's axis; then a key of the
            record.
    """
    requests = log.requests
    samples = latencies(requests)
    completed = [r for r in requests if r.outcome is Outcome.COMPLETED]
    elapsed_s = duration_s(log)
    attained = attainment(requests)
    classes = by_class(requests)
    run: Run = {
        "policy": policy,
        "seed": seed,
        "rps": rps,
        "requests": len(requests),
        "completed": len(completed),
        "lost": sum(r.outcome is Outcome.LOST for r in requests),
        "duration_s": elapsed_s,
        "request_throughput": _ratio(len(completed), elapsed_s),
        "output_throughput": _ratio(sum(r.token_times_s.size for r in completed), elapsed_s),
        "request_goodput": attained.goodput_per_s(elapsed_s) if elapsed_s else None,
        "slo_attainment": attained.ratio,
        "slo_attainment_admitted": attained.ratio_admitted,
        "slo_attainment_by_class": {name: of.ratio for name, of in attainment_by_class(requests).items()},
        "p10_ttft_ms": percentile_of(samples.ttft_s * 1e3, 10),
        **_spread_ms("ttft", samples.ttft_s),
        **_spread_ms("tpot", samples.tpot_s),
        **_spread_ms("itl", samples.itl_s),
        "p5_itl_ms": percentile_of(samples.itl_s * 1e3, 5),
        "p95_itl_ms": percentile_of(samples.itl_s * 1e3, 95),
        **_spread_ms("e2el", samples.e2e_s),
        "completion_split": completion_split(completed),
        "normalized_latency_ms": mean_of(samples.normalized_s * 1e3),
        **experience(requests, samples.tpot_s),
        "preemptions_per_request": _ratio(sum(r.num_preemptions for r in requests), len(requests)),
        "recomputed_tokens_per_request": _ratio(sum(r.recomputed_tokens for r in requests), len(requests)),
        "kv_utilization_mean": _mean_over_time(log.steps.kv_utilization, log.steps),
        "step_token_utilization_mean": _step_token_utilization_mean(log),
        "forward_tokens_mean": mean_of(log.steps.scheduled_tokens.astype(np.float64)),
        "max_wait_s": max((_longest_wait_s(r, elapsed_s) for r in requests), default=None),
        "by_class": {name: _class_record(of_class) for name, of_class in classes.items()},
        "timing": {key: log.timing.get(key) for key in TIMING_KEYS},
    }
    if "swap_bytes_out" in log.counters:
        run |= _swap_record(log)
    if log.tasks:
        run |= task_record(log.tasks, requests)
    if load is not None:
        run["load"] = load
    return run


def _swap_record(log: RunLog) -> Run:
    """Return what an engine with swap space copied.

    A copy there and back is one swap; bytes are counted in both directions.
    """
    counters, requests = log.counters, log.requests
    swaps = np.array([r.num_swaps for r in requests], np.float64)
    tokens = sum(r.token_times_s.size for r in requests)
    return {
        "swaps_per_request_p99": percentile_of(swaps, 99),
        "swaps_per_request": mean_of(swaps),
        "swap_bytes_per_output_token": _ratio(counters["swap_bytes_out"] + counters["swap_bytes_in"], tokens),
        "swap_pool_peak_gib": counters["swap_peak_bytes"] / 2**30,
    }


def completion_split(completed: Sequence[RequestLog]) -> dict[str, float] | None:
    """Return the mean seconds that ``completed`` requests spent in each stage; their sum is the mean e2e latency.

    The stages are the fields of :class:`~sloserve.core.runlog.StageTimes`. The result is ``None`` where they are not
    known.
    Source: EconoServe, Sec. 2.2 and Fig. 1e; ``paused_s`` is its GT queuing time, ``evicted_s`` its preemption time.
    """
    stages = [log.stages for log in completed if log.stages is not None]
    if not stages:
        return None
    means = np.mean([astuple(of) for of in stages], axis=0)
    return dict(zip(SPLIT_KEYS, map(float, means), strict=True))


def admission_record(log: RunLog, unrestricted: RunLog | None) -> Run:
    """Return what admission did in one run, and whether its predictions were kept.

    ``rejected`` counts the requests that were refused, ``false_rejects`` the refused requests that met every target in
    ``unrestricted``, the same run without admission; it is ``None`` where that is not known. ``prediction_coverage``
    is, by class, figure and quantile, the share of completed requests with a prediction that took no longer; outputs of
    one token, which have no TPOT, are left out of that figure. ``promises`` has :func:`promise_record` of each class to
    which promises were given.
    """
    rejected = {r.request.request_id for r in log.requests if r.outcome is Outcome.REJECTED}
    good = None if unrestricted is None else {r.request.request_id for r in unrestricted.requests if r.good}
    kept: dict[str, dict[str, list[bool]]] = {}
    for r in log.requests:
        found = r.latency
        if found is not None and r.predicted is not None:
            of_class = kept.setdefault(r.request.slo.slo_class.name, {})
            for name, quantiles in r.predicted.figures():
                if name == "tpot" and r.token_times_s.size <= 1:
                    continue
                for level, held in quantiles.kept(getattr(found, f"{name}_s")).items():
                    of_class.setdefault(f"{name}_p{100 * level:.0f}", []).append(held)
    return {
        "rejected": len(rejected),
        "false_rejects": None if good is None else len(rejected & good),
        "prediction_coverage": {c: {key: sum(v) / len(v) for key, v in of.items()} for c, of in kept.items()},
        "promises": {
            name: promise_record(of_class)
            for name, of_class in by_class(log.requests).items()
            if any(r.promised is not None for r in of_class)
        },
    }


def promise_record(logs: Sequence[RequestLog]) -> Run:
    """Return how many promises these requests were given, the outcome of the promises, and what they cost.

    ``withdrawn`` promises, of clients that left, are neither kept nor broken. ``broken_share`` is the share of broken
    ones among the others, ``allowed_share`` the share that their levels allow; ``None`` without any. ``delayed_s`` is
    the price of all: seconds by which they delayed requests without a promise. ``beyond_s`` is what broken ones cost:
    seconds by which they exceeded their targets.
    """
    given = [(r, r.promised) for r in logs if r.promised is not None]
    counts = Counter(r.promise for r, _ in given)
    judged = counts["kept"] + counts["broken"]
    allowed = sum(1.0 - promised.level for r, promised in given if r.promise != "withdrawn")
    return {
        "given": len(given),
        **{outcome: counts[outcome] for outcome in PROMISES_KEPT},
        "broken_share": _ratio(counts["broken"], judged),
        "allowed_share": _ratio(allowed, judged),
        "delayed_s": sum(promised.delayed_s for _, promised in given),
        "beyond_s": sum(
            seconds_beyond(r.asked.targets, r.latency, r.token_times_s.size) for r, _ in given if r.promise == "broken"
        ),
    }


def _class_record(logs: Sequence[RequestLog]) -> dict[str, Any]:
    samples = latencies(logs)
    attained = attainment(logs)
    return {
        "requests": len(logs),
        "completed": sum(r.outcome is Outcome.COMPLETED for r in logs),
        "slo_attainment": attained.ratio,
        "slo_attainment_admitted": attained.ratio_admitted,
        **_spread_ms("ttft", samples.ttft_s),
        **_spread_ms("e2el", samples.e2e_s),
        "qoe_mean": mean_of(qoe_samples(logs)),
    }


def _longest_wait_s(log: RequestLog, end_s: float) -> float:
    """Return the longest time the request went without a token, in seconds.

    The time is before the first token, or between two, as when a request is preempted or paused. A request that was
    lost waited to the end of the run. For other unfinished requests the log does not say when they ended: only the time
    up to their last token counts.
    """
    times_s = np.concatenate(([log.request.arrival_s], log.token_times_s))
    if log.outcome is Outcome.LOST:
        times_s = np.append(times_s, end_s)
    return float(np.max(np.diff(times_s), initial=0.0))


def _step_token_utilization_mean(log: RunLog) -> float | None:
    """Return the share of the token budget that steps compute; ``None`` where the budget is not known.

    Tokens that are computed again after preemptions are included.
    """
    if log.token_budget is None:
        return None
    return _mean_over_time(log.steps.scheduled_tokens / log.token_budget, log.steps)


def _mean_over_time(values: FloatArray, steps: StepLog) -> float | None:
    """Return the mean of ``[steps]`` values weighted with the steps' durations; time between steps does not count."""
    total_s = float(np.sum(steps.duration_s))
    return float(np.dot(values, steps.duration_s)) / total_s if total_s > 0.0 else None


def _spread_ms(name: str, samples_s: FloatArray) -> dict[str, float | None]:
    samples_ms = samples_s * 1e3
    return {
        f"mean_{name}_ms": mean_of(samples_ms),
        f"median_{name}_ms": percentile_of(samples_ms, 50),
        f"p90_{name}_ms": percentile_of(samples_ms, 90),
        f"p99_{name}_ms": percentile_of(samples_ms, 99),
    }


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None
