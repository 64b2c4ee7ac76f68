"""Record one run in the keys and definitions of ``vllm bench serve``'s JSON, so that tools for that JSON can read it.

Latency counts from the sending of a request, as there, or from when it was due, which is what a user waits. Gaps (ITL)
are between chunks. ``failed`` counts all requests that were not completed. Differs: a figure without data is ``None``,
not 0. Source: vllm/benchmarks/serve.py, ``calculate_metrics``.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sloserve.client.exchange import Exchange
from sloserve.client.workload_replay import ReplayedRun
from sloserve.core.arrays import FloatArray
from sloserve.core.finished import Latency, targets_met
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest


def vllm_record(run: ReplayedRun, judged: Sequence[WorkloadRequest], *, from_due: bool) -> dict[str, Any]:
    """Return counts, rates and latencies of ``run``, in milliseconds and per second of its duration.

    Args:
        run: The run.
        judged: The requests in the same order, with the targets by which they are judged.
        from_due: Whether latency counts from when a request was due, rather than from its sending.
    """
    completed = [ended for ended in run.exchanges if ended.outcome is Outcome.COMPLETED]
    latencies = [ended.latency(ended.request.arrival_s if from_due else ended.sent_s) for ended in run.exchanges]
    found = [latency for latency in latencies if latency is not None]
    pairs = list(zip(latencies, judged, strict=True))
    input_tokens = sum(ended.prompt_tokens for ended in completed)
    output_tokens = sum(ended.output_tokens for ended in completed)
    several = [latency for latency, ended in zip(found, completed, strict=True) if ended.output_tokens > 1]
    gaps_s = [np.diff(ended.chunk_times_s) for ended in completed]
    peak_tokens, peak_requests = _peaks(completed)
    return {
        "duration": run.duration_s,
        "completed": len(completed),
        "failed": len(run.exchanges) - len(completed),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(completed) / run.duration_s,
        "request_goodput": _goodput(pairs, run.duration_s),
        "output_throughput": output_tokens / run.duration_s,
        "total_token_throughput": (input_tokens + output_tokens) / run.duration_s,
        "max_output_tokens_per_s": peak_tokens,
        "max_concurrent_requests": peak_requests,
        **_spread_ms("ttft", np.array([latency.ttft_s for latency in found])),
        **_spread_ms("tpot", np.array([latency.tpot_s for latency in several])),
        **_spread_ms("itl", np.concatenate(gaps_s) if gaps_s else np.empty(0)),
        **_spread_ms("e2el", np.array([latency.e2e_s for latency in found])),
    }


def _goodput(pairs: Sequence[tuple[Latency | None, WorkloadRequest]], duration_s: float) -> float | None:
    """Return the requests per second that met every target they have; ``None`` if none has one."""
    targeted = [(latency, request.slo.targets) for latency, request in pairs if request.slo.targets]
    good = sum(all(targets_met(targets, latency).values()) for latency, targets in targeted)
    return good / duration_s if targeted else None


def _peaks(completed: Sequence[Exchange]) -> tuple[float, int]:
    """Return the most chunks, and the most requests under way, within one second from the first sending on."""
    if not completed:
        return 0.0, 0
    first_s = min(ended.sent_s for ended in completed)
    seconds = math.floor(max(float(ended.chunk_times_s[-1]) for ended in completed) - first_s) + 1
    chunks, requests = np.zeros(seconds), np.zeros(seconds, np.int64)
    for ended in completed:
        at = np.floor(ended.chunk_times_s - first_s).astype(np.int64)
        np.add.at(chunks, at, 1.0)
        requests[math.floor(ended.sent_s - first_s) : at[-1] + 1] += 1
    return float(chunks.max()), int(requests.max())


def _spread_ms(name: str, samples_s: FloatArray) -> dict[str, float | None]:
    if not samples_s.size:
        return dict.fromkeys(f"{figure}_{name}_ms" for figure in ("mean", "median", "std", "p99"))
    samples_ms = samples_s * 1e3
    return {
        f"mean_{name}_ms": float(np.mean(samples_ms)),
        f"median_{name}_ms": float(np.median(samples_ms)),
        f"std_{name}_ms": float(np.std(samples_ms)),
        f"p99_{name}_ms": float(np.percentile(samples_ms, 99)),
    }
