"""The loads of KV from the swap space: when one may begin, which run, and which are late or given up.

vLLM begins loads: it asks the connector about each request when its turn comes, in the order of the plan. A load holds
blocks, makes no progress, and cannot be preempted. So one begins only where

- a place to run will be there when it ends: requests that load count as running (:attr:`SwapLoads.promised`);
- its blocks leave room for what the running requests grow by until then (:meth:`SwapLoads.growth_blocks`). Where they
  do not, admission waits, as it does for a prompt that does not fit; where nothing runs, nothing grows, and the first
  that waits is loaded.
"""

import math
from collections.abc import Collection
from enum import Enum, auto
from typing import Any, Final

import numpy as np
from vllm.v1.request import Request

from sloserve.core.clock import Clock
from sloserve.engine.swap.control import SwapControl
from sloserve.vllm_plugin.engine import kv_loads
from sloserve.vllm_plugin.engine.abandoned_loads import AbandonedLoads
from sloserve.vllm_plugin.engine.apply import StockLimits
from sloserve.vllm_plugin.swap.connector import SwapConnector

LATE_S: Final = 5.0
"""Seconds by which a load may be later than the link's clock predicts."""

PAUSE_S: Final = 4.0
"""Seconds for which an engine that pauses waits for loads; the caller who paused it waits for its response."""

LONGEST_STEP_S: Final = 0.5
"""Seconds of a step that count at most for a load: a load is not late because the engine stood still."""


class _LoadResult(Enum):
    """What vLLM learns about a load that ended: nothing, what the worker found, or that it failed."""

    NOTHING = auto()
    AS_FOUND = auto()
    FAILED = auto()


