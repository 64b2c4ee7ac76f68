"""``SLOScheduler``: vLLM's own scheduler, with an order of service that is planned by a policy.

This module does nothing but wire parts. Each ``schedule()`` asks the planner for a plan, narrows vLLM's limits to it,
lets vLLM schedule, and counts the result. Whatever the policy does, outputs stay vLLM's and no request is lost: see
``guards`` and ``apply``.

Of the methods that vLLM calls only the constructor raises anything of ours; the others are inherited from
:class:`~sloserve.vllm_plugin.engine.contained_scheduler.ContainedScheduler`. After an exception in planning the
planner is dropped and vLLM schedules by itself for a while, see :mod:`~sloserve.engine.policies_in_force`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from sloserve.core.clock import Clock, SteadyClock, SystemClock
from sloserve.core.errors import ConfigError
from sloserve.core.stated import StatedSLO
from sloserve.core.tenants import TenantTable
from sloserve.engine.containment import Containment
from sloserve.engine.metrics.engine_page import PageWriter
from sloserve.engine.metrics.live_page import LiveWriter
from sloserve.engine.metrics.tenant_figures import TenantRows
from sloserve.engine.planned_step import Step
from sloserve.engine.planner import Planner
from sloserve.engine.policies_in_force import PoliciesInForce
from sloserve.engine.policy_change import PolicyChanged
from sloserve.engine.policy_maker import PolicyMaker
from sloserve.engine.recording.plan_log import PlanLog
from sloserve.engine.shadow import Shadow
from sloserve.engine.step_clock import StepClock
from sloserve.engine.tenant_shares import TenantShares
from sloserve.estimator.planning_cost import PlanningCosts
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.live_settings import check_live
from sloserve.scheduler.policy import Plan, Policy
from sloserve.scheduler.settings import PluginSettings, plugin_settings
from sloserve.vllm_plugin.engine import compat, kv_loads, plans_off, private_names
from sloserve.vllm_plugin.engine.apply import StockLimits, let_in_loaded
from sloserve.vllm_plugin.engine.asynchronous import asynchronous
from sloserve.vllm_plugin.engine.contained_scheduler import ContainedScheduler
from sloserve.vllm_plugin.engine.engine_stats import EngineStats
from sloserve.vllm_plugin.engine.observers import Observers
from sloserve.vllm_plugin.engine.other_connectors import hold_back_preempted
from sloserve.vllm_plugin.engine.recorded import Recorded, start_recording
from sloserve.vllm_plugin.engine.step_load import step_load
from sloserve.vllm_plugin.engine.swapping import Parked, Swapping, swap_connector
from sloserve.vllm_plugin.engine.traced import Traced
from sloserve.vllm_plugin.engine.vllm_port import VllmPort
from sloserve.vllm_plugin.engine.watched import Watched

logger = logging.getLogger(__name__)

FIGURES_EVERY_S = 0.25
"""Seconds after which the page shows again how well step times are known, and how the tenants stand.

