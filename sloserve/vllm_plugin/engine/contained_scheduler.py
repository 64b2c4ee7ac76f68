"""vLLM's scheduler with calls of ours before and after its own methods; none of our exceptions reaches vLLM's loop.

The engine of vLLM is stopped by any exception in its loop. So only this module defines the methods that vLLM calls, and
each consists of one call of vLLM's own and of calls through a :class:`~sloserve.engine.containment.Containment`: vLLM's
method runs whatever of ours raises, and what vLLM raises passes. A class derived from this one overrides the hooks, and
no method that vLLM calls.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from sloserve.engine.containment import Containment
from sloserve.vllm_plugin.engine.apply import StockLimits, preempt


class ContainedScheduler(Scheduler):
    """vLLM's scheduler with methods that call the hooks below.

    The constructor of a derived class sets the attributes before it sets ``_counts``, from which on steps have hooks:
    vLLM's own tests build schedulers without calling a constructor.
    """

    _counts = False
    _contain = _contain_planning = Containment(Counter(), "sloserve failed; vLLM schedules by itself")
    """Make a call and contain its exceptions: ``_contain(default, function, *arguments)``.

    ``_contain`` is for calls without which serving goes on as it is, ``_contain_planning`` for calls that the planner's
    rows follow: after an exception in one of these, planning has to begin again.
    """
    _limits: StockLimits
    preempted_since_step: set[str]
    """Ids of the requests that were preempted since the last step was scheduled, by a plan or by vLLM's reset."""

    # What vLLM calls.

    def shutdown(self) -> None:
        self._contain(None, self._close_pages)
        super().shutdown()

    def add_request(self, request: Request) -> None:
        is_new = self._contain(False, self._before_adding, request)
        super().add_request(request)
        if is_new:
            self._contain_planning(None, self._added, request)

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if self._counts:
            self.preempted_since_step.add(request.request_id)
        is_swapped = self._contain(False, self._before_preempting, request)
        super()._preempt_request(request, *args, **kwargs)
        self._contain_planning(None, self._preempted, request, is_swapped)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._contain_planning(None, self._ended, request)
        return super()._free_request(request, *args, **kwargs)

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> Any:
        # vLLM asks once the device has its step, so reports to watchers and traces are made meanwhile.
        self._contain(None, self._launched)
        return super().get_grammar_bitmask(scheduler_output)

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        self._contain(None, self._before_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._contain_planning(None, self._after_output, outputs, scheduler_output, model_runner_output)
        return outputs

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        self._contain(None, self._reset_begins)
        try:
            return bool(super().reset_prefix_cache(*args, **kwargs))
        finally:
            self._contain(None, self._reset_ends)

    def set_pause_state(self, pause_state: PauseState) -> None:
        super().set_pause_state(pause_state)
        self._contain(None, self._pause_changed, pause_state)

    def _inflight_prefill_reserved_blocks(self) -> int:
        """Return the blocks that vLLM leaves free when it begins to load KV for a request."""
        return int(super()._inflight_prefill_reserved_blocks()) + self._contain(0, self._growth_blocks)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        if not self._counts:
            return super().schedule(*args, **kwargs)
        victims: list[Request] = self._contain_planning([], self._before_step, args, kwargs)
        if victims:
            preempt(self, victims)
        self._contain_planning(None, self._narrow_step)
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            self.preempted_since_step.clear()
            self._contain(None, self._limits.restore)
        self._contain_planning(None, self._after_step, output)
        return output

    # Derived classes implement these calls. Exceptions that escape a hook behind vLLM's own method are counted as
    # exceptions in planning, since its rows may have missed something.

    def _close_pages(self) -> None:
        """Close the pages that other processes read, before the engine shuts down."""

    def _before_adding(self, request: Request) -> bool:
        """Prepare a request that vLLM is about to add. Return whether it is new to vLLM."""
        return False

    def _added(self, request: Request) -> None:
        """Note a new request that vLLM has taken in."""

    def _before_preempting(self, request: Request) -> bool:
        """Have the KV of a request that vLLM is about to preempt stored, where that pays. Return whether it is."""
        return False

    def _preempted(self, request: Request, is_swapped: bool) -> None:
        """Record that a request was preempted.

        Args:
            request: The request.
            is_swapped: Whether its KV is stored.
        """

    def _ended(self, request: Request) -> None:
        """Note that a request ends, in whatever way, before vLLM frees it."""

    def _launched(self) -> None:
        """Note that the device has its step."""

    def _before_output(self, model_runner_output: Any) -> None:
        """Read the results of a step, a ``ModelRunnerOutput``, before vLLM does."""

    def _after_output(self, outputs: Any, scheduler_output: SchedulerOutput, model_runner_output: Any) -> None:
        """Note what vLLM has made of the results of a step."""

    def _reset_begins(self) -> None:
        """Prepare for a reset of vLLM's KV cache."""

    def _reset_ends(self) -> None:
        """Note that the reset of vLLM's KV cache is over, whether it succeeded or not."""

    def _pause_changed(self, pause_state: PauseState) -> None:
        """Note that vLLM pauses, or goes on."""

    def _growth_blocks(self) -> int:
        """Return the blocks to leave free, beside vLLM's own reserve, when a load of KV begins."""
        return 0

    def _before_step(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Request]:
        """Decide what the next step does. Return the running requests to preempt before it.

        Args:
            args: Positional arguments of vLLM's ``schedule()``.
            kwargs: Keyword arguments of vLLM's ``schedule()``.
        """
        return []

    def _narrow_step(self) -> None:
        """Order vLLM's queues and narrow its limits for the step, in ``_limits``; they hold again after it."""

    def _after_step(self, output: SchedulerOutput) -> None:
        """Note what vLLM has scheduled."""
