"""What follows the requests of a scheduler beside serving them: a page for watchers, traces, a recording."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from vllm.v1.request import Request

from sloserve.core.clock import Clock
from sloserve.core.slo import ClassTable
from sloserve.core.stated import StatedSLO
from sloserve.engine.containment import Containment
from sloserve.engine.planner import Planner
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.scheduler.policy import Plan
from sloserve.vllm_plugin.engine.recorded import Recorded, accepted_drafts
from sloserve.vllm_plugin.engine.traced import Traced
from sloserve.vllm_plugin.engine.watched import Watched


class Observers:
    """Reports what happens to the page, the traces and the recording; no fault of one reaches the engine.

    Args:
        contain: Containment of calls that only count.
        clock: Clock of the scheduler; ``None`` while there is none, and no observer either.

    Attributes:
        watched: Page of the live requests; ``None`` without one.
        traced: Events for the traces of requests; ``None`` without tracing.
        recorded: Recording; ``None`` without one.
    """

    def __init__(self, contain: Containment, clock: Clock | None = None) -> None:
        self._contain, self._clock = contain, clock
        self.watched: Watched | None = None
        self.traced: Traced | None = None
        self.recorded: Recorded | None = None
        self._later: tuple[Callable[[], None], ...] = ()  # report the last scheduled step

    def _now_s(self) -> float:
        return 0.0 if self._clock is None else self._clock.now_s()

    def arrived(self, request: Request, stated: StatedSLO) -> None:
        """Report a request that arrived."""
        if self.recorded is not None:
            self._contain(None, self.recorded.arrived, request, stated)

    def preempting(self, victims: Sequence[Request], plan: Plan, planner: Planner | None, monotonic_s: float) -> None:
        """Report that a plan is about to preempt ``victims``."""
        if self.watched is not None:
            self._contain(None, self.watched.preempting, victims, plan, planner, monotonic_s)
        if self.traced is not None:
            self._contain(None, self.traced.preempting, victims, plan, planner)
        if self.recorded is not None:
            self._contain(None, self.recorded.preempting, victims)

    def preempted(self, request: Request, is_swapped: bool) -> None:
        """Report that a request was preempted, and whether the host keeps its KV."""
        if self.watched is not None and self._clock is not None:
            self._contain(None, self.watched.preempted, request, self._clock.monotonic_s())
        if self.traced is not None:
            self._contain(None, self.traced.preempted, request, is_swapped)
        if self.recorded is not None:
            self._contain(None, self.recorded.preempted, request, is_swapped, self._now_s())

    def ended(self, request: Request) -> None:
        """Report a request that ended, in whatever way."""
        if self.traced is not None:
            self._contain(None, self.traced.ended, request)
        if self.recorded is not None:
            self._contain(None, self.recorded.ended, request, self._now_s())

    def output(self, scheduler_output: Any, model_runner_output: Any) -> None:
        """Report the results of a step."""
        if self.recorded is not None:
            accepted = self._contain(0, accepted_drafts, scheduler_output, model_runner_output)
            self._contain(None, self.recorded.output, self._now_s(), accepted)

    def stepped(
        self,
        output: Any,
        load: StepLoad,
        plan: Plan,
        *,
        planner: Planner | None,
        paused: Sequence[Request],
        now_s: float,
        monotonic_s: float,
        plan_s: float,
    ) -> None:
        """Note a step that was scheduled, which is reported once the device has it: see :meth:`report_step`.

        Args:
            output: The ``SchedulerOutput`` of the step.
            load: What the step computes.
            plan: The plan that the step followed.
            planner: The planner of the plan, if there is one.
            paused: Requests that the plan passed over.
            now_s: Start of the step, in epoch seconds.
            monotonic_s: The same by the monotonic clock.
            plan_s: Cost of its plan in seconds.
        """
        if self.recorded is not None:
            self._later += (partial(self.recorded.stepped, output, load, paused, now_s, plan_s),)
        if self.traced is not None:
            self._later += (partial(self.traced.stepped, output, plan, planner, paused, now_s),)
        if self.watched is not None and self._contain(False, self.watched.is_due, monotonic_s):
            self._later += (partial(self.watched.write, output, plan, planner, now_s, monotonic_s),)

    def report_step(self) -> None:
        """Report the step that was noted last, once."""
        later, self._later = self._later, ()
        for report in later:
            self._contain(None, report)

    def policy_changed(self, policy: str, shadow_policy: str | None) -> None:
        """Report a change of the policies at work."""
        if self.recorded is not None:
            self._contain(None, self.recorded.policy_changed, policy, shadow_policy, self._now_s())

    def follow(self, classes: ClassTable) -> None:
        """Follow changed classes."""
        if self.watched is not None:
            self.watched.follow(classes)

    def close(self) -> None:
        """End the recording and the page."""
        if self.recorded is not None:
            self._contain(None, self.recorded.close)
        if self.watched is not None:
            self._contain(None, self.watched.close)
        self.recorded, self.watched, self._later = None, None, ()
