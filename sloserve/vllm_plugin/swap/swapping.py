"""What ``SLOScheduler`` does beside its :class:`SwapConnector`: whose KV is stored, and when a load may begin.

Loads are vLLM's to begin: it asks the connector about each request whose turn it is, in the order of the plan. A load
holds blocks, makes no progress, and cannot be preempted. So one begins only where

- a place to run will be there when it ends: requests that load count as running (:attr:`Swapping.promised`);
- its blocks leave room for what the running requests grow by until then (:meth:`Swapping.growth_blocks`). Where they
  do not, admission waits, as it does for a prompt that does not fit; where nothing runs, nothing grows, and the
  first that waits is loaded.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from vllm.v1.request import Request

from sloserve.core.clock import Clock
from sloserve.engine.link_clock import LinkClock
from sloserve.engine.step_clock import StepClock
from sloserve.engine.swap_control import LINK_BYTES_PER_S, SwapControl
from sloserve.engine.swap_rule import SwapRule
from sloserve.lso.blocks import blocks_of
from sloserve.lso.plan import SwapFacts
from sloserve.vllm_plugin.engine import compat
from sloserve.vllm_plugin.engine.apply import Limits
from sloserve.vllm_plugin.swap.connector import SwapConnector
from sloserve.vllm_plugin.swap.messages import SwapReport
from sloserve.vllm_plugin.swap.refusals import check_place


class Swapping:
    """The scheduler's part in swapping. Times are seconds of the scheduler's monotonic clock."""

    def __init__(
        self,
        scheduler: Any,
        connector: SwapConnector,
        swapping: Literal["cost", "always"],
        counters: Counter[str],
        steps: StepClock,
        clock: Clock,
        copied: Callable[[str, int, float], object],
    ) -> None:
        """swapping: the setting. counters: the scheduler's, to which the pool's are added. copied: told of copies that
        ended, by direction (``out``, ``in``): bytes and seconds.
        """
        self._scheduler, self._connector = scheduler, connector
        self._counters = connector.store.counters = counters
        self._steps, self._clock = steps, clock
        ranks = connector.size.ranks
        link, block_bytes = LinkClock(LINK_BYTES_PER_S * ranks), connector.size.block_bytes * ranks
        self._control = SwapControl(connector.store, block_bytes, SwapRule(swapping), link, steps, clock)
        self._loads: dict[str, Request] = {}  # from the start of the load until the request runs
        self._begun: list[Request] = []
        self._closed = False
        self._copied = copied
        self._limits: Limits | None = None
        self.alone = len(compat.connectors(scheduler)) == 1
        connector.attach(self._load_begins, self._reported)
        compat.trust_loads(scheduler, self.alone)

    @classmethod
    def of(
        cls,
        scheduler: Any,
        swapping: Literal["cost", "always"],
        counters: Counter[str],
        steps: StepClock,
        clock: Clock,
        copied: Callable[[str, int, float], object],
    ) -> "Swapping | None":
        """``None`` where the scheduler has no SwapConnector. Raises: ConfigError where it stands in the wrong place."""
        ours = [one for one in compat.connectors(scheduler) if isinstance(one, SwapConnector)]
        if not ours:
            return None
        settings = compat.connector_settings(scheduler)
        if settings:
            check_place(settings)
        return cls(scheduler, ours[0], swapping, counters, steps, clock, copied)

    # Stores.

    def preempting(self, request: Request) -> bool:
        """vLLM is about to preempt ``request``, for a plan or of its own accord: keeps its KV, if it is worth it.

        Returns: whether it does.
        """
        self._loads.pop(request.request_id, None)
        tokens = request.num_computed_tokens
        worth_s, reason = self._worth_s(request, tokens), self._reason_against(request)
        if reason is None and worth_s is None:
            reason = "cost"
        if worth_s is None or reason is not None:
            self._counters[f"swap_refused_{reason}"] += 1
            return False
        blocks = compat.block_ids(self._scheduler, request)
        if not self._connector.update_state_before_preempt(request, blocks, tokens, worth_s):
            return False
        self._control.stores(blocks_of(tokens, self._scheduler.block_size))
        return True

    def _worth_s(self, request: Request, tokens: int) -> float | None:
        scheduler, now_s = self._scheduler, self._clock.monotonic_s()
        engine = compat.engine_facts(scheduler, len(scheduler.running), (), self._steps, now_s, self.promised)
        return self._control.worth_s(request.request_id, tokens, replace(engine, swap=self.facts()))

    def _reason_against(self, request: Request) -> str | None:
        if self._closed:
            return "reset"
        if request.skip_reading_prefix_cache:
            return "must_compute"  # vLLM computes its prompt in any case: it asks for the prompt's logprobs
        if request.resumable:
            return "session"  # its next input may take tokens back
        return None

    def swapped_tokens(self, request: Request) -> int:
        """Tokens whose KV is kept for it."""
        return self._connector.store.tokens_of(request.request_id)

    # Loads.

    def begin_step(self, limits: Limits) -> None:
        """The next ``schedule()`` begins, within ``limits``."""
        self._begun, self._limits = [], limits
        loading, loaded = self._in_flight()
        limits.keep_places(loading, loaded)

    def _in_flight(self) -> tuple[int, int]:
        """Requests whose loads run, and those whose loads are over and that vLLM admits next."""
        loading = loaded = 0
        for request_id, request in list(self._loads.items()):
            if compat.is_loading(self._scheduler, request):
                loading += 1
            elif compat.has_loaded(self._scheduler, request):
                loaded += 1
            else:
                del self._loads[request_id]
        return loading, loaded

    @property
    def promised(self) -> int:
        """Places that requests will take whose KV is being loaded, or has been."""
        return sum(self._in_flight())

    @property
    def begun(self) -> list[Request]:
        """Requests whose loads the last ``schedule()`` began."""
        return self._begun

    def growth_blocks(self) -> int:
        """Blocks to keep free beside a load that begins now: what running requests grow by until it ends."""
        running = self._scheduler.running
        return self._control.growth_blocks(np.array([request.num_computed_tokens for request in running], np.int64))

    def _load_begins(self, request: Request) -> None:
        self._loads[request.request_id] = request
        self._begun.append(request)
        if self._limits is not None:
            self._limits.take_place()
        self._control.loads(request.request_id)

    def scheduled(self, output: Any) -> None:
        """A step was scheduled. output: a ``SchedulerOutput``."""
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        if resumed:
            self._control.admitted(i for i in output.num_scheduled_tokens if i in resumed)

    def ended(self, request: Request) -> None:
        """A request ended, in whatever way."""
        self._control.rule.ended(request.request_id)

    def before_output(self, output: Any) -> None:
        """Workers' results, before vLLM reads them: a load that was given up while it ran counts as failed.

        output: a ``ModelRunnerOutput``.
        """
        found = output.kv_connector_output
        for request_id in sorted(found.finished_recving or ()) if found is not None else ():
            if self._connector.load_ended(request_id, failed=request_id in found.failed_recving) is False:
                found.failed_recving = {*found.failed_recving, request_id}

    # What is kept counts for the weights that computed it.

    def new_epoch(self) -> None:
        """What is kept, and what loads, is void: the weights are about to change, or have."""
        self._connector.store.new_epoch()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Stores nothing meanwhile: what is preempted now is preempted because its KV is void."""
        self._closed = True
        try:
            yield
        finally:
            self._closed = False

    # Facts.

    @property
    def peak_blocks(self) -> int:
        """Most host blocks that were ever in use."""
        return self._connector.store.peak_blocks

    def facts(self) -> SwapFacts:
        """The pool and the link, as of now."""
        return self._control.facts()

    def _reported(self, report: SwapReport) -> None:
        for direction, traffic in (("out", report.out), ("in", report.back)):
            if traffic.bytes:
                self._copied(direction, traffic.bytes, traffic.seconds)
        self._control.timed((report.out.bytes, report.out.seconds), (report.back.bytes, report.back.seconds))
