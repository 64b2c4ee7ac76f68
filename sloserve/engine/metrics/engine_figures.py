"""What a scheduler counts. Each figure has a slot on the engine's page (:mod:`sloserve.engine.metrics.engine_page`).

To add one: a field of :class:`EngineFigures`, and the engine's line that stores it in ``values[Layout.at[name]]``. With
``metadata=gauge(...)`` or ``metadata=counter(...)`` it is on ``/metrics`` too; metrics that are made of several
figures, or have labels, are in :mod:`sloserve.engine.metrics.engine_metrics`.
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
    """For a figure that says how it was at the last step. name: without prefix."""
    return {FAMILY: (GaugeMetricFamily, name, documentation)}


def counter(name: str, documentation: str) -> Mapping[str, Family]:
    """For a figure that counts from the engine's start. name: without prefix and ``_total``."""
    return {FAMILY: (CounterMetricFamily, name, documentation)}


@dataclass(frozen=True)
class EngineFigures(SwapFigures):
    """What a scheduler counts. Gauges say how it was at the last step, the others count from the engine's start.

    Gauges: last_step_s, epoch seconds; running, waiting, preempted: requests by state, waiting those that vLLM queues,
    preempted those of them that ran before; paused: requests that sat out the last step. plans, reused_plans,
    stale_plans: steps with a fresh plan, with the last one, and with none since the last one was too old; plan_errors:
    plans and events on which the policy failed. internal_errors: exceptions of sloserve's own that were kept from vLLM.
    policy_preemptions: by a plan, vllm_preemptions: mostly for want of KV. paused_steps: request-steps.
    limited_steps: steps whose prompt tokens the step budget limited.
    malformed_slo: requests served without the SLO that they could not state. shadow_*: of the shadow policy, sums over
    its plans and how many of them had such a figure, see :mod:`sloserve.engine.plan_score`. step_*: how well
    the times of steps are known, see :mod:`sloserve.estimator.step_time.online`; all 0 before the first step, factors
    also without a profile.
    """

    last_step_s: float
    running: float = field(metadata=gauge("running_requests", "Requests in the running batch"))
    waiting: float
    preempted: float = field(metadata=gauge("preempted_requests", "Waiting requests that ran before and lost their KV"))
    paused: float = field(metadata=gauge("paused_requests", "Requests that sat out the last step with their KV kept"))
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
        metadata=counter("paused_request_steps", "Engine steps that a request with KV sat out, over all requests")
    )
    limited_steps: float = field(
        metadata=counter("limited_steps", "Engine steps whose prompt tokens the step budget limited")
    )
    malformed_slo: float = field(
        metadata=counter("malformed_slo", "Requests served without the SLO that they could not state")
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
