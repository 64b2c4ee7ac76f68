"""Show one scheduler to watchers: frames of :mod:`sloserve.engine.metrics.live_page`, made after a step.

Without a watcher a step costs one comparison. With one, at most two steps a second are shown, each for a few tenths of
a millisecond. Nothing here changes what is decided.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from vllm.v1.request import Request, RequestStatus

from sloserve.core.arrays import BoolArray, FloatArray, IntArray
from sloserve.core.kernels.requests import counts_of, slots_found
from sloserve.core.slo import ClassTable
from sloserve.engine.metrics.live_page import FRAME_EVERY_S, MOST_ROWS, NEAR, ROW, Frame, LiveWriter, drawn_first
from sloserve.engine.planner import Planner
from sloserve.engine.why import Cause, QueueRows, RequestPhase, StepDone, Why, preempted_for, queue_causes
from sloserve.lso.forecast import OCCUPANCY_COLUMNS, counted_once, occupancy
from sloserve.scheduler.policy import EngineFacts, Plan
from sloserve.vllm_plugin.engine import compat
from sloserve.vllm_plugin.engine.causes import due_later_s, head_held_up, not_planned, rival_of, step_done
from sloserve.vllm_plugin.engine.engine_stats import EngineStats
from sloserve.vllm_plugin.engine.live_numbers import MISSED, STATIC, LiveNumbers
from sloserve.vllm_plugin.engine.vllm_port import VllmPort

_NAN = float("nan")
_AT = {name: place for place, name in enumerate(ROW)}
_READ = ("num_computed_tokens", "_output_token_ids", "status", "num_preemptions")
"""Attributes of each request, fetched in one pass: fetching these objects is most of what a frame costs."""


class Watched:
    """Shows one scheduler to its watchers."""

    def __init__(
        self, scheduler: Any, stats: EngineStats, port: VllmPort, classes: ClassTable, page: LiveWriter
    ) -> None:
        self._scheduler, self._stats, self._port, self._page = scheduler, stats, port, page
        self._classes = len(classes.names)
        self.follow(classes)
        self._again_s = 0.0
        self._was_empty = True
        self._numbers = LiveNumbers(lambda: scheduler.recorded_number)
        self._planned: dict[str, Cause] = {}  # of requests about to be preempted
        self._preempted: dict[str, Cause] = {}

    def follow(self, classes: ClassTable) -> None:
        """Take the ranks of classes from ``classes``."""
        self._rank_of = np.array([one.rank for one in classes])

    def is_due(self, monotonic_s: float) -> bool:
        """Return whether to make a frame of the step that was just scheduled."""
        if not self._page.is_watched(monotonic_s):
            return False
        # The last step, after which an engine without requests makes none, is shown whenever it comes.
        return monotonic_s >= self._again_s or (not self._was_empty and not self._scheduler.requests)

    def preempting(self, victims: Sequence[Request], plan: Plan, planner: Planner | None, monotonic_s: float) -> None:
        """Record for which request the plan is about to preempt ``victims``."""
        if not self._page.is_watched(monotonic_s):
            return
        rival = rival_of(plan, planner)
        self._planned = {victim.request_id: self._for(victim, rival) for victim in victims}

    def preempted(self, request: Request, monotonic_s: float) -> None:
        """Record that a request lost its KV, by the plan after :meth:`preempting`, or otherwise."""
        if self._page.is_watched(monotonic_s):
            cause = self._planned.pop(request.request_id, None) or not_planned(self._scheduler)
            self._preempted[request.request_id] = cause

    def _for(self, victim: Request, rival: Request | None) -> Cause:
        if rival is None:
            return Cause(Why.PLAN_ALONE)
        slot = self._numbers.of(rival, self._stats)  # before ``values`` is read: it may make a larger one
        number = self._numbers.values[slot, 0]
        return preempted_for(float(number), due_later_s(victim, rival, self._stats.slo_of))

    def close(self) -> None:
        self._page.close()

    def write(self, output: Any, plan: Plan, planner: Planner | None, now_s: float, monotonic_s: float) -> None:
        """Show the step that was just scheduled.

        Args:
            output: The ``SchedulerOutput`` of the step.
            plan: The plan that the step followed.
            planner: The planner of the plan, if there is one.
            now_s: Present time, in epoch seconds.
            monotonic_s: Present time of the monotonic clock, in seconds.
        """
        self._again_s = monotonic_s + FRAME_EVERY_S
        scheduler = self._scheduler
        waiting = [*self._port.waiting]
        aside = [request for request in compat.beside_waiting(scheduler) if not request.is_finished()]
        by_id = self._stats.stages.by_id
        if self._preempted:
            self._preempted = {one: cause for one, cause in self._preempted.items() if one in by_id}
        facts = self._port.facts(len(scheduler.running), ())
        live = _Live(self, [*scheduler.running, *aside, *waiting], len(waiting), output, planner, now_s)
        self._was_empty = not live.size
        step = step_done(scheduler, self._port, output, plan, planner)
        head = head_held_up(waiting, step, facts)
        self._page.write(
            Frame(
                at_s=now_s,
                at_monotonic_s=monotonic_s,
                live=live.size,
                free_blocks=facts.free_blocks,
                total_blocks=facts.capacity_blocks,
                head=head,
                counts=live.counts(self._classes),
                late=np.bincount(live.class_id[live.due_s < now_s], minlength=self._classes),
                missed=np.bincount(live.class_id[live.missed], minlength=self._classes),
                next_due_s=live.next_due_s(self._classes),
                foreseen=None if planner is None else _foreseen(planner, facts),
                rows=live.rows(step, head),
            )
        )


class _Live:
    """The unfinished requests, column by column, in the order of service and then of admission."""

    def __init__(
        self,
        watched: Watched,
        requests: list[Request],
        queued: int,
        output: Any,
        planner: Planner | None,
        now_s: float,
    ) -> None:
        self.size = len(requests)
        self._first_queued = self.size - queued
        self._requests, self._output, self._planner, self._now_s = requests, output, planner, now_s
        self._rank_of = watched._rank_of
        self._scheduler, self._port, self._preempted = watched._scheduler, watched._port, watched._preempted
        self._stages = watched._stats.stages.by_id
        numbers = watched._numbers
        slots = numbers.slots(requests, self._scheduler.requests, watched._stats)
        self._static = numbers.values[slots, :MISSED]
        self._computed, self._output_tokens, self._status, self._preemptions = counts_of(requests, _READ)
        self.class_id = self._static[:, STATIC.index("class_id")].astype(np.int64)
        paused = slots_found(numbers.slot_of, self._scheduler.slo_paused, "request_id")
        self.phase = self._phases(np.isin(slots, paused) if paused.size else None)
        self._first_token_s = _first_tokens_s(planner, requests)
        self.due_s = self._due_s()
        self._overdue = self._note_overdue(numbers.values, slots)
        self.missed: BoolArray = self._overdue | self._is_too_slow()

    def _phases(self, paused: BoolArray | None) -> IntArray:
        """Return the phase of each request, ``[requests]``.

        Args:
            paused: Whether the plan passes a request over, ``[requests]``; ``None`` for no such request.
        """
        phase = _PHASE_OF[self._status]
        running = phase == _PREFILL
        phase[running & (self._output_tokens > 0)] = _DECODE
        if paused is not None:
            phase[running & paused] = _PAUSED
        phase[(self._status == _LOADING) & (self._preemptions > 0)] = _PREEMPTED
        for place in np.flatnonzero(phase == _PREEMPTED).tolist() if self._port.keeps_swapped else ():
            if self._port.swapped_tokens(self._requests[place]):
                phase[place] = RequestPhase.SWAPPED
        return phase

    def _since_s(self, places: Sequence[int]) -> list[float]:
        """Return when the phase of each request began; for a request that came unseen, when it arrived."""
        stages, requests = self._stages, self._requests
        found = [(request, stages.get(request.request_id)) for request in map(requests.__getitem__, places)]
        return [request.arrival_time if one is None else one.since_s for request, one in found]

    def _due_s(self) -> FloatArray:
        ttft_s, e2e_s, pace_s = (self._fact(name) for name in ("ttft_due_s", "e2e_due_s", "pace_s"))
        # The next token is due one pace after each that came; of a prompt the first token.
        token_s = np.where(self._output_tokens > 0, self._first_token_s + pace_s * self._output_tokens, ttft_s)
        due_s: FloatArray = np.fmin(token_s, e2e_s)
        return due_s

    def _fact(self, name: str) -> FloatArray:
        """Return a fact of each request, one of :data:`STATIC`."""
        return self._static[:, STATIC.index(name)]

    def _is_too_slow(self) -> BoolArray:
        """Return which requests cannot meet their TPOT or TDS target any more, ``[requests]``.

        The next token comes now or later, and the output has ``max_tokens`` at most: once more time has passed since
        the first token than these may take, no speed of the remaining ones is enough.
        """
        longest_s = self._fact("pace_s") * (self._fact("max_tokens") - 1.0)
        slow: BoolArray = (self._output_tokens > 0) & (self._now_s - self._first_token_s > longest_s)
        return slow

    def _note_overdue(self, values: FloatArray, slots: IntArray) -> BoolArray:
        """Return which requests have missed the deadline of their first token or of their whole output.

        A first token that came too late between two frames is known where a policy needs the time of first tokens.

        Args:
            values: Facts of requests, which keep the result.
            slots: Rows of the requests in ``values``.
        """
        ttft_due_s, e2e_due_s = self._fact("ttft_due_s"), self._fact("e2e_due_s")
        first_s = np.where(self._output_tokens > 0, self._first_token_s, self._now_s)
        overdue: BoolArray = (values[slots, MISSED] > 0.0) | (first_s > ttft_due_s) | (self._now_s > e2e_due_s)
        values[slots, MISSED] = overdue
        return overdue

    def counts(self, classes: int) -> IntArray:
        flat = np.bincount(self.class_id * len(RequestPhase) + self.phase, minlength=classes * len(RequestPhase))
        return flat.reshape(classes, len(RequestPhase))

    def next_due_s(self, classes: int) -> FloatArray:
        first = np.full(classes, np.nan)
        np.fmin.at(first, self.class_id, self.due_s)
        return first

    def rows(self, step: StepDone, head: Cause) -> FloatArray:
        """Return the requests to draw, by number, see :func:`~sloserve.engine.metrics.live_page.drawn_first`.

        Args:
            step: What the step leaves.
            head: Why the first of the queue was not admitted.
        """
        drawn = np.arange(len(self._requests))
        if drawn.size > MOST_ROWS:
            drawn = drawn_first(self.due_s, self.class_id, self.missed, MOST_ROWS)
        drawn = drawn[np.argsort(self._static[drawn, 0])]
        rows = np.empty((drawn.size, len(ROW)))
        static = self._static[drawn]
        for name in ("number", "class_id", "arrival_s", "prompt_tokens"):
            rows[:, _AT[name]] = static[:, STATIC.index(name)]
        rows[:, _AT["phase"]] = self.phase[drawn]
        rows[:, _AT["since_s"]] = self._since_s(drawn.tolist())
        rows[:, _AT["preemptions"]] = self._preemptions[drawn]
        rows[:, _AT["due_s"]] = self.due_s[drawn]
        rows[:, _AT["computed_tokens"]] = self._computed[drawn]
        rows[:, _AT["output_tokens"]] = self._output_tokens[drawn]
        in_queue = drawn >= self._first_queued
        queued = drawn[in_queue] - self._first_queued
        rows[:, _AT["ahead"]] = np.where(drawn < len(self._scheduler.running), -1, 0)
        rows[in_queue, _AT["ahead"]] = queued
        rows[:, _AT["missed"]] = self.missed[drawn]
        rows[:, _AT["why"] :] = _SERVED
        rows[in_queue, _AT["why"] :] = queue_causes(self._queue(), queued, head, len(self._scheduler.running))
        # A waiting request that is not blocked has nothing of its own that holds it up.
        plain = (self._status[drawn] == _PLAIN) & (self._computed[drawn] == 0)
        for place in np.flatnonzero((self.phase[drawn] != _DECODE) & ~plain).tolist():
            cause = self._cause(int(drawn[place]), step)
            if cause is not None:
                rows[place, _AT["why"] :] = cause.why, cause.figure, cause.of
        return rows

    def _queue(self) -> QueueRows:
        """Return what decides the order of the queue, as far as watchers see it."""
        first, planner = self._first_queued, self._planner
        missed = np.zeros(self.size - first, np.bool_)
        if planner is not None and planner.policy.gives_up:
            missed = self._overdue[first:]
        standing = None if planner is None else planner.standing()
        level = np.zeros(self.size - first, np.int64)
        if planner is not None and standing is not None:
            queued, slot_of = self._requests[first:], planner.table.slot_of
            known = np.array([one.request_id in slot_of for one in queued], np.bool_)
            slots = slots_found(slot_of, queued, "request_id")
            level[known] = standing.level[planner.table.rows.account[slots]]
        return QueueRows(self._rank_of[self.class_id[first:]], level, missed)

    def _cause(self, place: int, step: StepDone) -> Cause | None:
        """Return what holds one request up by itself; the first of the queue holds up the requests behind it."""
        phase, request = self.phase[place], self._requests[place]
        if phase == _WAITING:
            return _BLOCKED if compat.is_blocked(request) else None
        if phase == _PREFILL:
            is_served = request.request_id in self._output.num_scheduled_tokens
            return None if is_served else Cause(Why.TOKENS, step.given_tokens, step.budget_tokens)
        if phase == _PAUSED:
            return Cause(Why.PAUSE, self._ahead_tokens(place)) if self._output_tokens[place] else _PASSED
        return self._preempted.get(request.request_id, _UNSEEN)

    def _ahead_tokens(self, place: int) -> float:
        """Return how many tokens a request has beyond the ones that its pace requires so far; nan without a pace."""
        pace_s = self._static[place, STATIC.index("pace_s")]
        read = (self._now_s - self._first_token_s[place]) / pace_s + 1.0
        return float(self._output_tokens[place] - read)


_BLOCKED, _UNSEEN, _PASSED = Cause(Why.BLOCKED), Cause(Why.UNSEEN), Cause(Why.PASSED)
# Plain numbers: an enum member is looked up again at each use, and these are used for each request.
_WAITING, _PREFILL, _DECODE, _PAUSED, _PREEMPTED = (
    int(one)
    for one in (
        RequestPhase.WAITING,
        RequestPhase.PREFILL,
        RequestPhase.DECODE,
        RequestPhase.PAUSED,
        RequestPhase.PREEMPTED,
    )
)
_PLAIN, _LOADING = int(RequestStatus.WAITING), int(RequestStatus.WAITING_FOR_REMOTE_KVS)
_PHASE_OF = np.full(max(RequestStatus) + 1, _WAITING)
"""Phase of a request by its status, as far as the status determines it."""
_PHASE_OF[RequestStatus.RUNNING], _PHASE_OF[RequestStatus.PREEMPTED] = _PREFILL, _PREEMPTED
_SERVED = int(Why.NOTHING), _NAN, _NAN


def _first_tokens_s(planner: Planner | None, requests: Sequence[Request]) -> FloatArray:
    """Return when the first token of each request came; nan if it has none, or no policy needs the time."""
    found = np.full(len(requests), np.nan)
    if planner is None or "first_token_s" not in planner.table.rows.kept:
        return found
    slot_of, first_token_s = planner.table.slot_of, planner.table.rows.first_token_s
    slots = slots_found(slot_of, requests, "request_id")
    if slots.size == len(requests):
        return first_token_s[slots]
    found[[request.request_id in slot_of for request in requests]] = first_token_s[slots]
    return found


def _foreseen(planner: Planner, facts: EngineFacts) -> FloatArray | None:
    """Return mean and standard deviation of the blocks that the running requests will hold NEAR.

    They follow from the lengths that plans trust; ``None`` if there are none.
    """
    lengths, table = planner.lengths, planner.table
    if lengths is None or not table.rows.kept >= OCCUPANCY_COLUMNS:
        return None
    snapshot = table.snapshot(facts)
    rows, running = snapshot.rows, snapshot.running
    context_tokens = counted_once(snapshot, rows.prompt_tokens[running] + rows.output_tokens[running], running)
    mean, variance = occupancy(lengths, rows, running, facts.layout, NEAR, context_tokens)
    return np.stack((mean.sum(axis=0), np.sqrt(variance.sum(axis=0))))
