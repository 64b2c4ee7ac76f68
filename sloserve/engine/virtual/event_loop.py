"""The loop of an engine in virtual time, for vLLM's own scheduler and for the model of it. It imports no vLLM.

It is a stepper: ``give`` requests, ask ``at`` for the time of its next event, ``advance`` by one event. A whole run
does so for one engine with every request given at first; several engines share a virtual time by the least ``at``.

The loop follows vLLM's EngineCore with a batch queue of two: step n+1 is scheduled right after step n was dispatched,
then n's result is applied, then n+2 is scheduled; the worker runs batches one after another. Requests that arrive while
n runs join n+2. Without asynchronous scheduling n+1 is scheduled once n's result is applied. Planning takes the time of
EngineCore's one thread: a step is dispatched when it is planned and the step before it is done, whichever is later.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sloserve.core.clock import ManualClock
from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RequestLog, RunLog, StepLog
from sloserve.engine.stages import Stages
from sloserve.engine.swap.store import SwapStore
from sloserve.engine.tenant_shares import TenantShares
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.engine.virtual.virtual_front_end import VirtualFrontEnd
from sloserve.engine.virtual.virtual_swap_worker import Store, Told, VirtualSwapWorker
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.noise import StepFactors
from sloserve.estimator.step_time.profile import Profile

_BATCH_QUEUE = 2
_MAX_EMPTY_STEPS = 1000
"""Steps in a row that schedule nothing although requests wait, after which the run is given up and the requests count
as lost.
"""
_SMALLEST_STEP = StepLoad(decode_seqs=1, decode_context_tokens=1)


class Dispatched(Protocol):
    """A step on its way.

    ``num_tokens`` are the tokens that it computes, ``planning_s`` the seconds that planning for it took of the engine's
    time, ``told`` the copies between device and host that it finds ended.
    """

    @property
    def num_tokens(self) -> int: ...
    @property
    def end_s(self) -> float: ...
    @property
    def planning_s(self) -> float: ...
    @property
    def told(self) -> Told: ...


class EventLoop(ABC):
    """One engine in virtual time, except for its scheduler.

    Args:
        noise: Noise of step times; ``None`` for none.
    """

    scheduler: Any

    def __init__(
        self, settings: EngineSettings, profile: Profile, front_end: VirtualFrontEnd, noise: StepFactors | None
    ) -> None:
        self._settings = settings
        self._profile = profile
        self._front_end = front_end
        self._noise = noise
        self._round_s = 0.0
        if settings.drafts is not None:
            self._round_s = settings.drafts.round_share * profile.step_s(_SMALLEST_STEP)
        self._clock = ManualClock()
        self._epoch_s = self._clock.now_s()
        self._now_s = 0.0
        self.at = math.inf
        """Time of its next event, in seconds from its start; infinite while it is idle."""
        self._awaits_output = False  # what that event is: the output of a step, or else the scheduling of the next
        self._awaits_arrival = False  # whether nothing but an arrival or a copy's end can make it happen earlier
        self._batches: deque[Dispatched] = deque()
        self._most_batches = _BATCH_QUEUE if settings.async_scheduling else 1
        self._worker_free_s = 0.0
        self._empty = 0  # steps in a row that scheduled nothing
        self._arriving: deque[tuple[float, WorkloadRequest]] = deque()  # and when each reaches the front end
        self._accepted: list[WorkloadRequest] = []
        self._stages = Stages()
        self._done: dict[str, RequestLog] = {}
        self._num_ended = 0
        self._steps: list[tuple[float, float, int, int, int, float]] = []
        self._schedule_s: list[float] = []
        self._counters: Counter[str] = Counter()
        self._swap_worker: VirtualSwapWorker | None = None

    @abstractmethod
    def _has_requests(self) -> bool:
        """Return whether there is anything to schedule."""

    @abstractmethod
    def _add(self, items: Sequence[WorkloadRequest], epoch_s: float) -> None:
        """Pass requests that the front end took in to the engine."""

    @abstractmethod
    def _dispatch(self, now_s: float, worker_free_s: float) -> Any:
        """Return the :class:`Dispatched` step scheduled at ``now_s``.

        Planning comes first, and meanwhile the worker is at the step before.
        """

    @abstractmethod
    def output_tokens(self, request_id: str) -> int:
        """Return how many tokens of its output have left the engine, of a request that has not ended."""

    @property
    @abstractmethod
    def _kept(self) -> SwapStore | None:
        """What is kept in the swap space, if there is one."""

    @abstractmethod
    def _keep(self, request_id: str) -> Sequence[Store]:
        """Prepare to park a request.

        Returns: the host blocks of each copy that has to be made now.
        """

    @abstractmethod
    def _abort(self, request_id: str) -> None:
        """Take a request from the scheduler, if it is there."""

    @abstractmethod
    def _apply(self, batch: Any, now_s: float) -> None:
        """Apply the output of a step that :meth:`_dispatch` gave."""

    @abstractmethod
    def log(self, requests: Sequence[WorkloadRequest], wall_s: float = 0.0) -> RunLog:
        """Return the log of ``requests``, which were given, at the end of a run of ``wall_s`` seconds of real time.

        Requests that have not ended are lost.
        """

    @property
    def tenant_shares(self) -> TenantShares | None:
        """Service of the tenants; ``None`` where they have no shares."""
        return getattr(self.scheduler, "tenant_shares", None)

    def service_s(self, now_s: float) -> dict[str, float]:
        """Return the recent service of the tenants by name, as the engine reports it at ``now_s``."""
        shares = self.tenant_shares
        return {} if shares is None else shares.reported(self._epoch_s + now_s)

    def set_elsewhere(self, service_s: Mapping[str, float], now_s: float) -> None:
        """Set what tenants have had in the other engines of a fleet, in seconds by name, at ``now_s``."""
        if self.tenant_shares is not None:
            self.tenant_shares.set_elsewhere(service_s, self._epoch_s + now_s)

    # The loop, an event at a time.

    def give(self, *requests: WorkloadRequest, now_s: float | None = None) -> None:
        """Give requests to the front end; they reach it when they arrive, and not before ``now_s``.

        The engine has come to ``now_s``. KV that is kept under the id of a request is loaded before it runs. Requests
        that arrive later than :attr:`at` may be given already, in any order; requests that arrive at the same time
        reach the front end in the order in which they were given. Requests up to :attr:`at` have to be given: an event
        sees what was there when it happened.
        """
        for request in requests:
            reached_s = request.arrival_s if now_s is None else max(request.arrival_s, now_s)
            place = len(self._arriving)
            while place and self._arriving[place - 1][0] > reached_s:
                place -= 1
            self._arriving.insert(place, (reached_s, request))
        if self.at == math.inf or self._awaits_arrival:
            self._plan_at(self._wakes_at, awaits_arrival=True)

    def abort(self, request_id: str, now_s: float) -> None:
        """Abort a request because its client left at ``now_s``. Output in flight is dropped.

        The engine has come to ``now_s``.

        Nothing happens if the request has ended or was never given.
        """
        self._reach(max(now_s, self._now_s))
        arriving = [item for _, item in self._arriving if item.request_id == request_id]
        self._arriving = deque(pair for pair in self._arriving if pair[1].request_id != request_id)
        accepted = [item for item in self._accepted if item.request_id == request_id]
        self._accepted = [item for item in self._accepted if item.request_id != request_id]
        for _ in accepted:
            self._front_end.ended(request_id, None, 0, self._clock.now_s())
        for item in arriving + accepted:
            self._ended_outside(item, Outcome.ABORTED)
        if not (arriving or accepted):
            self._abort(request_id)

    def park(self, request_id: str, kept_as: str, now_s: float) -> float:
        """Take a request out as :meth:`abort` does, but keep its KV under the id ``kept_as``, if swap space has room.

        Returns: when the copies to the host have ended.
        """
        store = self._kept
        if store is None or self._swap_worker is None:
            self.abort(request_id, now_s)
            return now_s
        self._reach(max(now_s, self._now_s))
        copied_s = self._swap_worker.store(self._keep(request_id), now_s)
        store.hand_over(request_id, kept_as)
        self.abort(request_id, now_s)
        return max(copied_s, now_s)

    def kept_tokens(self, request_id: str) -> int:
        """Return the tokens with KV that is kept under this id."""
        return 0 if self._kept is None else self._kept.tokens_of(request_id)

    def unpark(self, kept_as: str, request_id: str) -> None:
        """Hand the KV that is kept under ``kept_as`` to the request which is given next under ``request_id``."""
        if self._kept is not None:
            self._kept.hand_over(kept_as, request_id)

    def forget(self, kept_as: str) -> None:
        """Give up the KV that is kept under this id."""
        if self._kept is not None:
            self._kept.drop(kept_as, "served_elsewhere")

    @property
    @abstractmethod
    def kv_used(self) -> float:
        """Share of the KV blocks in use, 0..1."""

    def notify_ended(self, ended: Callable[[str, Outcome], object]) -> None:
        """Call ``ended`` with a request's id and its outcome whenever one is over.

        Lost requests are never over: see :data:`~sloserve.core.outcome.Outcome.LOST`.
        """
        self._front_end.on_ended = ended

    def notify_started(self, started: Callable[[str], object]) -> None:
        """Call ``started`` with a request's id whenever its first token leaves."""
        self._front_end.on_started = started

    @property
    def _wakes_at(self) -> float:
        """Time of the next event, other than the end of a step, with which an idle engine can go on."""
        at = self._arriving[0][0] if self._arriving else math.inf
        if self._swap_worker is not None:
            at = min(at, self._swap_worker.next_s)
        return max(self._now_s, at)

    def advance(self) -> None:
        """Process the next event, at time :attr:`at`; do nothing without one."""
        if self.at == math.inf:
            return
        self._reach(self.at)
        if not self._awaits_output or self._take_output():
            self._plan_steps()

    def _reach(self, now_s: float) -> None:
        self._now_s = now_s
        self._clock.advance_to(self._epoch_s + now_s)

    def _plan_at(self, at: float, *, awaits_arrival: bool = False) -> None:
        self.at, self._awaits_output, self._awaits_arrival = at, False, awaits_arrival

    def _take_output(self) -> bool:
        """End the oldest step in flight; return whether the next is scheduled in the same instant."""
        batch = self._batches.popleft()
        # The front end works while the engine does: it decides before it sees this batch's tokens.
        self._arrive()
        self._apply(batch, self._now_s)
        if batch.told.loaded:
            self._empty = 0
        empty = self._empty
        if not empty or (self._batches and empty <= 2 * _BATCH_QUEUE):
            return True
        # Nothing in flight, or nothing but empty steps, and nothing could be scheduled: only an arrival, or a plan that
        # changes its mind, helps.
        again_s = self._now_s
        if self._accepted:
            self._empty = 0
        elif self._wakes_at != math.inf:
            self._empty = 0
            self._plan_at(self._wakes_at, awaits_arrival=True)
            return False
        elif empty > _MAX_EMPTY_STEPS:
            self.at = math.inf
            return False
        else:
            again_s += self._profile.engine_overhead_ms / 1e3
        self._worker_free_s = max(self._worker_free_s, again_s)
        self._plan_at(again_s)
        return False

    def _plan_steps(self) -> None:
        """Schedule as many steps as may be in flight, one a call where planning takes time."""
        while True:
            self._arrive()
            if self._accepted:
                self._add(self._accepted, self._epoch_s)
                self._accepted = []
            has_requests = self._has_requests()
            if not has_requests and not self._batches:
                self._plan_at(self._wakes_at, awaits_arrival=True)
                return
            planned_s = self._now_s
            if has_requests:
                batch = self._dispatch(planned_s, self._worker_free_s)
                planned_s += batch.planning_s
                executed = batch.num_tokens > 0
                self._worker_free_s = batch.end_s
                self._batches.append(batch)
                empty, self._empty = self._empty, 0 if executed else self._empty + 1
                if (
                    len(self._batches) < self._most_batches
                    and (executed or self._has_requests())
                    and empty < _BATCH_QUEUE
                ):
                    if batch.planning_s:
                        self._plan_at(planned_s)
                        return
                    continue
            self.at = max(planned_s, self._batches[0].end_s)
            self._awaits_output, self._awaits_arrival = True, False
            return

    def _serve(self, workload: Sequence[WorkloadRequest], on_progress: Callable[[int], None] | None) -> None:
        """Process every event of a whole run."""
        self.give(*workload)
        advance = self.advance
        while self.at != math.inf:
            advance()
            if on_progress is not None and len(self._steps) % 256 == 0:
                on_progress(self._num_ended)

    def _arrive(self) -> None:
        """Take in or refuse what has reached the front end by now, each request when it came."""
        while self._arriving and self._arriving[0][0] <= self._now_s:
            reached_s, item = self._arriving.popleft()
            if self._front_end.takes(item, self._epoch_s + reached_s):
                self._accepted.append(item)
            else:
                self._ended_outside(item, Outcome.REJECTED)

    def _ended_outside(self, item: WorkloadRequest, outcome: Outcome) -> None:
        """End a request that never came to the scheduler."""
        predicted = self._front_end.predicted(item.request_id)
        self._done[item.request_id] = RequestLog(item, outcome, np.empty(0), predicted=predicted)
        self._front_end.notify(item.request_id, outcome)
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

    def _duration_s(self, load: StepLoad, rounds: int = 0) -> float:
        """Return how long the next step lasts, in seconds.

        Args:
            load: What the step computes.
            rounds: Rounds of drafting: the most draft tokens that one of its requests has.
        """
        duration_s = self._profile.step_s(load)
        if rounds:
            duration_s += rounds * self._round_s
        if not self._profile.within_grid(load):
            self._counters["extrapolated_steps"] += 1
        return duration_s if self._noise is None else duration_s * self._noise.factor(len(self._steps), self._now_s)

    def _swap_counters(self) -> dict[str, int]:
        """Return the bytes that were sent over the link and the most that the pool kept; empty without swap space."""
        worker, store = self._swap_worker, self._kept
        if worker is None or store is None:
            return {}
        peak_bytes = store.peak_blocks * worker.block_bytes
        return {"swap_bytes_out": worker.bytes_out, "swap_bytes_in": worker.bytes_in, "swap_peak_bytes": peak_bytes}

    def _num_swaps(self, request_id: str) -> int:
        return 0 if self._swap_worker is None else self._swap_worker.loads[request_id]

    def _timing(self, wall_s: float, plan_costs_s: Sequence[float]) -> dict[str, float]:
        costs_s = plan_costs_s or [0.0]
        schedule_s = self._schedule_s or [0.0]
        return {
            "plan_us_mean": float(np.mean(costs_s)) * 1e6,
            "plan_us_p99": float(np.percentile(costs_s, 99)) * 1e6,
            "vllm_schedule_us_mean": (sum(schedule_s) - sum(costs_s)) / len(schedule_s) * 1e6,
            "wall_s": wall_s,
        }

    def _tenant_service_s(self) -> dict[str, float] | None:
        """Return the service of each tenant since the start; ``None`` without shares, or without a charge."""
        shares = self.tenant_shares
        if shares is None or not shares.total_s.any():
            return None
        return dict(zip(shares.tenants.names, shares.total_s.tolist(), strict=False))
