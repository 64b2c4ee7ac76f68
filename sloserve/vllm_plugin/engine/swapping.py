"""The part of ``SLOScheduler`` in swapping, beside :class:`SwapConnector`: what to store, and until when it counts.

Loads are another part, see :mod:`~sloserve.vllm_plugin.engine.swap_loads`.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from vllm.v1.request import Request

from sloserve.core.clock import Clock
from sloserve.core.tasks import TaskCall
from sloserve.engine.step_clock import StepClock
from sloserve.engine.swap.control import SwapControl, first_bytes_per_s
from sloserve.engine.swap.retained import Ending
from sloserve.lso.plan import EngineFacts, SwapFacts
from sloserve.vllm_plugin.engine import compat, kv_loads, prefix_cache
from sloserve.vllm_plugin.engine.apply import StockLimits, preempt
from sloserve.vllm_plugin.engine.swap_loads import SwapLoads
from sloserve.vllm_plugin.kv_groups import layout_of
from sloserve.vllm_plugin.swap.connector import SwapConnector
from sloserve.vllm_plugin.swap.messages import SwapReport
from sloserve.vllm_plugin.swap.refusals import check_place


class Parked(NamedTuple):
    """Number of requests that had KV, on the device or in the pool, and of how many it is in the pool now."""

    requests: int
    kept: int


def swap_connector(scheduler: Any) -> SwapConnector | None:
    """Return the scheduler's SwapConnector; ``None`` without one. Raises: ConfigError if it stands in a wrong place."""
    ours = [one for one in compat.connectors(scheduler) if isinstance(one, SwapConnector)]
    if not ours:
        return None
    settings = compat.connector_settings(scheduler)
    if settings:
        check_place(settings)
    return ours[0]


