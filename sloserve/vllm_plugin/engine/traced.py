"""Add the scheduler's events to the traces of requests: admission, preemption, swap and pause, each with its reason.

This runs only where vLLM's tracing is on. Each request's events stand beside its trace headers, which vLLM sends back
with its outputs; see :mod:`sloserve.wire.trace_way`. Nothing here changes what is decided.
"""

import math
from collections.abc import Sequence
from typing import Any

from vllm.v1.request import Request

from sloserve.engine.planner import Planner
from sloserve.engine.stages import Stage
from sloserve.engine.why import Cause, Why, preempted_for
from sloserve.scheduler.policy import Plan
from sloserve.vllm_plugin.engine.causes import due_later_s, head_held_up, not_planned, rival_of, step_done
from sloserve.vllm_plugin.engine.engine_stats import EngineStats
from sloserve.vllm_plugin.engine.vllm_port import VllmPort, admitted_ids
from sloserve.wire.trace_way import HEADER, RequestTrace, TraceEvent

_NOTHING = Cause()


class Traced:
    """The ways of one scheduler's live requests."""

    def __init__(self, scheduler: Any, stats: EngineStats, port: VllmPort) -> None:
        self._scheduler, self._stats, self._port = scheduler, stats, port
        self._ways: dict[str, RequestTrace] = {}
        self._planned: dict[str, Cause] = {}  # of requests about to be preempted
        self._preempted: list[tuple[Request, bool, Cause]] = []
        self._paused: Sequence[Request] = ()
        self._held = _NOTHING  # what kept the first waiting request out of the step before

    def preempting(self, victims: Sequence[Request], plan: Plan, planner: Planner | None) -> None:
        """Record that the plan is about to preempt ``victims``."""
        rival = rival_of(plan, planner)
        self._planned = {
            victim.request_id: Cause(Why.PLAN_ALONE)
            if rival is None
            else preempted_for(math.nan, due_later_s(victim, rival, self._stats.slo_of))
            for victim in victims
        }

    def preempted(self, request: Request, swapped: bool) -> None:
        """Record that a request was preempted, by the plan after :meth:`preempting`, or otherwise.

        Args:
            request: The request.
            swapped: Whether the host keeps its KV.
        """
        cause = self._planned.pop(request.request_id, None) or not_planned(self._scheduler)
        self._preempted.append((request, swapped, cause))

    def stepped(
        self, output: Any, plan: Plan, planner: Planner | None, paused: Sequence[Request], now_s: float
    ) -> None:
        """Record that a step was scheduled and counted.

        Args:
            output: The ``SchedulerOutput`` of the step.
            plan: The plan that the step followed.
            planner: The planner of the plan, if there is one.
            paused: Requests that the plan passed over.
            now_s: Start of the step, in epoch seconds.
        """
        before, self._paused = self._paused, paused
        if before != paused:
            for request in set(before).difference(paused):
                stages = self._stats.stages.by_id.get(request.request_id)
                if stages is not None and stages.stage is Stage.RUNNING:
                    self._report(request, TraceEvent("continued", now_s))
        for request, swapped, cause in self._preempted:
            self._report(request, _event("swapped" if swapped else "preempted", now_s, cause))
        self._preempted.clear()
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        for request_id in admitted_ids(output):
            request = self._scheduler.requests.get(request_id)
            if request is not None:
                again = request_id in resumed
                self._report(request, _event("resumed" if again else "admitted", now_s, self._held))
        if before != paused:
            for request in set(paused).difference(before):
                self._report(request, TraceEvent("paused", now_s, Why.PAUSE.name.lower()))
        self._held = self._holds_up(output, plan, planner)

    def ended(self, request: Request) -> None:
        """Record that a request ended, in whatever way; its output has yet to be made."""
        self._ways.pop(request.request_id, None)

    def _holds_up(self, output: Any, plan: Plan, planner: Planner | None) -> Cause:
        waiting = self._port.waiting  # not a list of it: mostly the first of them is all that is looked at
        if next(iter(waiting), None) is None:
            return _NOTHING
        step = step_done(self._scheduler, self._port, output, plan, planner)
        return head_held_up(waiting, step, self._port.facts(len(self._scheduler.running), ()))

    def _report(self, request: Request, event: TraceEvent) -> None:
        stages = self._stats.stages.by_id.get(request.request_id)
        if stages is None:  # it ended with this step, or came unseen
            return
        way = self._ways.setdefault(request.request_id, RequestTrace())
        way.add(event)
        way.paused_s, way.preempted_s = stages.spent_s[Stage.PAUSED], stages.spent_s[Stage.PREEMPTED]
        # Now and not at the end: an output that a stop string ends, ends in the API process first.
        request.trace_headers = {**(request.trace_headers or {}), HEADER: way.header()}


def _event(name: str, at_s: float, cause: Cause) -> TraceEvent:
    if cause.why is Why.NOTHING:
        return TraceEvent(name, at_s)
    return TraceEvent(name, at_s, cause.why.name.lower(), _known(cause.figure), _known(cause.of))


def _known(figure: float) -> float | None:
    return None if math.isnan(figure) else float(figure)
