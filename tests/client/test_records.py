"""Figures of a run, computed by hand for three requests."""

from collections.abc import Callable

import numpy as np
import pytest

from sloserve.client.client_stats import client_was_late, findings, server_verdicts
from sloserve.client.exchange import Exchange
from sloserve.client.vllm_record import vllm_record
from sloserve.client.workload_replay import ReplayedRun
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest

MakeRequest = Callable[..., WorkloadRequest]


def ended(request: WorkloadRequest, sent_s: float, chunks_s: list[float], tokens: int, **more: object) -> Exchange:
    last_s = chunks_s[-1] if chunks_s else sent_s
    fields = {"outcome": Outcome.COMPLETED, "woke_s": sent_s, "ended_s": last_s, "prompt_tokens": 10} | more
    times_s = np.repeat(np.array(chunks_s), tokens // len(chunks_s)) if chunks_s else np.empty(0)
    return Exchange(
        request=request, sent_s=sent_s, chunk_times_s=np.array(chunks_s), token_times_s=times_s,
        output_tokens=tokens, **fields,
    )  # type: ignore[arg-type] # fmt: skip


@pytest.fixture
def run(make_request: MakeRequest) -> ReplayedRun:
    one = ended(make_request("r0", 0.0, ttft_s=0.4, tpot_s=0.1), 0.1, [0.5, 0.7, 0.9], 6)
    single = ended(make_request("r1", 1.0, ttft_s=0.4), 1.0, [1.5], 1)
    refused = ended(make_request("r2", 1.5, ttft_s=1.0), 1.5, [], 0, outcome=Outcome.REJECTED, error="429: full")
    return ReplayedRun([one, single, refused], 2.0, send_lag_s=np.array([0.1, 0.0, 0.0]), loop_lag_s=np.zeros(5))


def test_rates_and_latencies_are_vllms(run: ReplayedRun) -> None:
    record = vllm_record(run, [e.request for e in run.exchanges], from_due=False)
    assert (record["completed"], record["failed"], record["duration"]) == (2, 1, 2.0)
    assert (record["total_input_tokens"], record["total_output_tokens"]) == (20, 7)
    assert (record["output_throughput"], record["total_token_throughput"]) == (3.5, 13.5)
    assert record["mean_ttft_ms"] == pytest.approx((400 + 500) / 2)
    assert record["std_ttft_ms"] == pytest.approx(50)
    assert record["mean_tpot_ms"] == pytest.approx(400 / 5), "a reply of one token has no TPOT"
    assert record["median_itl_ms"] == pytest.approx(200), "gaps are between chunks, not tokens"
    assert record["median_e2el_ms"] == pytest.approx((800 + 500) / 2)
    assert record["request_goodput"] == pytest.approx(1 / 2.0), "r0 within TTFT 400 ms of its sending"
    assert (record["max_concurrent_requests"], record["max_output_tokens_per_s"]) == (2, 3.0)


def test_from_when_due_the_clients_wait_counts(run: ReplayedRun) -> None:
    record = vllm_record(run, [e.request for e in run.exchanges], from_due=True)
    assert record["mean_ttft_ms"] == pytest.approx((500 + 500) / 2)
    assert record["request_goodput"] == 0.0


def test_nothing_completed_is_no_figure(make_request: MakeRequest) -> None:
    lost = ended(make_request(), 0.0, [], 0, outcome=Outcome.FAILED)
    record = vllm_record(ReplayedRun([lost], 1.0, np.zeros(1), np.empty(0)), [lost.request], from_due=False)
    assert (record["completed"], record["failed"], record["request_goodput"]) == (0, 1, None)
    assert record["mean_ttft_ms"] is record["p99_itl_ms"] is None


def test_findings_say_how_late_the_client_was(run: ReplayedRun) -> None:
    found = findings(run)
    assert (found["rejected"], found["aborted"], found["failed_midway"]) == (1, 0, 0)
    assert found["errors"] == {"429: full": 1} and found["server_slo"] is None
    assert found["client"]["send_lag_ms_max"] == pytest.approx(100.0)
    assert client_was_late(run)
    assert not client_was_late(ReplayedRun(run.exchanges, 2.0, np.full(3, 0.001), np.empty(0)))


def test_a_verdict_is_compared_target_by_target_from_the_sending(make_request: MakeRequest) -> None:
    request = make_request("r0", 0.0, ttft_s=0.4, tpot_s=0.1)
    told = {"met": {"ttft": True, "tpot": False}, "achieved": {"ttft_ms": 399.0, "e2e_ms": 790.0}}
    verdicts = server_verdicts([ended(request, 0.1, [0.5, 0.7, 0.9], 6, slo=told), ended(request, 0.0, [0.1], 1)])
    assert verdicts is not None
    assert (verdicts["reports"], verdicts["disagreements"]) == (1, 1)
    assert verdicts["max_difference_ms"] == pytest.approx(10.0)