class Swapping:
    """The scheduler's part in swapping. Times are seconds of the scheduler's monotonic clock."""

    def __init__(
        self,
        scheduler: Any,
        connector: SwapConnector,
        swapping: Literal["cost", "always"],
        *,
        counters: Counter[str],
        steps: StepClock,
        clock: Clock,
        copied: Callable[[str, int, float], object],
    ) -> None:
        """Build the scheduler's part in swapping.

        Args:
            scheduler: The scheduler.
            connector: The scheduler's connector.
            swapping: The setting.
            counters: The scheduler's counters, to which the pool's are added.
            steps: The clock of steps.
            clock: Gives the time.
            copied: Called with copies that ended: direction (``out``, ``in``), bytes and seconds.
        """
        self._scheduler, self._connector = scheduler, connector
        self._counters = connector.store.counters = counters
        self._steps, self._clock = steps, clock
        ranks = connector.size.ranks
        block_bytes, bytes_per_s = connector.size.block_bytes * ranks, first_bytes_per_s(steps.profile, ranks)
        self._layout = layout_of(scheduler)
        self._control = SwapControl(
            connector.store,
            self._layout,
            block_bytes=block_bytes,
            swapping=swapping,
            bytes_per_s=bytes_per_s,
            steps=steps,
            clock=clock,
        )
        self.loads = SwapLoads(scheduler, connector, self._control, clock)
        self._ending: tuple[str, Ending] | None = None
        self._closed = self._spares_reset = False
        self.parked = False
        self._copied = copied
        self.alone = len(compat.connectors(scheduler)) == 1
        connector.attach(self.loads.begins, self._reported, self.loads.are_copying, self._control.awaited)
        kv_loads.trust_loads(scheduler, self.alone)

    # Stores.

    def preempting(self, request: Request) -> bool:
        """Keep the KV of ``request``, if it is worth it, since vLLM is about to preempt it; return whether it is kept.

        vLLM may preempt it for a plan or of its own accord.
        """
        self.loads.forget(request.request_id)
        tokens = request.num_computed_tokens
        worth_s, reason = self._worth_s(request, tokens), self._reason_against(request)
        if self.parked:
            worth_s = math.inf
        if reason is None and worth_s is None:
            reason = "cost"
        if worth_s is None or reason is not None:
            self._counters[f"swap_refused_{reason}"] += 1
            return False
        return self._store(request, worth_s)

    def arrived(self, request: Request) -> None:
        """Give a new request the KV of the ended request that it continues, if the pool has it."""
        contents, block_tokens = prefix_cache.block_contents(self._scheduler, request, request.num_prompt_tokens)
        if contents and self._reason_against(request) is None:
            usable = contents[: len(contents) - prefix_cache.unfound_blocks(self._scheduler)]
            hit = prefix_cache.hit_tokens(self._scheduler, self._layout, request, 0)
            self._control.retained.arrived(request.request_id, usable, block_tokens, hit)

    def ending(self, request: Request, call: TaskCall | None) -> None:
        """Keep the KV of a request with a complete output, which vLLM is about to free, if others may continue it.

        Args:
            request: The request.
            call: The task that it was a call of; ``None`` if it was no part of a task.
        """
        self._ending = None
        known = request.num_tokens - 1
        contents, block_tokens = prefix_cache.block_contents(self._scheduler, request, known)
        if not contents or not compat.is_complete(request) or self._reason_against(request) is not None:
            return
        ending = Ending(contents, block_tokens, request.num_prompt_tokens, call)
        blocks = compat.block_ids(self._scheduler, request)
        if request.num_computed_tokens < known or any(len(of_group) < len(contents) for of_group in blocks):
            return  # it was preempted, and ends by output that was in flight
        self._ending = request.request_id, ending
        if self._control.is_worth_retaining(request.request_id, ending, self._engine()):
            worth_s = self._control.retained.worth_s(ending.tokens)
            self._store(request, worth_s, ending.tokens, ends=True)

    def keep(self, request: Request) -> bool:
        """Keep the KV of a running request, whatever that saves. Return whether there is room for it."""
        return self._reason_against(request) is None and self._store(request, math.inf)

    def _store(self, request: Request, worth_s: float, tokens: int | None = None, *, ends: bool = False) -> bool:
        """Keep the KV of a request's first ``tokens`` tokens, or of all; return whether it is kept."""
        tokens = request.num_computed_tokens if tokens is None else tokens
        blocks = compat.block_ids(self._scheduler, request)
        # Other connectors write the blocks of their loads from streams and threads that wait for no copy of ours.
        beside = self._beside if ends and self.alone else None
        stored = self._connector.update_state_before_preempt(request, blocks, tokens, worth_s, ends=ends, beside=beside)
        if stored and beside is None:
            self._control.stores(stored)
        return stored is not None

    def _beside(self, block_ids: Sequence[int]) -> int:
        is_there = prefix_cache.watched(self._scheduler, block_ids)
        return self._control.stores_beside(len(block_ids), is_there)

    def _worth_s(self, request: Request, tokens: int) -> float | None:
        return self._control.worth_s(request.request_id, tokens, self._engine())

    def _engine(self) -> EngineFacts:
        scheduler, now_s = self._scheduler, self._clock.monotonic_s()
        running = len(scheduler.running)
        engine = compat.engine_facts(
            scheduler,
            self._layout,
            running=running,
            others=(),
            clock=self._steps,
            monotonic_s=now_s,
            promised=self.loads.promised,
        )
        return replace(engine, swap=self.facts())

    def _reason_against(self, request: Request) -> str | None:
        if self._closed:
            return "reset"
        if request.skip_reading_prefix_cache:
            return "must_compute"  # vLLM computes its prompt in any case: it asks for the prompt's logprobs
        if request.resumable:
            return "session"  # its next input may take tokens back
        return None

    def swapped_tokens(self, request: Request) -> int:
        """Return the tokens of a request that have their KV kept."""
        return self._connector.store.tokens_of(request.request_id)

    # Steps and requests.

    def begin_step(self, limits: StockLimits) -> None:
        """Begin the next ``schedule()``, within ``limits``."""
        if self._closed:
            self.reset_ends()
        self.loads.begin_step(limits)

    def scheduled(self, output: Any) -> None:
        """Record that a step was scheduled.

        Args:
            output: A ``SchedulerOutput``.
        """
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        if resumed:
            self._control.admitted(i for i in output.num_scheduled_tokens if i in resumed)

    def ended(self, request: Request) -> None:
        """Record that a request ended, in whatever way."""
        ending, self._ending = self._ending, None
        is_same = ending is not None and ending[0] == request.request_id
        self._control.ended(request.request_id, ending[1] if ending is not None and is_same else None)

    def before_output(self, output: Any) -> None:
        """Correct workers' results of loads before vLLM reads them.

        Args:
            output: A ``ModelRunnerOutput``.
        """
        if self._closed:
            self.reset_ends()
        self.loads.before_output(output)

    # What is kept counts for the weights that computed it.

    def weights_changed(self) -> None:
        """Discard all KV that was computed until now, wherever it is: kept, loading, or loaded and waiting."""
        self._spares_reset = False
        self._connector.store.new_epoch()
        self.loads.give_up_all()

    def reset_begins(self) -> None:
        """Prepare for a reset of vLLM's KV cache, which is possible only while nothing holds a block.

        Nothing is stored meanwhile: a request that is preempted now is preempted because its KV is void.
        """
        self._closed = True
        if self._spares_reset and not self._connector.has_pending_push_work():
            self._spares_reset = False  # all that was parked is in the pool
        else:
            self.weights_changed()
        self.loads.count_free()

    def reset_ends(self) -> None:
        """Take back the blocks that loads still write to, and store KV again.

        No reset is under way when a step begins or its output comes. So both call this if a reset has not ended, as
        after an end that failed: else its blocks would be given to two requests.
        """
        self.loads.count_taken()
        self._closed = False

    def unpaused(self) -> None:
        self.parked = self._spares_reset = False
        self.loads.unpaused()

    # Parking.

    def park(self, keep_over_reset: bool) -> Parked:
        """Preempt all running requests and store their KV, whatever that saves.

        Loads that run are given up, but their KV is kept.

        Args:
            keep_over_reset: Whether the next reset of the KV cache belongs to a sleep which keeps the weights.
        """
        scheduler, store = self._scheduler, self._connector.store
        self.parked, self._spares_reset = True, keep_over_reset
        running, waiting = list(scheduler.running), self.loads.waiting()
        before = self._kept()
        for request in reversed(waiting):
            if kv_loads.is_loading(scheduler, request):
                store.keep_loading(request.request_id)
            else:
                self._store(request, math.inf)
            self.loads.give_up(request)
            self.loads.forget(request.request_id)
        preempt(scheduler, reversed(running))
        return Parked(len(before | {request.request_id for request in running + waiting}), len(self._kept()))

    def _kept(self) -> set[str]:
        """Return the ids of the requests that have not ended and have KV in the pool."""
        return {r.request_id for r in compat.live_requests(self._scheduler) if self.swapped_tokens(r)}

    # Facts.

    @property
    def peak_blocks(self) -> int:
        """Most host blocks that were in use at any time."""
        return self._connector.store.peak_blocks

    def facts(self) -> SwapFacts:
        """Return the current state of the pool and the link."""
        return self._control.facts()

    def _reported(self, report: SwapReport) -> None:
        for direction, traffic in (("out", report.out), ("in", report.back)):
            if traffic.bytes:
                self._copied(direction, traffic.bytes, traffic.seconds)
        self._control.timed((report.out.bytes, report.out.seconds), (report.back.bytes, report.back.seconds))