class SwapLoads:
    """The loads of one engine.

    Args:
        scheduler: The scheduler.
        connector: The scheduler's connector.
        control: Estimates when a load ends, and what the running requests grow by until then.
        clock: Clock of the scheduler.
    """

    def __init__(self, scheduler: Any, connector: SwapConnector, control: SwapControl, clock: Clock) -> None:
        self._scheduler, self._connector, self._control, self._clock = scheduler, connector, control, clock
        self._requests: dict[str, Request] = {}  # from the start of the load until the request runs
        self._due_s: dict[str, float] = {}  # of loads that run: when each must have ended
        self._begun: list[Request] = []
        self._abandoned = AbandonedLoads(scheduler)
        self._stepping_s, self._stepped_s = 0.0, clock.monotonic_s()  # a clock that stands while no step is made
        self._pause_ends_s = math.inf
        self._limits: StockLimits | None = None

    @property
    def ids(self) -> Collection[str]:
        """Ids of the requests with KV that is being loaded, or has been."""
        return self._requests.keys()

    @property
    def begun(self) -> list[Request]:
        """Requests with loads that the last ``schedule()`` began."""
        return self._begun

    @property
    def promised(self) -> int:
        """Places that requests will take with KV that is being loaded, or has been."""
        return sum(self._in_flight())

    def are_copying(self) -> bool:
        """Return whether loads run that will soon end."""
        return bool(self._due_s)

    def waiting(self) -> list[Request]:
        """Return the requests with KV that is being loaded, or has been, and that do not run yet."""
        self._in_flight()
        return list(self._requests.values())

    def _in_flight(self) -> tuple[int, int]:
        """Return how many loads run, and how many are over with a request that vLLM admits next."""
        loading = loaded = 0
        for request_id, request in list(self._requests.items()):
            if kv_loads.is_loading(self._scheduler, request):
                loading += 1
            elif kv_loads.has_loaded(self._scheduler, request):
                loaded += 1
            else:
                del self._requests[request_id]
        return loading, loaded

    def begin_step(self, limits: StockLimits) -> None:
        """Begin the next ``schedule()``, within ``limits``."""
        self._begun, self._limits = [], limits
        now_s = self._clock.monotonic_s()
        self._stepping_s += min(now_s - self._stepped_s, LONGEST_STEP_S)
        self._stepped_s = now_s
        self._give_up_late()
        loading, loaded = self._in_flight()
        limits.keep_places(loading, loaded)

    def growth_blocks(self) -> int:
        """Return the blocks to keep free beside a load that begins now: what running requests grow by until it ends."""
        running = self._scheduler.running
        computed = np.array([request.num_computed_tokens for request in running], np.int64)
        return self._control.growth_blocks(computed, self._connector.asked_blocks)

    def begins(self, request: Request, num_blocks: int) -> None:
        """Record that vLLM begins a load of ``num_blocks`` blocks for ``request``."""
        self._abandoned.ended(request.request_id)  # no load of it runs, or its KV would not be offered
        self._requests[request.request_id] = request
        self._begun.append(request)
        if self._limits is not None:
            self._limits.take_place()
        self._control.loads(request.request_id, num_blocks)
        self._due_s[request.request_id] = self._stepping_s + self._control.facts().in_s + LATE_S

    def before_output(self, output: Any) -> None:
        """Correct workers' results before vLLM reads them: a load that was given up while it ran counts as failed.

        Args:
            output: A ``ModelRunnerOutput``.
        """
        ended = output.kv_connector_output
        for request_id in sorted(ended.finished_recving or ()) if ended is not None else ():
            self._due_s.pop(request_id, None)
            result = self._connector.contained(_LoadResult.FAILED, self._ended, request_id, ended)
            if result is _LoadResult.FAILED and not kv_loads.awaits_load(self._scheduler, request_id):
                result = _LoadResult.NOTHING
            if result is _LoadResult.NOTHING:
                ended.finished_recving.discard(request_id)
                ended.failed_recving.discard(request_id)
            elif result is _LoadResult.FAILED:
                ended.failed_recving = {*ended.failed_recving, request_id}

    def _ended(self, request_id: str, ended: Any) -> "_LoadResult":
        """Note that the load of a request ended; return what is reported of it to vLLM.

        Args:
            request_id: Id of the request.
            ended: A ``KVConnectorOutput``.
        """
        usable = self._connector.load_ended(request_id, failed=request_id in ended.failed_recving)
        if self._abandoned.ended(request_id):
            return _LoadResult.NOTHING
        return _LoadResult.FAILED if usable is False else _LoadResult.AS_FOUND

    def forget(self, request_id: str) -> None:
        """Forget a request with KV that was loaded and that it loses again."""
        self._requests.pop(request_id, None)

    # Loads that are given up.

    def _give_up_late(self) -> None:
        """Give up loads that some worker forgot.

        Such a load must neither hold its request for ever nor keep an engine from pausing.
        """
        for request_id, due_s in list(self._due_s.items()):
            if self._stepping_s > min(due_s, self._pause_ends_s):
                del self._due_s[request_id]
                self._connector.store.drop(request_id, "late")
                request = self._scheduler.requests.get(request_id)
                if request is not None and request_id not in self._abandoned:
                    self.give_up(request)

    def give_up_all(self) -> None:
        """Give up all loads: their requests wait again, in the order of the loads, or have ended."""
        for request in reversed(self.waiting()):  # each goes to the front
            self.give_up(request)
        self._requests.clear()
        for request_id in self._due_s:  # and loads of aborted requests, of which vLLM holds back the blocks
            request = self._scheduler.requests.get(request_id)
            if request is not None and request_id not in self._abandoned:
                self.give_up(request)

    def give_up(self, request: Request) -> None:
        """Let a request with KV that is being loaded, or has been, wait again as if just preempted; others stay."""
        if kv_loads.is_loading(self._scheduler, request) or request.is_finished():
            self._abandoned.add(request)
        elif kv_loads.has_loaded(self._scheduler, request):
            kv_loads.free(self._scheduler, kv_loads.take_back(self._scheduler, request))

    def count_free(self) -> None:
        """Make vLLM count as free the blocks that given-up loads still write to, for a reset of its KV cache."""
        self._abandoned.count_free()

    def count_taken(self) -> None:
        """Make vLLM count these blocks as taken again, after the reset."""
        self._abandoned.count_taken()

    # A pause of the engine.

    def paused(self) -> None:
        """Record that vLLM admits nothing new, and waits until the engine is idle: loads have :data:`PAUSE_S` left."""
        self._pause_ends_s = min(self._pause_ends_s, self._stepping_s + PAUSE_S)

    def unpaused(self) -> None:
        """Record that vLLM admits requests again."""
        self._pause_ends_s = math.inf
