"""Figures of a run beyond latency: how requests ended and why, how late the client was, what the server reports."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from sloserve.client.exchange import Exchange
from sloserve.client.workload_replay import ReplayedRun
from sloserve.core.arrays import FloatArray
from sloserve.core.finished import targets_met
from sloserve.core.outcome import Outcome

LATE_S = 0.02
"""A client later than this at the 99th percentile is named as the bottleneck: 4 % of a TTFT target of 500 ms."""
MAX_ERRORS = 10
"""Different error texts that are kept, the most frequent first."""


def findings(run: ReplayedRun) -> dict[str, Any]:
    """Return keys of a run's record: rejected, aborted, errors, client, server_slo and others; values for JSON."""
    ended = run.exchanges
    rejected = [exchange for exchange in ended if exchange.outcome is Outcome.REJECTED]
    retry_after_s = [exchange.retry_after_s for exchange in rejected if exchange.retry_after_s is not None]
    return {
        "rejected": len(rejected),
        "rejected_by_reason": dict(Counter(str(exchange.reason) for exchange in rejected).most_common()),
        "retry_after_s_mean": float(np.mean(retry_after_s)) if retry_after_s else None,
        "aborted": sum(exchange.outcome is Outcome.ABORTED for exchange in ended),
        "failed_midway": sum(
            exchange.outcome is Outcome.FAILED and exchange.chunk_times_s.size > 0 for exchange in ended
        ),
        "errors": dict(Counter(exchange.error for exchange in ended if exchange.error).most_common(MAX_ERRORS)),
        "client": {
            **_lateness_ms("send_lag", run.send_lag_s),
            **_lateness_ms("loop_lag", run.loop_lag_s),
            **_lateness_ms("queue", np.array([exchange.sent_s - exchange.woke_s for exchange in ended])),
        },
        "server_slo": server_verdicts(ended),
    }


def client_was_late(run: ReplayedRun) -> bool:
    """Return whether the client was so late that the run may have measured it rather than the server."""
    return any(lag_s.size and np.percentile(lag_s, 99) > LATE_S for lag_s in (run.send_lag_s, run.loop_lag_s))


def server_verdicts(ended: Sequence[Exchange]) -> dict[str, Any] | None:
    """Compare the ``slo`` objects of the server with our own verdicts on the same targets, counted from the sending.

    Return ``None`` if the server reported nothing; else, among the keys:

    - ``good``: requests that met every target by our clock.
    - ``disagreements``: requests of which one side says that a target was met and the other that it was missed.
    - ``max_difference_ms``: the largest difference of TTFT, TPOT or e2e: network, and what the server does after its
      clock stops.
    """
    reported = [(exchange, exchange.slo) for exchange in ended if exchange.slo is not None]
    if not reported:
        return None
    good, disagreements, differences_ms = 0, [], [0.0]
    for exchange, slo in reported:
        latency = exchange.latency(exchange.sent_s)
        ours = targets_met(exchange.request.slo.targets, latency)
        good += bool(ours) and all(ours.values())
        theirs = slo.get("met") or {}
        if any(theirs[name] != met for name, met in ours.items() if theirs.get(name) is not None):
            disagreements.append(exchange.request.request_id)
        achieved = slo.get("achieved") or {}
        if latency is not None:
            measured_ms = {"ttft_ms": latency.ttft_s, "tpot_ms": latency.tpot_s, "e2e_ms": latency.e2e_s}
            differences_ms += [
                abs(1e3 * value - achieved[key]) for key, value in measured_ms.items() if achieved.get(key) is not None
            ]
    return {
        "reports": len(reported),
        "good": good,
        "disagreements": len(disagreements),
        "disagreeing_requests": disagreements[:MAX_ERRORS],
        "max_difference_ms": max(differences_ms),
        "evictions": sum(int(slo.get("evictions") or 0) for _, slo in reported),
        "paused_steps": sum(int(slo.get("paused_steps") or 0) for _, slo in reported),
        "preempted_ms": sum(float(slo.get("preempted_ms") or 0.0) for _, slo in reported),
        "paused_ms": sum(float(slo.get("paused_ms") or 0.0) for _, slo in reported),
    }


def _lateness_ms(name: str, samples_s: FloatArray) -> dict[str, float | None]:
    return {
        f"{name}_ms_{part}": float(np.percentile(samples_s, percent)) * 1e3 if samples_s.size else None
        for part, percent in (("p50", 50), ("p99", 99), ("max", 100))
    }
