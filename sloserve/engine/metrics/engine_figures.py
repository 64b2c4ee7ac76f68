"""Figures that a scheduler counts; each has a slot on the engine's page (:mod:`sloserve.engine.metrics.engine_page`).

To add a figure, add a field of :class:`EngineFigures`, and the engine's line that stores it in
``values[Layout.at[name]]``. With ``metadata=gauge(...)`` or ``metadata=counter(...)`` it is on ``/metrics`` too;
metrics that are made of several figures, or have labels, are in :mod:`sloserve.engine.metrics.engine_metrics`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from sloserve.engine.metrics.swap_figures import SwapFigures

FAMILY: Final = "family"
"""Key of the metadata of a figure that is shown as it is: kind of metric, name without prefix, documentation."""

Family = tuple[type[CounterMetricFamily] | type[GaugeMetricFamily], str, str]


def gauge(name: str, documentation: str) -> Mapping[str, Family]:
    """Return the metadata of a figure that says how it was at the last step.

    Args:
        name: Name of the metric without prefix.
        documentation: Help text of the metric.
    """
    return {FAMILY: (GaugeMetricFamily, name, documentation)}


def counter(name: str, documentation: str) -> Mapping[str, Family]:
    """Return the metadata of a figure that counts from the engine's start.

    Args:
        name: Name of the metric without prefix and ``_total``.
        documentation: Help text of the metric.
    """
    return {FAMILY: (CounterMetricFamily, name, documentation)}


@dataclass(frozen=True)
class EngineFigures(SwapFigures):
    """Figures that a scheduler counts. Gauges are as of the last step, the others count from the engine's start.

    The figures ``shadow_*`` are of the shadow policy, sums over its plans and how many of them had such a figure, see
    :mod:`sloserve.engine.plan_score`. The figures ``step_*`` say how well the times of steps are known, see
    :mod:`sloserve.estimator.step_time.online`; all are 0 before the first step, factors also without a profile.

    Args:
        last_step_s: Gauge: epoch seconds of the last step.
        running: Gauge: running requests.
        waiting: Gauge: requests that vLLM queues.
        preempted: Gauge: queued requests that ran before.
        paused: Gauge: requests that were paused in the last step.
        plans: Steps with a fresh plan.
        reused_plans: Steps with the last plan.
        stale_plans: Steps without a plan, since the last one was too old.
        plan_errors: Plans and events on which the policy failed.
        internal_errors: Exceptions of sloserve's own that were kept from vLLM.
        policy_preemptions: Preemptions by a plan.
        vllm_preemptions: Preemptions by vLLM, mostly for lack of KV.
        paused_steps: Request-steps in which a request was paused.
        limited_steps: Steps in which the step budget limited the prompt tokens.
        recording_lost: Events that the recording lost.
        recording_failed: 1 once the recording has ended because it could not be written, else 0.
        malformed_slo: Requests served without the SLO that they could not state.
        step_seconds: Seconds that the timed steps took.
        step_timed: Steps that were timed.
    """

    last_step_s: float
    running: float = field(metadata=gauge("running_requests", "Requests in the running batch"))
    waiting: float
    preempted: float = field(metadata=gauge("preempted_requests", "Waiting requests that ran before and lost their KV"))
    paused: float = field(
        metadata=gauge("paused_requests", "Requests that were paused in the last step, with their KV kept")
    )
    steps: float
    scheduled_tokens: float
    plans: float
    reused_plans: float
    stale_plans: float
    plan_errors: float
    internal_errors: float = field(
        metadata=counter("internal_errors", "Exceptions of sloserve's own, after which vLLM schedules by itself")
    )
    plan_seconds_sum: float
    policy_preemptions: float
    vllm_preemptions: float
    paused_steps: float = field(
        metadata=counter(
            "paused_request_steps", "Engine steps for which a request with KV was paused, over all requests"
        )
    )
    limited_steps: float = field(
        metadata=counter("limited_steps", "Engine steps in which the step budget limited the prompt tokens")
    )
    malformed_slo: float = field(
        metadata=counter("malformed_slo", "Requests served without the SLO that they could not state")
    )
    recording_lost: float = field(
        metadata=counter("recording_lost_events", "Events that the recording lacks: the disk was too slow")
    )
    recording_failed: float = field(
        metadata=gauge("recording_failed", "1 if the recording has ended because it could not be written")
    )
    shadow_plans: float = field(metadata=counter("shadow_plans", "Plans of the shadow policy, which are never applied"))
    shadow_errors: float = field(metadata=counter("shadow_errors", "Plans on which the shadow policy failed"))
    shadow_agreement_sum: float
    shadow_agreement_count: float
    shadow_gain_sum: float
    shadow_gain_count: float
    step_error: float
    step_coverage: float
    step_factor_constant: float
    step_factor_prefill: float
    step_factor_decode: float
    step_factor_draft: float
    step_drafts: float
    step_seconds: float
    step_timed: float
