"""The record of a run: its keys, its figures by hand, and what it says where there is no data."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.runlog import RequestLog, RunLog, StageTimes, StepLog
from sloserve.sim.report.summary import TIMING_KEYS, duration_s, latencies, summarize

KEYS = {
    *(
        "policy",
        "seed",
        "rps",
        "requests",
        "completed",
        "lost",
        "duration_s",
        "request_throughput",
        "output_throughput",
    ),
    *("request_goodput", "slo_attainment", "slo_attainment_by_class"),
    *(f"{part}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for part in ("mean", "median", "p90", "p99")),
    *("normalized_latency_ms", "qoe_mean", "qoe_p10", "preemptions_per_request", "recomputed_tokens_per_request"),
    *("kv_utilization_mean", "forward_tokens_mean", "max_wait_s", "timing"),
}
OURS = {
    *("slo_attainment_admitted", "by_class", "p10_ttft_ms"),
    *("p5_itl_ms", "p95_itl_ms", "completion_split", "step_token_utilization_mean"),
    *("qoe_p50", "qoe_p90", "qoe_good_share", "qoe_perfect_share", "tds_p10", "tds_p50", "tds_p90"),
}

MakeRequest = Callable[..., RequestLog]
MakeSteps = Callable[..., StepLog]
MakeRun = Callable[..., RunLog]


@pytest.fixture
def small_run(request_log: MakeRequest, step_log: MakeSteps) -> RunLog:
    return RunLog(
        [
            request_log("a", 0.0, [0.5, 0.6, 0.8], preemptions=2, recomputed_tokens=30),  # good
            request_log("b", 1.0, [3.0], slo_class="interactive"),  # TTFT missed; single token
            request_log("c", 1.0, [2.0, 9.0], slo_class="batch"),  # good
            request_log("d", 2.0, [2.5, 10.0], slo_class="free"),  # nothing to attain
            request_log("e", 3.0, [], outcome=Outcome.REJECTED),
            request_log("f", 4.0, [5.0, 5.5], outcome=Outcome.ABORTED, slo_class="batch"),
        ],
        step_log([1.0, 3.0], [100, 50], [0.2, 0.6]),
        {"wall_s": 0.7, "plan_us_mean": 5.0, "plan_us_p99": 9.0, "vllm_schedule_us_mean": 50.0},
    )


def test_keys_are_those_of_the_format(small_run: RunLog) -> None:
    run = summarize(small_run, policy="edf", seed=1, rps=2.0)
    assert run.keys() == KEYS | OURS
    assert tuple(run["timing"]) == TIMING_KEYS
    assert summarize(small_run, policy="edf", seed=1, rps=2.0, load=1.3)["load"] == 1.3
    json.dumps(run, allow_nan=False)


def test_counts_and_rates(small_run: RunLog) -> None:
    run = summarize(small_run, policy="edf", seed=1, rps=2.0)
    assert (run["requests"], run["completed"], run["lost"]) == (6, 4, 0)
    assert run["duration_s"] == 10.0
    assert run["request_throughput"] == pytest.approx(0.4)
    assert run["output_throughput"] == pytest.approx(0.8)
    assert run["request_goodput"] == pytest.approx(0.2)
    assert run["slo_attainment"] == pytest.approx(2 / 5)
    assert run["slo_attainment_admitted"] == pytest.approx(2 / 4)
    assert run["slo_attainment_by_class"] == {"interactive": pytest.approx(1 / 3), "batch": 0.5}
    assert run["preemptions_per_request"] == pytest.approx(2 / 6)
    assert run["recomputed_tokens_per_request"] == pytest.approx(5.0)


def test_latencies_are_those_of_completed_requests(small_run: RunLog) -> None:
    run = summarize(small_run, policy="edf", seed=1, rps=2.0)
    assert run["mean_ttft_ms"] == pytest.approx(1e3 * np.mean([0.5, 2.0, 1.0, 0.5]))
    assert run["p10_ttft_ms"] == pytest.approx(1e3 * np.percentile([0.5, 2.0, 1.0, 0.5], 10))
    assert run["median_tpot_ms"] == pytest.approx(1e3 * np.median([0.15, 7.0, 7.5])), "a single token has no TPOT"
    assert run["p90_itl_ms"] == pytest.approx(1e3 * np.percentile([0.1, 0.2, 7.0, 7.5], 90))
    assert run["p5_itl_ms"] == pytest.approx(1e3 * np.percentile([0.1, 0.2, 7.0, 7.5], 5)), "of all gaps, pooled"
    assert run["p95_itl_ms"] == pytest.approx(1e3 * np.percentile([0.1, 0.2, 7.0, 7.5], 95))
    assert run["p99_e2el_ms"] == pytest.approx(1e3 * np.percentile([0.8, 2.0, 8.0, 8.0], 99))
    assert run["normalized_latency_ms"] == pytest.approx(1e3 * np.mean([0.8 / 3, 2.0, 4.0, 4.0]))


def test_qoe_is_of_requests_that_promise_a_timeline(small_run: RunLog) -> None:
    """Interactive ones: one over before its expected first token, one late in one piece, one rejected."""
    run = summarize(small_run, policy="edf", seed=1, rps=2.0)
    assert run["qoe_mean"] == pytest.approx(1 / 3)
    assert (run["qoe_p10"], run["qoe_p50"], run["qoe_p90"]) == pytest.approx((0.0, 0.0, 0.8))
    assert run["qoe_perfect_share"] == run["qoe_good_share"] == pytest.approx(1 / 3)
    assert run["by_class"]["interactive"]["qoe_mean"] == pytest.approx(1 / 3)
    assert run["by_class"]["batch"]["qoe_mean"] is None


def test_engine_figures(small_run: RunLog) -> None:
    run = summarize(small_run, policy="edf", seed=1, rps=2.0)
    assert run["kv_utilization_mean"] == pytest.approx((0.2 * 1 + 0.6 * 3) / 4), "weighted with time"
    assert run["forward_tokens_mean"] == pytest.approx(75.0)
    assert run["step_token_utilization_mean"] is None, "of no known budget"
    run = summarize(replace(small_run, token_budget=125), policy="edf", seed=1, rps=2.0)
    assert run["step_token_utilization_mean"] == pytest.approx((0.8 * 1 + 0.4 * 3) / 4), "weighted with time"
    assert run["timing"]["wall_s"] == 0.7


def test_the_split_of_the_latency_is_of_completed_requests(request_log: MakeRequest, step_log: MakeSteps) -> None:
    requests = [
        request_log("a", 0.0, [2.0, 6.0], stages=StageTimes(1.0, 2.5, 0.5, 2.0)),
        request_log("b", 1.0, [2.0, 3.0], stages=StageTimes(0.0, 2.0, 0.0, 0.0)),
        request_log("c", 1.0, [9.0], outcome=Outcome.ABORTED),
    ]
    run = summarize(RunLog(requests, step_log()), policy="p", seed=0, rps=1.0)
    assert run["completion_split"] == {"waiting_s": 0.5, "running_s": 2.25, "evicted_s": 0.25, "paused_s": 1.0}
    assert sum(run["completion_split"].values()) == pytest.approx(run["mean_e2el_ms"] / 1e3)


def test_longest_wait_is_the_longest_time_without_a_token(request_log: MakeRequest, step_log: MakeSteps) -> None:
    starved = request_log("a", 0.0, [1.0, 6.0, 7.0])
    lost = request_log("b", 1.0, [], outcome=Outcome.LOST)
    late = request_log("c", 6.0, [10.0])
    assert summarize(RunLog([starved], step_log()), policy="p", seed=0, rps=1.0)["max_wait_s"] == 5.0
    run = summarize(RunLog([starved, lost, late], step_log()), policy="p", seed=0, rps=1.0)
    assert (run["max_wait_s"], run["lost"]) == (9.0, 1)


def test_no_data_is_none(request_log: MakeRequest, step_log: MakeSteps) -> None:
    for requests in ([], [request_log("a", 0.0, [], outcome=Outcome.REJECTED, slo_class="free")]):
        run = summarize(RunLog(requests, step_log()), policy="p", seed=0, rps=1.0)
        for key in (
            "mean_ttft_ms",
            "p99_itl_ms",
            "qoe_mean",
            "qoe_p50",
            "qoe_perfect_share",
            "tds_p50",
            "slo_attainment",
            "request_goodput",
            "kv_utilization_mean",
            "completion_split",
            "p95_itl_ms",
        ):
            assert run[key] is None, key
        assert run["timing"] == dict.fromkeys(TIMING_KEYS)
        json.dumps(run, allow_nan=False)


def test_duration_reaches_to_the_last_arrival(request_log: MakeRequest, step_log: MakeSteps) -> None:
    assert duration_s(RunLog([request_log("a", 7.0, [], outcome=Outcome.REJECTED)], step_log())) == 7.0


def test_samples_keep_the_number_of_requests(small_run: RunLog) -> None:
    samples = latencies(small_run.requests)
    assert (samples.requests, samples.ttft_s.size, samples.tpot_s.size, samples.itl_s.size) == (6, 4, 3, 4)


def test_class_records(synthetic_run: MakeRun) -> None:
    run = summarize(synthetic_run(seed=3, delay_s=1.0), policy="p", seed=3, rps=4.0)
    assert list(run["by_class"]) == ["interactive", "batch"]
    of_class = run["by_class"]["interactive"]
    assert of_class["slo_attainment"] == run["slo_attainment_by_class"]["interactive"]
    assert of_class["requests"] == of_class["completed"] == 30
    assert of_class["p99_ttft_ms"] <= run["p99_e2el_ms"]
