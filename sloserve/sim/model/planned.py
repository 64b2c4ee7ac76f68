"""The model engine's scheduler with a policy on top: what SLOScheduler is to AsyncScheduler.

The same planner decides, and is notified of the same events in the same order. A failure fails the run, since it harms
no client here.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.clock import Clock
from sloserve.core.stated import StatedSLO
from sloserve.engine.planner import Planner
from sloserve.engine.step_clock import StepClock
from sloserve.engine.swap.control import SwapControl, first_bytes_per_s
from sloserve.engine.swap.store import SwapStore
from sloserve.engine.tenant_shares import TenantShares
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.engine.virtual.virtual_swap_worker import GIB, NOTHING, Told
from sloserve.estimator.planning_cost import PlanningCosts
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.policy import Policy
from sloserve.scheduler.registry import make_policy, policy_text
from sloserve.scheduler.settings import PluginSettings
from sloserve.sim.model.model_port import ModelPort
from sloserve.sim.model.model_requests import PREEMPTED, ModelRequest
from sloserve.sim.model.scheduler import NONE, ModelScheduler
from sloserve.sim.model.step import StepBatch, StepLimits
from sloserve.sim.model.swap import KVSwap


class PlannedScheduler(ModelScheduler):
    """A model scheduler that a policy plans for; see :class:`~sloserve.sim.model.scheduler.ModelScheduler`.

    Args:
        slo_paused: The requests that the plan of the last step paused.
        slo_planning_s: The virtual time that planning of the last step costs, in seconds.
        slo_counters: The same counters as SLOScheduler's.
        plan_costs_s: The measured real time of each plan, in seconds.
    """

    def __init__(
        self,
        settings: EngineSettings,
        plugin: PluginSettings,
        clock: Clock,
        planning_costs: PlanningCosts,
        policy: Policy | None = None,
    ) -> None:
        """Build the scheduler; ``policy`` replaces the policy that the settings name."""
        super().__init__(settings)
        self._clock = clock
        self._swapping = plugin.swapping
        self._steps = StepClock(None if plugin.profile is None else load_profile(plugin.profile))
        self._port = ModelPort(self, self._steps, clock)
        self.slo_counters: Counter[str] = Counter()
        self.slo_paused: Sequence[ModelRequest] = ()
        self.slo_planning_s = 0.0
        self.plan_costs_s: list[float] = []
        policy = policy or make_policy(plugin.policy, plugin.policy_options, seed=plugin.seed)
        self.planner: Planner | None = None
        self.tenant_shares = TenantShares.of(plugin)
        """Service of the tenants; ``None`` where the settings have no shares."""
        if policy.reads or self.tenant_shares is not None:
            self.planner = Planner(
                self._port,
                policy,
                None,
                plugin,
                self.slo_counters,
                self.plan_costs_s.append,
                may_pause=True,
                cost=planning_costs.of(policy_text(plugin.policy, plugin.policy_options)),
                shares=self.tenant_shares,
            )

    def swap_with(self, space_gib: float, block_bytes: int) -> None:
        """Keep the KV of preempted requests from the next step on.

        Args:
            space_gib: Size of the swap space in host memory, in GiB.
            block_bytes: Size of a KV block, in bytes.
        """
        store = SwapStore(int(space_gib * GIB) // block_bytes, self.layout.groups, self.slo_counters)
        bytes_per_s = first_bytes_per_s(self._steps.profile)
        control = SwapControl(
            store,
            self.layout,
            block_bytes=block_bytes,
            swapping=self._swapping,
            bytes_per_s=bytes_per_s,
            steps=self._steps,
            clock=self._clock,
        )
        self.swap = KVSwap(self.requests, self.kv, control)

    def state(self, request: ModelRequest, stated: StatedSLO) -> None:
        """Report what a request asks for to the planner, right after the request was added."""
        if self.planner is not None:
            self._port.requests[request.request_id] = request
            self.planner.arrived(request, stated, self._clock.now_s())

    def preempt(self, index: int) -> None:
        if self.swap is not None:
            self.swap.before_preempt(index, self._port.facts(int(self.running.size), ()))
        super().preempt(index)
        if self.planner is not None:
            self.planner.preempted(self.requests.handles[index])

    def _end(self, index: int) -> None:
        if self.swap is not None:
            self.swap.ending(index, self._port.facts(int(self.running.size), ()))
        if self.planner is not None:
            request = self.requests.handles[index]
            self.planner.finished(request, self._clock.now_s())
            del self._port.requests[request.request_id]
        super()._end(index)

    def update(self, batch: StepBatch, told: Told = NOTHING) -> tuple[IntArray, list[int]]:
        sampled, ended = super().update(batch, told)
        if self.planner is not None or self.swap is not None:
            self._steps.output(self._clock.monotonic_s())
        if self.planner is not None:
            self.planner.progressed(sampled, self._clock.now_s(), batch)
        return sampled, ended

    def schedule(self) -> StepBatch:
        planner = self.planner
        if planner is None:
            batch = self._scheduled(self.limits)
            if self.swap is not None:  # which wants to know how long steps take
                self._steps.scheduled(self._load_seen(batch), self._clock.monotonic_s())
            return batch
        now_s, monotonic_s = self._clock.now_s(), self._clock.monotonic_s()
        own = self.limits
        self.slo_paused, self.slo_planning_s = (), 0.0
        if planner.table.slot_of:
            step = planner.next_step(now_s, monotonic_s)
            self.slo_planning_s = step.planning_s
            stores = self.slo_counters["swap_stores"]
            for request in step.preempt:
                index = request.index  # type: ignore[attr-defined]
                self.running = self.running[self.running != index]
                self.preempt(index)
            if step.preempt:
                self.slo_counters["evictions"] += len(step.preempt)
                if self.swap is not None:
                    self.slo_counters["swapped_evictions"] += self.slo_counters["swap_stores"] - stores
            self.slo_paused = planner.apply_plan(step, own, monotonic_s)  # type: ignore[assignment]
        batch = self._scheduled(own)
        planner.admitted(batch, monotonic_s)
        if self.swap is not None and self.swap.begun:
            planner.loading(self.swap.begun, monotonic_s)
        self._steps.scheduled(self._load_seen(batch), monotonic_s)
        return batch

    def _scheduled(self, own: StepLimits) -> StepBatch:
        """Return what vLLM schedules within ``limits``, and restore the limits ``own`` after it.

        A place is left for each request with KV that is being loaded. Requests with loaded KV are admitted: they hold
        blocks, and no plan counts them.
        """
        if self.swap is not None:
            self.swap.begun = []
            if self.holding:
                loaded = sum(index in self.arrived or self.requests.state[index] == PREEMPTED for index in self.holding)
                running = min(self.limits.running + loaded, own.running - len(self.holding) + loaded)
                self.limits = replace(self.limits, running=max(running, int(self.running.size)))
        batch = super().schedule()
        self.limits, self.paused = own, NONE
        if self.swap is not None:
            handles = self.requests.handles
            self.swap.control.admitted(handles[index].request_id for index in batch.admitted)
        return batch

    def _load_seen(self, batch: StepBatch) -> StepLoad:
        """Return the load as the step clock of SLOScheduler sees it.

        A request with one token counts as a decode, whatever drafts it has besides, unless it is new and was not padded
        with drafts.
        """
        admitted = len(batch.admitted)
        own = batch.own_tokens
        decodes = own == 1
        if admitted:
            again = self.requests.preemptions[batch.requests[-admitted:]] > 0
            if batch.drafts is not None:  # padded, as decodes are
                again |= batch.drafts[-admitted:] > 0
            decodes[-admitted:] &= again
        num_decodes = int(np.count_nonzero(decodes))
        drafts = 0 if batch.drafts is None else int(np.add.reduce(batch.drafts))
        context = int(np.add.reduce(batch.computed, where=decodes)) + num_decodes
        if num_decodes == batch.requests.size:
            return StepLoad(decode_seqs=num_decodes, decode_context_tokens=context, draft_tokens=drafts)
        chunks, prefixes = batch.tokens[~decodes], batch.computed[~decodes]
        return StepLoad(
            prefill_tokens=int(chunks.sum()),
            num_prefills=chunks.size,
            decode_seqs=num_decodes,
            decode_context_tokens=context,
            prefill_attention_tokens2=int((chunks * (chunks + 2 * prefixes)).sum()),
            draft_tokens=drafts,
        )