Its readers look every few seconds.
"""

_NO_LOAD = StepLoad()


@dataclass(slots=True)
class _Round:
    """One call of ``schedule()``.

    Args:
        now_s: Epoch seconds at its start.
        monotonic_s: Seconds of the monotonic clock at its start.
        swap_stores: Number of stores of requests' KV by then.
        step: What was decided for the step; ``None`` where vLLM decides alone.
    """

    now_s: float
    monotonic_s: float
    swap_stores: int
    step: Step | None = None


class SLOScheduler(ContainedScheduler):
    """Drop-in for vLLM's ``--scheduler-cls``; configured by ``--additional-config '{"sloserve": {"policy": "edf"}}'``.

    With no configuration the policy is fcfs, which is vLLM's own behaviour. If and only if the engine schedules
    asynchronously, an instance is vLLM's AsyncScheduler too. vLLM makes this choice for itself, but not for a class
    that it is given. The two schedulers leave different tokens in a request between its steps, and a worker reads them.

    Args:
        clock: The virtual engine's virtual time; ``None`` for the host's clock.
        planning_costs: The virtual engine's table in place of measured planning cost; ``None`` to measure it.

    Raises:
        ConfigError: An untested vLLM, a diffusion model, an unknown policy or setting, or ``--scheduling-policy
        priority`` with a policy that orders the queues.
    """

    # Until the constructor knows better, see ContainedScheduler.
    _swapping: Swapping | None = None
    _observers = Observers(ContainedScheduler._contain)
    _round: _Round | None = None

    REPORTS_PREEMPTIONS = True
    """A mark that the scheduler reports each request that is about to lose its KV to SwapConnector.

    Another scheduler may have this mark, too.
    """

    def __new__(cls, vllm_config: Any = None, *args: Any, **kwargs: Any) -> Self:
        is_async = vllm_config is not None and vllm_config.scheduler_config.async_scheduling
        chosen = asynchronous(cls) if is_async else cls  # type: ignore[arg-type]  # mypy takes no class for hashable
        made: Self = super().__new__(chosen)
        return made

    def __init__(
        self, *args: Any, clock: Clock | None = None, planning_costs: PlanningCosts | None = None, **kwargs: Any
    ) -> None:
        private_names.check_version()
        private_names.check_types()
        super().__init__(*args, **kwargs)
        private_names.check_scheduler(self)
        compat.check_model(self.vllm_config)
        self._settings = settings = plugin_settings(self.vllm_config.additional_config)
        self.slo_counters: Counter[str] = Counter()
        self.plan_costs_s: list[float] | None = None
        """Measured cost of each plan, collected only where a list is put here (the simulator and benchmarks do)."""
        self.slo_paused: list[Request] = []
        """Requests that the plan of the last step paused, in the plan's order."""
        self._clock = SteadyClock(clock or SystemClock())
        profile = None if settings.profile is None else load_profile(settings.profile)
        if profile is not None and profile.marker:
            logger.warning("step times start from profile %s; this engine's own steps correct them", profile.title)
        self.step_clock = StepClock(profile)
        """Clock of this engine's steps: how long they take, and when the steps in flight will end."""
        self._figures_again_s = 0.0
        self.slo_planning_s = self._plan_s = 0.0
        """What planning for the last step costs in virtual time."""
        maker = PolicyMaker(settings, self.scheduler_config, planning_costs)
        self._shares = TenantShares.of(settings)
        tenants = TenantTable() if self._shares is None else self._shares.tenants
        self._tenant_rows = TenantRows.of(settings)
        self._stats = EngineStats(
            settings.classes, self.slo_counters, tenants, self._tenant_rows, self.step_clock.shares
        )
        self._contain = Containment(self.slo_counters, "sloserve failed to count; serving is not affected")
        self._observers = Observers(self._contain, self._clock)
        connector = swap_connector(self)
        if connector is not None:
            self._swapping = Swapping(
                self,
                connector,
                settings.swapping,
                counters=self.slo_counters,
                steps=self.step_clock,
                clock=self._clock,
                copied=self._stats.copied,
            )
            self._stats.swap_space(self._swapping.facts(), 0)
        alone = self._swapping is not None and self._swapping.alone
        self.slo_defers_prompts = False
        """Whether the step that is scheduled computes no prompt."""
        self._others_load = self.connector is not None and not alone
        """Whether a KV connector that is not ours may load KV for requests."""
        self.preempted_since_step = set()
        if self._others_load:
            hold_back_preempted(self)
        self._limits = StockLimits(self)
        unkept = plans_off.no_preemptions_reason(self)
        self._may_preempt = unkept is None
        unpaused = plans_off.no_pauses_reason(self)
        self._may_pause = unpaused is None
        self._unsafe = plans_off.identity_reason(self)
        self._plans_off: str | None = None
        """Reason why vLLM schedules by itself where a policy would plan."""
        self._cost_of = maker.cost_of
        self.policies = PoliciesInForce(
            maker,
            settings,
            self._make_planner,
            lambda: compat.live_requests(self),
            self._stats.slo_of,
            self._clock,
        )
        self._contain_planning = Containment(
            self.slo_counters, "sloserve failed; vLLM schedules by itself for a while", self.policies.drop
        )
        if self.vllm_config.observability_config.otlp_traces_endpoint is not None:
            self.trace()
        self._counts = True
        if self.planner is not None and unpaused is not None:
            logger.warning("sloserve pauses no request: %s", unpaused)
        if self.planner is not None and unkept is not None:
            logger.warning("no plan of sloserve preempts a request: %s", unkept)

    def _make_planner(self, policy: Policy, shadow: Shadow | None, text: str) -> Planner | None:
        """Return a planner for a policy; ``None`` if vLLM schedules by itself.

        Raises: ConfigError for a shadow policy that cannot plan here.
        """
        flat = None if self._unsafe else plans_off.other_than_full_attention(self)
        if flat is not None and shadow is not None and shadow.policy.full_attention_only:
            raise ConfigError(f"the shadow policy cannot plan with {flat}; choose another, or none")
        self._plans_off = None
        if not policy.reads and shadow is None and self._shares is None:
            return None
        self._plans_off = self._unsafe or (flat if policy.full_attention_only else None)
        if self._plans_off is not None:
            logger.warning("sloserve leaves scheduling to vLLM: plans are not yet shown safe with %s", self._plans_off)
            return None
        return Planner(
            VllmPort(self, self.step_clock, self._clock, self._swapping),
            policy,
            shadow,
            self._settings,
            self.slo_counters,
            self._planned,
            may_pause=self._may_pause,
            may_preempt=self._may_preempt,
            cost=self._cost_of(text),
            shares=self._shares,
        )

    def _planned(self, cost_s: float) -> None:
        self._plan_s = cost_s
        self._stats.planned(cost_s)
        if self.plan_costs_s is not None:
            self.plan_costs_s.append(cost_s)

    # The policies that are at work can be changed.

    def set_policies(
        self, policy: str | None = None, shadow_policy: str | None = None, *, allow_files: bool = True
    ) -> None:
        """Change the policy, the shadow policy or both between two steps; requests stay where they are.

        Args:
            policy: Policy to follow, as for ``--policy``; ``None`` leaves it as it is.
            shadow_policy: Policy to score, likewise; an empty one turns shadow mode off. The scores of a new shadow
                policy begin at zero.
            allow_files: Whether an option may name a file.

        Raises: ConfigError, and both stay as they were.
        """
        self.policies.set(policy, shadow_policy, allow_files=allow_files)
        self._show_shadow()
        self._say_policies()
        self._observers.policy_changed(*self.policies.texts)

    @property
    def planner(self) -> Planner | None:
        """The planner; ``None`` while vLLM schedules by itself."""
        return self.policies.planner if self._counts else None

    @property
    def policy_change(self) -> PolicyChanged | None:
        """The last change of the policy at work, for people who ask who made it; ``None`` since the start."""
        return self.policies.change

    def note_change(self, change: PolicyChanged | None) -> None:
        """Record the last change of the policy at work."""
        self.policies.change = change
        self._say_policies()

    @property
    def tenant_shares(self) -> TenantShares | None:
        """Service of the tenants; ``None`` where tenants have no shares."""
        return self._shares

    def status(self) -> dict[str, Any]:
        """Return the state and the figures of the scheduler, in plain values."""
        self._stats.step_times(self.step_clock.latency.figures())
        policy, shadow_policy = self.policies.texts
        policies = {"policy": policy, "shadow_policy": shadow_policy, "plans_off": self._plans_off}
        change = None if self.policies.change is None else self.policies.change.plain()
        service_s = None if self._shares is None else self._shares.reported(self._clock.now_s())
        return policies | {"policy_change": change} | self._stats.status() | {"tenant_service_s": service_s}

    @property
    def policy_texts(self) -> tuple[str, str | None]:
        """Texts of the policy and of the shadow policy."""
        return self.policies.texts

    @property
    def settings(self) -> PluginSettings:
        """Settings that are in force."""
        return self._settings

    def set_settings(self, settings: PluginSettings) -> None:
        """Follow other settings between two steps; requests that are here keep what they came with.

        Raises: ConfigError for a change that needs a restart, and nothing has changed.
        """
        check_live(self._settings, settings)
        self._settings = settings
        self._stats.follow(settings.classes)
        if self.planner is not None:
            self.planner.follow(settings)
        self._observers.follow(settings.classes)
        if self._shares is not None and settings.tenant_shares is not None:
            self._shares.follow(settings.tenant_shares)

    def set_elsewhere(self, service_s: Mapping[str, float]) -> None:
        """Set what tenants had in the other engines of a fleet, in seconds by name; without shares do nothing."""
        if self._shares is not None:
            self._shares.set_elsewhere(service_s, self._clock.now_s())

    def publish(self, rank: int) -> None:
        """Publish the figures on a page that the API process can read; without one the engine serves all the same."""
        self._contain(None, self._publish, rank)

    def _publish(self, rank: int) -> None:
        try:
            names, rows = self._settings.classes.names, self._tenant_rows
            self._stats.publish_on(PageWriter(names, rank, tenant_rows=0 if rows is None else rows.size))
            self.show_on(LiveWriter(len(names), rank))
        except OSError as error:
            logger.warning("sloserve cannot publish the scheduler's figures, metrics will lack them: %s", error)
        if self._settings.record_mib:
            self._observers.recorded = start_recording(self, rank, self._clock, self._stats.recording)
        if self._observers.recorded is not None and self._settings.record == "plans":
            self.record_plans(self._observers.recorded.log_of_plans())
        self._say_policies()

    def show_on(self, page: LiveWriter) -> None:
        """Show this scheduler's requests on ``page``, for watchers."""
        port = self._shown_port()
        if port is None:
            page.close()
            return
        self._observers.watched = Watched(self, self._stats, port, self._settings.classes, page)

    def trace(self) -> Traced | None:
        """Add what happens to the traces of requests; return what adds it, ``None`` where blocks cannot be counted."""
        port = self._shown_port()
        self._observers.traced = None if port is None else Traced(self, self._stats, port)
        return self._observers.traced

    def _shown_port(self) -> VllmPort | None:
        """Return a port; ``None`` with a KV cache with blocks that cannot be counted, which was logged."""
        try:
            return VllmPort(self, self.step_clock, self._clock, self._swapping)
        except LookupError:
            return None

    def _say_policies(self) -> None:
        self._stats.say_policies(*self.policies.texts, self._plans_off, self.policies.change)

    def _show_shadow(self) -> None:
        shadow = self.policies.shadow
        self._stats.shadowed(None if shadow is None else shadow.figures)

    # What we do in vLLM's calls, see ContainedScheduler.

    def record(self, recorded: Recorded) -> None:
        """Record what this scheduler is asked and does from the next request on."""
        self._observers.recorded = recorded

    def record_plans(self, log: PlanLog) -> None:
        """Record all that policies are given, and their next plans."""
        self.policies.record(log)

    @property
    def recorded_number(self) -> Callable[[str], int | None] | None:
        """Function that returns the number of a request in the recording; ``None`` without a recording."""
        recorded = self._observers.recorded
        return None if recorded is None else recorded.number_of

    def _close_pages(self) -> None:
        self._observers.close()
        if self._counts:
            self._contain(None, self._stats.close)

    def _before_adding(self, request: Request) -> bool:
        """Move the request's time of arrival to our clock, also of a session's next input, which is not new."""
        if not self._counts:
            return False
        request.arrival_time = self._contain(request.arrival_time, self._clock.of_host, request.arrival_time)
        return request.request_id not in self.requests

    def _added(self, request: Request) -> None:
        if request.request_id not in self.requests:
            return
        stated: StatedSLO | None = self._contain(None, self._stats.enqueued, request, self._clock.host_ahead_s)
        if stated is not None:
            self._observers.arrived(request, stated)
        if self._swapping is not None:
            self._contain(None, self._swapping.arrived, request)
        if self.planner is not None and stated is not None:
            self.planner.arrived(request, stated, self._clock.now_s())

    def _before_preempting(self, request: Request) -> bool:
        if self._swapping is None or not self._contain(False, self._swapping.preempting, request):
            return False
        self._contain(None, self._stats.swapped, request.request_id)
        return True

    def _preempted(self, request: Request, is_swapped: bool) -> None:
        if self._counts:
            self._contain(None, self._stats.preempted, request)
        self._observers.preempted(request, is_swapped)
        if self.planner is not None:
            self.planner.preempted(request)

    def _ended(self, request: Request) -> None:
        if self._swapping is not None:
            stated = self._stats.slo_of.get(request.request_id)
            self._contain(None, self._swapping.ending, request, None if stated is None else stated.call)
        if self.planner is not None:
            self._contain_planning(None, self.planner.finished, request, self._clock.now_s())
        if self._counts:
            kv_share = self._contain(0.0, compat.kv_share, self, request)
            self._contain(None, self._stats.freed, request, self._clock.now_s(), kv_share)
        self._observers.ended(request)
        if self._swapping is not None:
            self._contain(None, self._swapping.ended, request)

    def _launched(self) -> None:
        if self._counts:
            self._contain(None, self.step_clock.launched, self._clock.monotonic_s())
        self._observers.report_step()

    def _before_output(self, model_runner_output: Any) -> None:
        self._observers.report_step()  # vLLM asks for a grammar only after this, where one rests on these very tokens
        if self._swapping is not None:
            self._swapping.before_output(model_runner_output)

    def _after_output(self, outputs: Any, scheduler_output: SchedulerOutput, model_runner_output: Any) -> None:
        if self._counts:
            self._contain(None, self._clock_output)
        self._observers.output(scheduler_output, model_runner_output)
        if self.planner is not None:
            self.planner.progressed(outputs, self._clock.now_s(), scheduler_output, model_runner_output)

    def _clock_output(self) -> None:
        monotonic_s = self._clock.monotonic_s()
        self.step_clock.output(monotonic_s)
        # No step follows the output of the last request, so this is the time to show that no tenant has one.
        if monotonic_s >= self._figures_again_s or (self._shares is not None and not self.requests):
            self._figures_again_s = monotonic_s + FIGURES_EVERY_S
            self._stats.step_times(self.step_clock.latency.figures())
            balances = None if self.planner is None else self.planner.balances(self._clock.now_s())
            if self._shares is not None and balances is not None:
                self._stats.set_tenants(self._shares, balances)

    def _reset_begins(self) -> None:
        if self._swapping is not None:
            self._swapping.reset_begins()

    def _reset_ends(self) -> None:
        if self._swapping is not None:
            self._swapping.reset_ends()

    def _pause_changed(self, pause_state: PauseState) -> None:
        if self._swapping is None:
            return
        if pause_state == PauseState.UNPAUSED:
            self._swapping.unpaused()
        else:
            self._swapping.loads.paused()

    def _growth_blocks(self) -> int:
        return 0 if self._swapping is None else self._swapping.loads.growth_blocks()

    # The same for one step: what is decided before it, narrowed for it, and noted after it.

    def _before_step(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Request]:
        self._round = None
        self.slo_paused, self.slo_planning_s, self._plan_s = [], 0.0, 0.0
        self._limits.restore()  # a restore that failed after the last step
        self._round = at = _Round(self._clock.now_s(), self._clock.monotonic_s(), self.slo_counters["swap_stores"])
        self.slo_defers_prompts = self._contain(False, compat.defers_prompts, self, *args, **kwargs)
        step = self._next_step(at.now_s, at.monotonic_s)
        if step is None:
            return []
        at.step, self.slo_planning_s = step, step.planning_s
        if step.preempt:
            self._observers.preempting(step.preempt, step.plan, self.planner, at.monotonic_s)
        return step.preempt

    def _narrow_step(self) -> None:
        """Apply the plan to vLLM's queues and limits, and leave room for requests with KV that is loaded."""
        self._contain_planning(None, self._apply_step)
        swapping = self._swapping
        if self._others_load:
            ours = () if swapping is None else swapping.loads.ids
            self._contain(None, let_in_loaded, self, ours, self._limits)
        if swapping is not None:
            self._contain(None, swapping.begin_step, self._limits)

    def _apply_step(self) -> None:
        at = self._round
        if at is None or at.step is None:
            return
        if at.step.preempt:
            if self._swapping is not None:
                self.slo_counters["swapped_evictions"] += self.slo_counters["swap_stores"] - at.swap_stores
            self.slo_counters["evictions"] += len(at.step.preempt)
        if self.planner is not None:  # still: each preemption is reported to it, which may have failed
            self.slo_paused = self.planner.apply_plan(at.step, self._limits, at.monotonic_s)

    def _after_step(self, output: SchedulerOutput) -> None:
        at, swapping = self._round, self._swapping
        if swapping is not None:
            self._contain(None, swapping.scheduled, output)
        if at is None:
            return  # no clock could be read, and the planner was dropped
        self._contain_planning(None, self._note_admissions, output, at.monotonic_s)
        self._contain(None, self._count_step, output, self.slo_paused, at.now_s)
        plan = Plan.IDENTITY if at.step is None else at.step.plan
        load: StepLoad = self._contain(_NO_LOAD, step_load, output)  # a step with an unreadable load has an output
        self._observers.stepped(
            output,
            load,
            plan,
            planner=self.planner,
            paused=self.slo_paused,
            now_s=at.now_s,
            monotonic_s=at.monotonic_s,
            plan_s=self._plan_s,
        )
        if not output.total_num_scheduled_tokens:
            self._observers.report_step()
        self._contain(None, self.step_clock.scheduled, load, at.monotonic_s)

    def _note_admissions(self, output: SchedulerOutput, monotonic_s: float) -> None:
        planner, swapping = self.planner, self._swapping
        if planner is None:
            return
        planner.admitted(output, monotonic_s)
        if swapping is not None and swapping.loads.begun:
            planner.loading(swapping.loads.begun, monotonic_s)
        if self._others_load:
            planner.loading(kv_loads.fetching(self), monotonic_s)

    def _next_step(self, now_s: float, monotonic_s: float) -> Step | None:
        if self.policies.begin_again(monotonic_s):
            self._show_shadow()
        planner = self.planner
        if planner is not None or self.connector is not None:
            self._contain(None, compat.requeue_skipped, self)
        if planner is None or not planner.table.slot_of or not compat.admits_new(self):
            return None
        return planner.next_step(now_s, monotonic_s)

    def _count_step(self, output: SchedulerOutput, paused: list[Request], now_s: float) -> None:
        self._stats.stepped(self, output, paused, now_s)
        if self._swapping is not None:
            self._stats.swap_space(self._swapping.facts(), self._swapping.peak_blocks)
        if self.policies.shadow is not None:
            self._show_shadow()

    # What sloserve's own calls to the engine tell us, see server/parking.py.

    def keep_kv(self, request: Request) -> None:
        """Keep the KV of a running request that is about to be aborted in the swap space, if there is room."""
        if self._swapping is not None:
            self._contain(False, self._swapping.keep, request)

    def park(self, keep_over_reset: bool) -> Parked:
        """Swap all running requests out and schedule nothing more, until vLLM ends the pause that this begins.

        Args:
            keep_over_reset: Whether the KV that is kept stays valid over the next reset of the KV cache.
        """
        self.set_pause_state(PauseState.PAUSED_ALL)
        if self._swapping is None:
            return Parked(len(self.running), 0)
        return self._contain(Parked(0, 0), self._swapping.park, keep_over_reset)

    @property
    def parked(self) -> bool:
        return self._swapping is not None and self._swapping.parked

    def weights_changed(self) -> None:
        """Discard KV that was computed until now, so that it does not come back."""
        if self._swapping is not None:
            self._contain(None, self._swapping.weights_changed)
