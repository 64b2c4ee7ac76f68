"""Find what a scheduled step of vLLM leaves for waiting requests, and for which of them a plan preempts."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from vllm.v1.request import Request

from sloserve.core.stated import StatedSLO
from sloserve.engine.planner import Planner
from sloserve.engine.why import Cause, StepDone, Why, held_up
from sloserve.scheduler.policy import EngineFacts, Plan
from sloserve.vllm_plugin.engine import compat
from sloserve.vllm_plugin.engine.vllm_port import VllmPort


def step_done(scheduler: Any, port: VllmPort, output: Any, plan: Plan, planner: Planner | None) -> StepDone:
    """Return what the step that was just scheduled leaves.

    Args:
        scheduler: vLLM's scheduler.
        port: Reads the scheduler.
        output: The ``SchedulerOutput`` of the step.
        plan: The plan that the step followed.
        planner: The planner of the plan, if there is one.
    """
    running = compat.places_taken(scheduler)
    budget, limit = int(scheduler.max_num_scheduled_tokens), None
    if plan.token_budget is not None:
        budget = min(budget, int(plan.token_budget))
    if plan.max_running is not None and planner is not None:
        limit = int(plan.max_running) + running - planner.table.num_running  # a plan counts the requests that it sees
    return StepDone(
        given_tokens=int(output.total_num_scheduled_tokens),
        budget_tokens=budget,
        running=running,
        max_running=running + port.free_slots,
        plan_limit=limit,
        admits=compat.admits_new(scheduler),
    )


def head_held_up(waiting: Iterable[Request], step: StepDone, facts: EngineFacts) -> Cause:
    """Return why the first of the requests that could be admitted was not admitted."""
    first = next((request for request in waiting if not compat.is_blocked(request)), None)
    if first is None:
        return Cause() if next(iter(waiting), None) is None else Cause(Why.BLOCKED)
    needed = facts.layout.to_admit(np.array([first.num_tokens + 1], np.int64))  # + 1: the slot of the next token
    return held_up(step, int(needed[0]), facts)


def rival_of(plan: Plan, planner: Planner | None) -> Request | None:
    """Return the request for which ``plan`` preempts: the one that it admits first."""
    if planner is None or plan.waiting is None or not plan.waiting.size:
        return None
    rival: Request | None = planner.table.request_at[plan.waiting[0]]
    return rival


def due_later_s(victim: Request, rival: Request, slo_of: Mapping[str, StatedSLO]) -> float:
    """Return the seconds from the next deadline of ``rival`` to the one of ``victim``; nan if either has none."""
    return _due_s(victim, slo_of) - _due_s(rival, slo_of)


def _due_s(request: Request, slo_of: Mapping[str, StatedSLO]) -> float:
    stated = slo_of.get(request.request_id)
    limit_s = None if stated is None else stated.slo.targets.next_s(begun=request.num_output_tokens > 0)
    return float("nan") if limit_s is None else float(request.arrival_time) + limit_s


def not_planned(scheduler: Any) -> Cause:
    """Return why a request was preempted that no plan named."""
    return Cause(Why.KV_SHORT if compat.admits_new(scheduler) else Why.ENGINE)
