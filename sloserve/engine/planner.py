"""Decides which plan the engine follows in its next step: asks the policy if the budget allows, applies the guards."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.stated import StatedSLO
from sloserve.engine.containment import ErrorLog
from sloserve.engine.draft_control import DraftControl
from sloserve.engine.guards import Ageing, PlanBudget, guarded
from sloserve.engine.held_plan import MAX_UNEVENTFUL_S, HeldPlan
from sloserve.engine.planned_step import Step
from sloserve.engine.port import EnginePort, EngineRequest
from sloserve.engine.prefix_reuse import STRETCH_TOKENS, PrefixReuse
from sloserve.engine.recording.plan_log import PlanLog
from sloserve.engine.request_table import RequestTable
from sloserve.engine.shadow import Shadow
from sloserve.engine.step_limits import limit_tokens, queued_slots, trim_drafts
from sloserve.engine.tenant_shares import Balances, TenantShares
from sloserve.estimator.planning_cost import PlanningCost
from sloserve.lso.engine_pace import pace_of
from sloserve.lso.lengths import Lengths
from sloserve.lso.standing import Standing
from sloserve.lso.step_budget import StepBudget
from sloserve.scheduler.policy import NO_SLOTS, EngineFacts, Plan, Policy, Snapshot, check_plan
from sloserve.scheduler.settings import PluginSettings


class Planner:
    """Keeps the rows that its policies read, tells them what happens, asks them for plans.

    Each step calls three methods. :meth:`next_step` decides and changes nothing in the engine; the scheduler then
    preempts what the step names. :meth:`apply_plan` orders the queues, narrows the limits and pauses requests.
    :meth:`admitted` records which requests the engine has admitted. If a method raises, the rows may be wrong: the
    caller must drop the planner, and may have the next one :meth:`learn_from` it.

    Attributes:
        held: The last plan, which holds until the next one.
        aged: The waiting requests that ageing moved forward in it.
    """

    def __init__(
        self,
        port: EnginePort,
        policy: Policy,
        shadow: Shadow | None,
        settings: PluginSettings,
        counters: Counter[str],
        on_plan: Callable[[float], None],
        *,
        may_pause: bool,
        may_preempt: bool = True,
        cost: PlanningCost | None,
        shares: TenantShares | None = None,
    ) -> None:
        """Build an empty request table with the columns that the policies read.

        Args:
            port: The engine.
            policy: The policy in charge.
            shadow: A second policy that is only scored; ``None`` for none.
            settings: Settings of the engine.
            counters: Counters of what happens.
            on_plan: Called with the cost of each plan, in seconds.
            may_pause: Whether the engine can pause requests.
            may_preempt: Whether the engine lets a plan preempt requests.
            cost: Cost of planning in virtual time; ``None`` to measure it.
            shares: Service of the tenants so far; ``None`` where tenants do not matter.
        """
        self.port = port
        self.policy, self.shadow = policy, shadow
        self.budget = PlanBudget(settings.plan_share)
        self._cost = cost
        self._plans = bool(policy.needs) or shares is not None
        self.ageing = Ageing(settings.aged_share if self._plans else 0.0, settings.classes)
        self._step_budget = StepBudget(Lengths(seed=settings.seed)) if policy.settings.step_budget else None
        needs = policy.reads | (Ageing.NEEDS if self.ageing.period is not None else frozenset())
        self._shares = shares
        if self._shares is not None:
            self._shares.forget_rows()
        needs |= TenantShares.NEEDS if self._shares is not None else frozenset()
        needs |= frozenset() if shadow is None else shadow.needs
        self._reuse = PrefixReuse() if "hit_tokens" in needs else None
        self.needs = needs | (PrefixReuse.NEEDS if self._reuse is not None else frozenset())
        self.table = RequestTable(self.needs, port)
        self.held = HeldPlan()
        self.aged = NO_SLOTS
        self._order_planned = NO_SLOTS  # of the waiting requests, in the last plan
        self._has_news = True  # since the last plan
        self._drafts: DraftControl | None = None
        if port.num_drafts and (self._plans or shadow is not None):
            self._drafts = DraftControl(len(settings.classes.names), port.num_drafts)
        self._wants_progress = policy.wants_progress or (shadow is not None and shadow.policy.wants_progress)
        self._counters = counters
        self._on_plan = on_plan
        self._may_pause, self._may_preempt = may_pause, may_preempt
        self._errors = ErrorLog()
        self._log: PlanLog | None = None

    def record(self, log: PlanLog, policy: str, now_s: float) -> None:
        """Record all that the policy is given, and its next plans.

        Args:
            log: The log, which may have been another planner's.
            policy: Text of the policy.
            now_s: The present time, in epoch seconds.
        """
        log.begins(self.policy, policy, self._facts().layout, now_s)
        self._log = log

    def take_over(
        self, before: "Planner | None", live: Iterable[EngineRequest], slo_of: Mapping[str, StatedSLO], now_s: float
    ) -> None:
        """Take the place of ``before``, between two steps, with the requests that are ``live``, in order of arrival.

        Rows keep their slots, so a policy that stays is not disturbed, nor are its plan, budget and ageing. A new
        policy is notified of each request's arrival. A request that is not in ``slo_of`` gets no row.
        """
        if before is None:
            for request in live:
                if request.request_id in slo_of:
                    self.table.add_live(request, slo_of[request.request_id], now_s)
        else:
            self.table = before.table
            self.table.keep(self.needs, slo_of, now_s)
        if before is not None and before.policy is self.policy:
            self.budget, self.ageing, self.held, self.aged = before.budget, before.ageing, before.held, before.aged
            self._step_budget = before._step_budget
        if before is not None:
            self._learn_drafts(before)
            self._learn_reuse(before)
        rows = self.table.rows
        for slot in sorted(self.table.slot_of.values(), key=lambda slot: int(rows.seq[slot])):
            if before is None or before.policy is not self.policy:
                self._notify_policy("arrived", slot, now_s)
            if self.shadow is not None and (before is None or before.shadow is not self.shadow):
                self.shadow.notify("arrived", rows, slot, now_s)

    @property
    def lengths(self) -> Lengths | None:
        """What is known of the lengths of outputs: by the policy, else by the step budget; ``None`` by neither."""
        budget = self._step_budget
        return self.policy.lengths or (None if budget is None else budget.lengths)

    def balances(self, now_s: float) -> Balances | None:
        """Return what the tenants have had and are due; ``None`` where they have no shares."""
        return None if self._shares is None else self._shares.balances(self.table.rows, now_s)

    def follow(self, settings: PluginSettings) -> None:
        """Follow settings that were changed; only ages of classes concern the planner itself."""
        self.ageing.follow(settings.classes)

    def standing(self) -> Standing | None:
        """Return where the tenants stand within their shares; ``None`` where shares decide nothing."""
        return None if self._shares is None else self._shares.standing(self.table.rows)

    def learn_from(self, dropped: "Planner") -> None:
        """Continue with what the policies and the step budget of a planner learned that was dropped with its rows."""
        self.policy.learn_from(dropped.policy)
        if self.shadow is not None and dropped.shadow is not None:
            self.shadow.policy.learn_from(dropped.shadow.policy)
        self._learn_drafts(dropped)
        self._learn_reuse(dropped)
        if self._step_budget is not None and dropped._step_budget is not None:
            self._step_budget.learn_from(dropped._step_budget)

    def _learn_drafts(self, before: "Planner") -> None:
        if self._drafts is not None and before._drafts is not None:
            self._drafts.learn_from(before._drafts)

    def _learn_reuse(self, before: "Planner") -> None:
        if self._reuse is not None and before._reuse is not None:
            self._reuse = before._reuse

    # Events: each one updates the table first, then the policies.

    def arrived(self, request: EngineRequest, stated: StatedSLO, now_s: float) -> None:
        slot = self.table.add(request, stated)
        self._has_news = True
        if slot is not None:
            if self._reuse is not None:
                self._reuse.arrived(self.port.prompt_contents(request, STRETCH_TOKENS), now_s)
            self._notify("arrived", slot, now_s)
            if self._step_budget is not None:
                self._step_budget.arrived(self.table.rows, slot, now_s)

    def preempted(self, request: EngineRequest) -> None:
        slot = self.table.preempted(request)
        self._has_news = True
        if slot is not None:
            self.held = self.held.without(slot)

    def loading(self, requests: Iterable[EngineRequest], monotonic_s: float) -> None:
        """Record that the engine loads the KV of requests; until it is there, they are in no plan.

        Requests may be reported again. The load is their admission: they hold KV and a place to run from then on.
        """
        self._count_admissions(self.table.loading(requests), monotonic_s)

    def finished(self, request: EngineRequest, now_s: float) -> None:
        slot = self.table.finished(request)
        self._has_news = True
        if slot is not None:
            if self._reuse is not None:
                self._reuse.request_ends(request, self.table.rows, slot, self.port, now_s)
            if self._shares is not None:
                self._shares.finished(self.table.rows, slot, request.num_computed_tokens)
            self._notify("finished", slot, now_s)
            if self._step_budget is not None:
                self._step_budget.finished(self.table.rows, slot)
            # The slot may go to another request, which a plan still in use must not pause, nor ageing take for its own.
            self.held = self.held.without(slot)
            if self.aged.size:
                self.aged = self.aged[self.aged != slot]
        self.table.drop(request)

    def progressed(self, outputs: Any, now_s: float, step: Any = None, results: Any = None) -> None:
        """Take in the results of a step.

        Args:
            outputs: What the engine made of the results.
            now_s: The present time, in epoch seconds.
            step: The step, as it was passed to :meth:`admitted`; ``None`` if the port reads all counts.
            results: What the worker found.
        """
        if step is not None:
            self.table.produced(step, results)
        learns = self._drafts is not None and step is not None
        slots = tokens = NO_SLOTS
        if learns or self._wants_progress:
            slots, tokens, drafts = self.table.new_tokens(outputs, step if learns else None)
        if learns and self._drafts is not None:
            self._drafts.learn(self.table.rows, slots, tokens, drafts)
        self.table.note_first_tokens(now_s)
        if slots.size and self._wants_progress:
            if self.policy.wants_progress:
                self._notify_policy("progressed", slots, tokens, now_s)
            if self.shadow is not None and self.shadow.policy.wants_progress:
                self.shadow.notify("progressed", self.table.rows, slots, tokens, now_s)

    def admitted(self, output: Any, monotonic_s: float) -> None:
        """Record the requests that a step admitted, and what it computes."""
        self._count_admissions(self.table.admitted(output), monotonic_s)
        self.table.scheduled(output, self.port.requests)

    def _count_admissions(self, slots: IntArray, monotonic_s: float) -> None:
        """Count admissions, and protect requests that were admitted because of their age."""
        if slots.size:
            self._has_news = True
        if slots.size and self.ageing.period is not None:
            aged = self.ageing.admitted(slots, self.aged)
            if aged.size:
                self.table.marks.protect(aged)
                self.aged = self.aged[~np.isin(self.aged, aged)]
        if self.shadow is not None:
            self.shadow.rate.observe(slots.size, monotonic_s)

    def _notify(self, event: str, *args: Any) -> None:
        self._notify_policy(event, *args)
        if self.shadow is not None:
            self.shadow.notify(event, self.table.rows, *args)

    def _notify_policy(self, event: str, *args: Any) -> None:
        """Report an event to the policy; a policy that fails on it must not take the engine down."""
        try:
            if self._log is None:
                getattr(self.policy, event)(self.table.rows, *args)
            else:
                self._log.notify(self.policy, event, self.table.rows, *args)
        except Exception as error:
            self._count_error(error)

    # Planning.

    def next_step(self, now_s: float, monotonic_s: float) -> Step:
        """Return a fresh plan if the budget allows, else the last one as far as it still holds.

        The result has the tokens that this step may compute. The engine is not changed.
        """
        self.table.marks.guard_loras(self.port.max_loras, self.table.slot_of.values())
        step = self._planned(now_s, monotonic_s)
        if self._cost is not None:
            running = self.table.num_running
            step_s = self._cost.step.seconds(running, len(self.table.slot_of) - running)
            step.planning_s += step_s
        if self._step_budget is not None:
            step = limit_tokens(
                step,
                self._step_budget,
                self.table,
                self.port,
                counters=self._counters,
                facts=self._facts,
                standing=self.standing,
                may_pause=self._may_pause,
                aged=self.aged,
                now_s=now_s,
            )
        if self._drafts is None or self.policy.drafts == "all":
            return step
        engine = step.engine or self._facts()
        rule = self.policy.drafts
        return trim_drafts(step, rule, self.table, self.port, engine=engine, lengths=self.lengths, now_s=now_s)

    def _planned(self, now_s: float, monotonic_s: float) -> Step:
        if not self._plans:
            planning_s, engine = 0.0, None
            if self.shadow is not None and self.shadow.is_due(monotonic_s):
                snapshot = self._snapshot(self._facts_for_plan(), now_s)
                self._consider(Plan.IDENTITY, snapshot, now_s, monotonic_s)
                planning_s, engine = self.shadow.charged_s(snapshot) or 0.0, snapshot.engine
            return Step(Plan.IDENTITY, engine=engine, is_read=engine is not None, planning_s=planning_s)
        if not self.budget.allows(monotonic_s) or not self._may_differ(monotonic_s):
            plan = self.held.now(self.table.rows, monotonic_s)
            self._counters["reused_plans" if plan is not None else "stale_plans"] += 1
            return Step(plan or Plan.IDENTITY)
        self.budget.start()
        engine = self._facts_for_plan()
        if self._is_idle(engine, monotonic_s):
            return self._idle_step(engine)
        snapshot, shadow_s, planning_s = self._snapshot(engine, now_s), 0.0, 0.0
        self.aged = snapshot.turns.aged
        plan = self._checked(snapshot, now_s)
        if plan is not None and self.shadow is not None and self.shadow.is_due(monotonic_s):
            # The shadow plans before the plan is applied, so that both policies plan for the same state of the engine.
            shadow_s = self._consider(plan, snapshot, now_s, monotonic_s)
            planning_s += self.shadow.charged_s(snapshot) or 0.0
        plan = plan or Plan.IDENTITY
        self._order_planned = NO_SLOTS if plan.waiting is None else plan.waiting
        self.held = HeldPlan.of(plan, snapshot, monotonic_s)
        self._has_news = False
        plan_s = None
        if self._cost is not None:
            cells = self.policy.solver_cells
            plan_s = self._cost.plan.seconds(snapshot.running.size, snapshot.waiting.size, cells)
            planning_s += plan_s
        preempt = self.port.running_requests(plan.preempt, self.table)
        return Step(plan, preempt, True, snapshot.engine, True, shadow_s, plan_s, planning_s)

    def _may_differ(self, monotonic_s: float) -> bool:
        """Return whether a plan made now may differ from the last one."""
        if self._has_news or not self.policy.plans_on_events or monotonic_s - self.held.made_s > MAX_UNEVENTFUL_S:
            return True
        return self.table.has_prompts() or (self.shadow is not None and self.shadow.is_due(monotonic_s))

    def _is_idle(self, engine: EngineFacts, monotonic_s: float) -> bool:
        if self.shadow is not None and self.shadow.is_due(monotonic_s):
            return False
        if self.table.marks.protected_running().size:
            return False  # decodes are spared their prompts: the guards make a plan of IDENTITY
        self.table.unblock()
        return self.policy.is_idle(self.table.num_waiting, self.table.num_running, engine)

    def _idle_step(self, engine: EngineFacts) -> Step:
        """Return the step of an engine that leaves the policy nothing to plan: what the rows say of it is not read."""
        self._order_planned = self.aged = NO_SLOTS
        self.held = HeldPlan()
        if self._shares is not None:
            self._shares.rest()
        self._counters["plans"] += 1
        plan_s = None
        if self._cost is not None:
            plan_s = self._cost.plan.seconds(self.table.num_running, self.table.num_waiting)
        return Step(Plan.IDENTITY, is_fresh=True, engine=engine, plan_s=plan_s, planning_s=plan_s or 0.0)

    def apply_plan(self, step: Step, limits: Any, monotonic_s: float) -> list[EngineRequest]:
        """Apply all of a step except its preemptions, which came before; all or nothing.

        Returns: the requests that it pauses, in the plan's order.
        """
        paused: list[EngineRequest] = []
        if step.plan is not Plan.IDENTITY or self.table.marks.has_protected:
            paused = self.port.apply_plan(step.plan, self.table, limits)
        if step.drafts is not None:
            self._counters["drafts_left_out"] += self.port.trim_drafts(step.drafts.slots, step.drafts.most, self.table)
        if paused:
            self._counters["paused_steps"] += len(paused)
        if step.is_fresh:
            self._on_plan(self.budget.stop(monotonic_s, others_s=step.others_s, charged_s=step.plan_s))
        return paused

    def _facts(self) -> EngineFacts:
        table = self.table
        facts = self.port.facts(table.num_running, table.others(self.port.requests))
        return facts if self._drafts is None else replace(facts, drafts=self._drafts.facts)

    def _facts_for_plan(self) -> EngineFacts:
        self.table.look_up(self._order_planned)
        return self._facts()

    def _snapshot(self, engine: EngineFacts, now_s: float) -> Snapshot:
        table = self.table
        snapshot = table.snapshot(engine, self.port.holding)
        if table.has_promised:
            snapshot = replace(snapshot, promises_at_s=now_s)
        if self._reuse is not None:
            awaited, on_host = (
                self._reuse.awaited_blocks(now_s, engine.total_blocks, on_host=only) for only in (False, True)
            )
            snapshot = replace(snapshot, awaited_blocks=awaited, awaited_on_host=on_host)
        if self._shares is not None:
            rows, running = snapshot.rows, snapshot.running
            pace = pace_of(engine, running.size, int(rows.computed_tokens[running].sum()))
            self._shares.charge(snapshot, pace, now_s)
            snapshot = replace(snapshot, standing=self._shares.standing(rows))
            if not snapshot.has_levels and not self.policy.needs:
                return snapshot  # the order of arrival overtakes no request, so that none ages
        turns = self.ageing.turns(
            snapshot.rows, snapshot.waiting, now_s, snapshot.running, table.marks.protected_running()
        )
        return replace(snapshot, turns=turns) if turns.aged.size else snapshot

    def _checked(self, snapshot: Snapshot, now_s: float) -> Plan | None:
        """Return the policy's plan after the guards; ``None`` if the policy raised or its plan is invalid."""
        try:
            log = self._log
            plan = self.policy.plan(snapshot, now_s) if log is None else log.plan(self.policy, snapshot, now_s)
            if plan is not Plan.IDENTITY:
                check_plan(plan, snapshot)
        except Exception as error:
            self._count_error(error)
            return None
        self._counters["plans"] += 1
        return self._guarded(plan, snapshot)

    def _guarded(self, plan: Plan, snapshot: Snapshot) -> Plan:
        return guarded(
            plan,
            snapshot,
            self.table,
            max_loras=self.port.max_loras,
            may_pause=self._may_pause,
            may_preempt=self._may_preempt,
        )

    def _consider(self, plan: Plan, snapshot: Snapshot, now_s: float, monotonic_s: float) -> float:
        assert self.shadow is not None
        return self.shadow.consider(
            plan, snapshot, self._guarded, lambda: queued_slots(self.table, self.port.waiting), now_s, monotonic_s
        )

    def _count_error(self, error: Exception) -> None:
        self._counters["plan_errors"] += 1
        name = type(self.policy).__name__
        self._errors.caught(error, f"policy {name} failed; the engine's own order holds for this step")
