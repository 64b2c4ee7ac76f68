"""The loop of an engine in virtual time, for vLLM's own scheduler and for the model of it. Imports no vLLM.

The loop is that of vLLM's EngineCore with a batch queue of two: step n+1 is scheduled right after step n was
dispatched, then n's result is applied, then n+2 is scheduled; the worker runs batches one after another. What arrives
while n runs joins n+2. Planning takes the time of EngineCore's one thread: a step is dispatched when it is planned and
the step before it is done, whichever is later.
"""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from sloserve.core.clock import ManualClock
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, StepLog
from sloserve.engine.stages import Stages
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.noise import StepNoise
from sloserve.estimator.step_time.profile import Profile
from sloserve.vllm_plugin.virtual.engine_settings import EngineSettings
from sloserve.vllm_plugin.virtual.front_end import VirtualFrontEnd

_BATCH_QUEUE = 2
_MAX_EMPTY_STEPS = 1000
"""Steps in a row that schedule nothing although requests wait, after which the run is given up and the requests count
as lost.
"""


class Dispatched(Protocol):
    """A step on its way. num_tokens: that it computes. planning_s: that planning for it took of the engine's time."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def end_s(self) -> float: ...
    @property
    def planning_s(self) -> float: ...


class EventLoop(ABC):
    """One engine in virtual time, but for its scheduler. noise: of step times; ``None`` for none."""

    def __init__(
        self, settings: EngineSettings, profile: Profile, front_end: VirtualFrontEnd, noise: StepNoise | None
    ) -> None:
        self._settings = settings
        self._profile = profile
        self._front_end = front_end
        self._noise = noise
        self._clock = ManualClock()
        self._arriving: deque[WorkloadRequest] = deque()
        self._accepted: list[WorkloadRequest] = []
        self._stages = Stages()
        self._done: dict[str, RequestLog] = {}
        self._num_ended = 0
        self._steps: list[tuple[float, float, int, int, int, float]] = []
        self._schedule_s: list[float] = []
        self._counters: Counter[str] = Counter()

    @abstractmethod
    def _has_requests(self) -> bool:
        """Whether there is anything to schedule."""

    @abstractmethod
    def _add(self, items: Sequence[WorkloadRequest], epoch_s: float) -> None:
        """Requests that the front end took in go to the engine."""

    @abstractmethod
    def _dispatch(self, now_s: float, worker_free_s: float) -> Any:
        """The :class:`Dispatched` step scheduled at ``now_s``; planning comes first, and meanwhile the worker is at the
        step before.
        """

    @abstractmethod
    def _apply(self, batch: Any, now_s: float) -> None:
        """The output of a step that :meth:`_dispatch` gave is there."""

    def _loop(self, on_progress: Callable[[int], None] | None) -> None:
        epoch_s = self._clock.now_s()
        now_s, worker_free_s, empty = 0.0, 0.0, 0
        batches: deque[Dispatched] = deque()
        while True:
            self._arrive(now_s, epoch_s)
            if self._accepted:
                self._add(self._accepted, epoch_s)
                self._accepted = []
            if not self._has_requests() and not batches:
                if not self._arriving:
                    return
                now_s = self._arriving[0].arrival_s
                self._clock.advance_to(epoch_s + now_s)
                continue
            if self._has_requests():
                batch = self._dispatch(now_s, worker_free_s)
                if batch.planning_s:
                    now_s += batch.planning_s
                    self._clock.advance_to(epoch_s + now_s)
                executed = batch.num_tokens > 0
                worker_free_s = batch.end_s
                batches.append(batch)
                if len(batches) < _BATCH_QUEUE and (executed or self._has_requests()) and empty < _BATCH_QUEUE:
                    empty = 0 if executed else empty + 1
                    continue
                empty = 0 if executed else empty + 1
            batch = batches.popleft()
            now_s = max(now_s, batch.end_s)
            self._clock.advance_to(epoch_s + now_s)
            # The front end works while the engine does: it decides before it sees this batch's tokens.
            self._arrive(now_s, epoch_s)
            self._apply(batch, now_s)
            if on_progress is not None and len(self._steps) % 256 == 0:
                on_progress(self._num_ended)
            if empty and (not batches or empty > 2 * _BATCH_QUEUE):
                # Nothing in flight, or nothing but empty steps, and nothing could be scheduled: only an arrival, or a
                # plan that changes its mind, helps.
                if self._accepted:
                    empty = 0
                elif self._arriving:
                    empty = 0
                    now_s = max(now_s, self._arriving[0].arrival_s)
                elif empty > _MAX_EMPTY_STEPS:
                    return
                else:
                    now_s += self._profile.engine_overhead_ms / 1e3
                worker_free_s = max(worker_free_s, now_s)
                self._clock.advance_to(epoch_s + now_s)

    def _arrive(self, until_s: float, epoch_s: float) -> None:
        """The front end takes in or refuses what has come until then, each when it came."""
        while self._arriving and self._arriving[0].arrival_s <= until_s:
            item = self._arriving.popleft()
            if self._front_end.takes(item, epoch_s + item.arrival_s):
                self._accepted.append(item)
            else:
                predicted = self._front_end.predicted(item.request_id)
                log = RequestLog(item, Outcome.REJECTED, np.empty(0), predicted=predicted)
                self._done[item.request_id] = log
                self._num_ended += 1

    def _step_log(self) -> StepLog:
        end_s, duration_s, tokens, running, waiting, used = zip(*self._steps, strict=True) if self._steps else [()] * 6
        return StepLog(
            end_s=np.array(end_s, np.float64),
            duration_s=np.array(duration_s, np.float64),
            scheduled_tokens=np.array(tokens, np.int64),
            running=np.array(running, np.int64),
            waiting=np.array(waiting, np.int64),
            kv_utilization=np.array(used, np.float64),
        )

    def _duration_s(self, load: StepLoad) -> float:
        """How long the step lasts that is dispatched next."""
        duration_s = self._profile.step_s(load)
        if not self._profile.within_grid(load):
            self._counters["extrapolated_steps"] += 1
        return duration_s if self._noise is None else duration_s * self._noise.factor(len(self._steps))

    def _timing(self, wall_s: float, plan_costs_s: Sequence[float]) -> dict[str, float]:
        costs_s = plan_costs_s or [0.0]
        schedule_s = self._schedule_s or [0.0]
        return {
            "plan_us_mean": float(np.mean(costs_s)) * 1e6,
            "plan_us_p99": float(np.percentile(costs_s, 99)) * 1e6,
            "vllm_schedule_us_mean": (sum(schedule_s) - sum(costs_s)) / len(schedule_s) * 1e6,
            "wall_s": wall_s,
        }
