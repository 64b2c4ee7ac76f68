"""``SLOScheduler``: vLLM's own scheduler, whose order of service is planned by a policy.

Wires only. Each ``schedule()``: take a snapshot, ask the policy for a plan if the budget allows, carry it out on vLLM's
queues, let vLLM schedule. Whatever the policy does, outputs stay vLLM's and no request is lost: see ``guards`` and
``apply``.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from sloserve.core.clock import Clock, SystemClock
from sloserve.core.errors import ConfigError
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Plan, check_plan
from sloserve.scheduler.registry import make_policy
from sloserve.scheduler.rows import PROGRESS_COLUMNS, State
from sloserve.vllm_plugin import compat
from sloserve.vllm_plugin.apply import carry_out, narrowed
from sloserve.vllm_plugin.config import plugin_settings
from sloserve.vllm_plugin.guards import Ageing, PlanBudget, keep_alive, permitted
from sloserve.vllm_plugin.rows import RequestTable

logger = logging.getLogger(__name__)


class SLOScheduler(AsyncScheduler):
    """Drop-in for vLLM's ``--scheduler-cls``; configured by ``--additional-config '{"sloserve": {"policy": "edf"}}'``.

    With no configuration the policy is fcfs, which is vLLM's own behaviour.

    Args:
        clock, plan_cost_s: given by the virtual engine alone: virtual time, and a constant in place of measured
        planning cost.

    Raises:
        ConfigError: an untested vLLM, an unknown policy or setting, or ``--scheduling-policy priority`` with a policy
        that orders the queues.
    """

    # Until the constructor knows better: vLLM's own tests build schedulers without calling it.
    _identity_only = True
    _wants_output = False

    def __init__(self, *args: Any, clock: Clock | None = None, plan_cost_s: float | None = None, **kwargs: Any) -> None:
        compat.check_version()
        super().__init__(*args, **kwargs)
        compat.check_scheduler(self)
        settings = plugin_settings(self.vllm_config.additional_config)
        self.slo_policy = make_policy(settings.policy, settings.policy_options, seed=settings.seed)
        needs = self.slo_policy.needs
        if needs and self.scheduler_config.policy != "fcfs":
            raise ConfigError(
                f"--scheduling-policy {self.scheduler_config.policy} orders vLLM's queues itself, "
                f"which policy {settings.policy} cannot; leave it at fcfs and choose --policy priority"
            )
        self.slo_counters: Counter[str] = Counter()
        self._clock = clock or SystemClock()
        self._budget = PlanBudget(settings.plan_share, fixed_cost_s=plan_cost_s)
        self._identity_only = not needs or self._identity_reason() is not None
        self._ageing = Ageing(0.0 if self._identity_only else settings.aged_share, settings.classes)
        if self._ageing.period is not None:
            needs = needs | Ageing.NEEDS
        self._table = RequestTable(needs, settings.classes, self.slo_counters)
        self._may_pause = compat.may_pause(self)
        self._plan = Plan.IDENTITY
        self._aged = NO_SLOTS
        self._wants_output = bool(PROGRESS_COLUMNS & needs) or self.slo_policy.wants_progress
        self.plan_costs_s: list[float] | None = None
        """Measured cost of each plan, collected only where a list is put here (the simulator and benchmarks do)."""

    def _identity_reason(self) -> str | None:
        reason = compat.identity_reason(self)
        if reason is not None and self.slo_policy.needs:
            logger.warning("sloserve leaves scheduling to vLLM: plans are not yet shown safe with %s", reason)
        return reason

    # What vLLM tells us: each hook keeps the table in step, then tells the policy.

    def add_request(self, request: Request) -> None:
        known = request.request_id in self.requests
        super().add_request(request)
        if self._identity_only or known or request.request_id not in self.requests:
            return
        slot = self._table.add(request)
        if slot is not None:
            self._tell(self.slo_policy.arrived, slot, self._clock.now_s())

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        if not self._identity_only:
            self._table.preempted(request)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        if not self._identity_only:
            slot = self._table.finished(request)
            if slot is not None:
                self._tell(self.slo_policy.finished, slot, self._clock.now_s())
                self._table.drop(request)
                self._forget(slot)
        return super()._free_request(request, *args, **kwargs)

    def _forget(self, slot: int) -> None:
        """The slot may go to another request, which a plan still in use must not pause, nor ageing take for its own."""
        if self._plan.pause.size:
            self._plan = replace(self._plan, pause=self._plan.pause[self._plan.pause != slot])
        if self._aged.size:
            self._aged = self._aged[self._aged != slot]

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().update_from_output(*args, **kwargs)
        if self._wants_output and not self._identity_only:
            now_s = self._clock.now_s()
            slots, tokens = self._table.progressed(outputs, now_s)
            if slots.size and self.slo_policy.wants_progress:
                self._tell(self.slo_policy.progressed, slots, tokens, now_s)
        return outputs

    def _tell(self, event: Callable[..., None], *args: Any) -> None:
        """Reports an event to the policy; a policy that fails on it must not take the engine down."""
        try:
            event(self._table.rows, *args)
        except Exception:
            self._count_error()

    # What we tell vLLM.

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        if self._identity_only or not self._table.slot_of or not compat.admits_new(self):
            return super().schedule(*args, **kwargs)
        plan = self._next_plan()
        if plan is Plan.IDENTITY:
            output = super().schedule(*args, **kwargs)
        else:
            with narrowed(self, plan, self._table, self.slo_counters):
                output = super().schedule(*args, **kwargs)
        admitted = self._table.admitted(output)
        if admitted.size and self._ageing.period is not None:
            self._ageing.admitted(self._table.rows, admitted, self._aged)
        return output

    def _next_plan(self) -> Plan:
        """The plan for this step: a fresh one, carried out, if the budget allows; else the last one, less what has
        ended.
        """
        now_s = self._clock.now_s()
        if not self._budget.allows(now_s):
            return self._reused()
        self._budget.start()
        try:
            self._plan = self._fresh(now_s)
        finally:
            cost_s = self._budget.stop(now_s)
        if self.plan_costs_s is not None:
            self.plan_costs_s.append(cost_s)
        return self._plan

    def _fresh(self, now_s: float) -> Plan:
        snapshot = self._table.snapshot(self.running, self._engine_facts(), self._max_loras())
        try:
            plan = self.slo_policy.plan(snapshot, now_s)
            if plan is not Plan.IDENTITY:
                check_plan(plan, snapshot)
        except Exception:
            self._count_error()
            return Plan.IDENTITY
        self.slo_counters["plans"] += 1
        self._aged = self._ageing.aged(snapshot.rows, snapshot.waiting, now_s)
        if self._aged.size:
            order = (
                snapshot.waiting[np.argsort(snapshot.rows.seq[snapshot.waiting])]
                if plan.waiting is None
                else plan.waiting
            )
            plan = replace(plan, waiting=self._ageing.weave(order, self._aged))
        if plan is Plan.IDENTITY:
            return plan
        plan = keep_alive(permitted(plan, snapshot, may_pause=self._may_pause), snapshot)
        carry_out(self, plan, self._table, self.slo_counters)
        return plan

    def _count_error(self) -> None:
        self.slo_counters["plan_errors"] += 1
        count = self.slo_counters["plan_errors"]
        # The first in full, then at each power of ten: one faulty policy must not fill the log.
        if count == 1:
            logger.exception("policy %s failed; vLLM's own order holds for this step", type(self.slo_policy).__name__)
        elif str(count).strip("0") == "1":
            logger.warning("policy %s has failed %d times", type(self.slo_policy).__name__, count)

    def _reused(self) -> Plan:
        """The last plan for one more step: requests that stopped running since are not paused, and not all that run
        are.
        """
        plan = self._plan
        self.slo_counters["reused_plans"] += 1
        if not plan.pause.size:
            return plan
        rows = self._table.rows
        snapshot_running = rows.slots_in(State.RUNNING)
        still = plan.pause[np.isin(plan.pause, snapshot_running)]
        if still.size >= snapshot_running.size:
            still = NO_SLOTS
        return replace(plan, pause=still, evict=NO_SLOTS)

    def _engine_facts(self) -> EngineFacts:
        return EngineFacts(
            free_blocks=compat.free_blocks(self),
            total_blocks=compat.total_blocks(self),
            block_size=self.block_size,
            max_num_seqs=self.max_num_running_reqs,
            token_budget=self.max_num_scheduled_tokens,
            free_slots=max(getattr(self, compat.admission_limit_name(self)) - len(self.running), 0),
        )

    def _max_loras(self) -> int | None:
        return self.lora_config.max_loras if self.lora_config is not None else None
