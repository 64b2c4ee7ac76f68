"""The model engine behind the engine port: planner, table and guards read and order its arrays."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.clock import Clock
from sloserve.core.rows import State
from sloserve.core.stated import StatedSLO
from sloserve.engine.columns import live_columns, static_columns
from sloserve.engine.request_table import RequestTable
from sloserve.engine.step_clock import StepClock
from sloserve.lso.chunk_ends import advancing_tokens
from sloserve.lso.preemption import Holding
from sloserve.scheduler.policy import EngineFacts, Plan
from sloserve.sim.model.model_requests import BLOCKED, PREEMPTED, RUNNING, ModelRequest
from sloserve.sim.model.scheduler import ModelScheduler
from sloserve.sim.model.step import StepBatch, StepLimits

_READ = {"computed_tokens": "computed", "in_flight_tokens": "in_flight"}
"""The name of the count behind each column of rows."""


class ModelPort:
    """The model engine's :class:`~sloserve.engine.port.EnginePort`. All requests are text and have a row."""

    def __init__(self, scheduler: ModelScheduler, steps: StepClock, clock: Clock) -> None:
        self._scheduler = scheduler
        self._steps, self._clock = steps, clock
        self._counts = scheduler.requests
        self._num_drafts = scheduler.settings.num_drafts
        self.requests: dict[str, ModelRequest] = {}
        self.max_loras = scheduler.settings.max_loras

    @property
    def running(self) -> Sequence[ModelRequest]:
        handles = self._counts.handles
        return [handles[index] for index in self._scheduler.running.tolist()]

    @property
    def waiting(self) -> Iterable[ModelRequest]:
        handles = self._counts.handles
        return [handles[index] for index in self._scheduler.waiting.tolist()]

    # Reading.

    def is_plannable(self, request: ModelRequest) -> bool:
        return True

    def may_be_skipped(self, request: ModelRequest) -> bool:
        return True

    def is_blocked(self, request: ModelRequest) -> bool:
        counts, index = self._counts, request.index
        # A request with loaded KV is admitted before all others, whatever their order.
        return bool(counts.state[index] == BLOCKED or (counts.state[index] == PREEMPTED and counts.computed[index]))

    def state_of(self, request: ModelRequest) -> State:
        return State(int(self._counts.state[request.index]))

    def is_aborted(self, request: ModelRequest) -> bool:
        return bool(self._counts.left[request.index] > 0)

    def lora_id(self, request: ModelRequest) -> int | None:
        adapters = self._scheduler.adapters
        return None if adapters is None else adapters.of(request.index)

    def cached_tokens(self, request: ModelRequest) -> int | None:
        return int(self._counts.found[request.index])

    def hit_tokens(self, request: ModelRequest, before: int) -> int:
        return self._scheduler.kv.hit_tokens(request.index, before)

    def prompt_contents(self, request: ModelRequest, stretch_tokens: int) -> Sequence[Hashable]:
        return self._scheduler.kv.prompt_contents(request.index, stretch_tokens)

    def items_to_encode(self, request: ModelRequest, computed: int) -> tuple[int, int]:
        return 0, 0  # its requests are text

    def swapped_tokens(self, request: ModelRequest) -> int:
        swap = self._scheduler.swap
        return 0 if swap is None else swap.control.store.tokens_of(request.request_id)

    def static_columns(self, request: ModelRequest, stated: StatedSLO) -> dict[str, float]:
        return static_columns(request, stated)

    def live_columns(self, request: ModelRequest, stated: StatedSLO, now_s: float) -> dict[str, float]:
        return live_columns(request, stated, self.cached_tokens(request), now_s)

    def read(self, requests: list[Any], slots: IntArray, columns: Mapping[str, IntArray]) -> None:
        members = np.array([requests[slot].index for slot in slots.tolist()], np.int64)
        counts = self._counts
        for name, column in columns.items():
            if name == "output_tokens":
                column[slots] = counts.tokens[members] - counts.prompt[members]
            else:
                column[slots] = getattr(counts, _READ[name])[members]

    def tokens_scheduled(self, step: StepBatch) -> None:
        return None  # counts are arrays here: to read them costs no more

    def tokens_sampled(self, results: Any) -> None:
        return None

    @property
    def num_drafts(self) -> int:
        return self._num_drafts

    def drafts_of(self, step: StepBatch, ids: Sequence[str]) -> Sequence[int]:
        if step.drafts is None:
            return [0] * len(ids)
        handles = self._counts.handles
        found = {handles[i].request_id: n for i, n in zip(step.requests.tolist(), step.drafts.tolist(), strict=True)}
        return [found.get(request_id, 0) for request_id in ids]

    def admitted_ids(self, output: StepBatch) -> Sequence[str]:
        handles = self._counts.handles
        return [handles[index].request_id for index in output.admitted]

    def new_tokens(self, outputs: IntArray) -> tuple[Sequence[str], Sequence[int]]:
        """Return the ids of the requests that got tokens and how many each got.

        ``outputs`` has the index of a request once for every token that it got.
        """
        handles = self._counts.handles
        if self._num_drafts == 0:
            return [handles[index].request_id for index in outputs.tolist()], [1] * outputs.size
        first = np.flatnonzero(np.diff(outputs, prepend=-1))
        tokens: list[int] = np.diff(first, append=outputs.size).tolist()
        return [handles[index].request_id for index in outputs[first].tolist()], tokens

    @property
    def takes_back_computed(self) -> bool:
        return self._scheduler.swap is not None

    @property
    def _taken(self) -> int:
        return int(self._scheduler.running.size) + len(self._scheduler.holding)

    @property
    def free_slots(self) -> int:
        return max(self._scheduler.limits.running - self._taken, 0)

    def facts(self, num_running: int, others: Iterable[ModelRequest]) -> EngineFacts:
        scheduler, taken = self._scheduler, self._taken
        held = sum(int(self._counts.blocks[request.index]) for request in others)
        return EngineFacts(
            free_blocks=scheduler.kv.free,
            total_blocks=scheduler.settings.kv_blocks + 1 - held,  # vLLM counts the one that it keeps for itself
            layout=scheduler.layout,
            max_num_seqs=max(scheduler.limits.running - (taken - num_running), 1),
            token_budget=scheduler.limits.tokens,
            free_slots=self.free_slots,
            decode_tokens=1 + self._num_drafts,
            step_latency=self._steps.latency,
            busy_s=self._steps.busy_s(self._clock.monotonic_s()),
            swap=None if scheduler.swap is None else scheduler.swap.control.facts(),
        )

    def holding(self, request: ModelRequest) -> Holding:
        return self._scheduler.kv.holding(request.index)

    # Plans.

    def drafts_ready(self, slots: IntArray, table: RequestTable) -> IntArray:
        members = np.array([request.index for request in table.requests_in(slots)], np.int64)
        found: IntArray = self._counts.proposed[members]
        return found

    def trim_drafts(self, slots: IntArray, lengths: IntArray, table: RequestTable) -> int:
        members = np.array([request.index for request in table.requests_in(slots)], np.int64)
        proposed = self._counts.proposed
        before = int(proposed[members].sum())
        proposed[members] = np.minimum(proposed[members], lengths)
        return before - int(proposed[members].sum())

    def running_requests(self, slots: IntArray, table: RequestTable) -> list[Any]:
        found = table.requests_in(slots)
        for request in found:
            if self._counts.state[request.index] != RUNNING:
                raise RuntimeError(f"{request.request_id} is to be preempted or paused, but does not run")
        return found

    def apply_plan(self, plan: Plan, table: RequestTable, limits: StepLimits) -> list[Any]:
        """Apply the plan to the scheduler's queues and limits; return the requests that it pauses.

        ``limits`` are the engine's own; the caller restores them after the step, and lifts the pauses.
        """
        scheduler = self._scheduler
        paused = self.running_requests(plan.pause, table)
        running = self._in_front(scheduler.running, plan.running, table)
        waiting = self._in_front(scheduler.waiting, plan.waiting, table)
        # This is done at each step, since admitted requests come last, where victims are taken from.
        running = self._in_front(running, table.marks.protected_running(), table)
        scheduler.running, scheduler.waiting = running, waiting
        scheduler.limits = self._narrowed(limits, plan, table.num_running)
        scheduler.paused = np.array([request.index for request in paused], np.int64)
        return paused

    def _narrowed(self, limits: StepLimits, plan: Plan, num_running: int) -> StepLimits:
        running, tokens, chunk = limits.running, limits.tokens, limits.chunk
        taken = int(self._scheduler.running.size)
        least = min(self._num_drafts, 1)  # the tokens of a prompt that a draft head reads ahead
        if plan.max_running is not None:
            running = min(running, max(int(plan.max_running) + taken - num_running, taken))
        if plan.token_budget is not None:
            planned = min(tokens, max(int(plan.token_budget), least))
            decodes = taken * (1 + self._num_drafts)
            tokens = min(tokens, advancing_tokens(planned, self._scheduler.layout.chunk_multiple, decodes))
        if plan.prefill_chunk_tokens is not None:
            planned = max(int(plan.prefill_chunk_tokens), least, 1 + self._num_drafts)
            chunk = min(chunk, planned) if chunk > 0 else planned
        return StepLimits(running, tokens, chunk)

    def _in_front(self, present: IntArray, named: IntArray | None, table: RequestTable) -> IntArray:
        """Return a queue with the named requests first, then the others in their present order.

        Named requests that are not in the queue are left out.
        """
        if named is None or not named.size:
            return present
        marked = self._counts.marked
        wanted = np.array([request.index for request in table.requests_in(named)], np.int64)
        if np.array_equal(wanted, present[: wanted.size]):
            return present
        marked[present] = True
        wanted = wanted[marked[wanted]]
        marked[wanted] = False
        rest = present[marked[present]]
        marked[present] = False
        return np.concatenate((wanted, rest))
