"""QLM on one engine: a virtual queue of request groups, kept until a missed deadline is predicted.

Requests with similar deadlines and lengths form groups. The order of the groups is the plan of a fleet of one instance
with one model; a new one is searched when the last one would miss deadlines. Inside a group requests are served in
order of arrival (``inside=fcfs``, the paper's), or by their own deadlines (``inside=edf``).

A request has the deadline of ``edf``. The policy preempts (request eviction) where a waiting request finds no slot or
no KV blocks, and running requests with deadlines that are later by ``preempt_margin_s`` can make room. A request
without a deadline is served before requests of less urgent classes, and otherwise behind all groups that have one.

Source: QLM, Sec. 3 to 7. Differs: what serves many models, model swaps and load balancing, is the fleet's
(``virtual_queues``).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray, grown
from sloserve.core.rows import Rows
from sloserve.estimator.completion.group_time import Serving
from sloserve.estimator.completion.steady_state import EngineSize, TokenLatency
from sloserve.estimator.length.choice import check_lengths
from sloserve.lso.drafted import mean_tokens_per_step
from sloserve.lso.lengths import LENGTH_COLUMNS
from sloserve.lso.ordering import PREEMPTION_COLUMNS, ClassRank, plan_by_key, preemption_in_seconds
from sloserve.lso.pace import PACE_COLUMNS
from sloserve.scheduler.edf import deadlines_s
from sloserve.scheduler.options import check_within
from sloserve.scheduler.policy import EngineFacts, Plan, Policy, PredictingPolicy, Snapshot
from sloserve.scheduler.virtual_queues.contract import (
    FleetPlan,
    FleetState,
    GroupSums,
    InstanceState,
    ModelState,
    RunningSums,
)
from sloserve.scheduler.virtual_queues.groups import Groups, Member
from sloserve.scheduler.virtual_queues.problem import PlanSettings
from sloserve.scheduler.virtual_queues.qlm_planner import QLMPlanner

_ENGINE: Final = "engine"
"""Name of the one instance, of its kind and of its model."""
_APART_S: Final = 1e-3
"""Distance between the keys of two groups, so that no deadline inside one reaches into the next."""
_MOST_APART_S: Final = 1e6
_PLAN: Final = PlanSettings(min_active_s=0.0, moves_a_group=50, least_moves=400, most_moves=2000, scale_up=False)
_CONTEXT_TOKENS: Final = 2048.0
"""Context at which the KV cache is counted in tokens, where it holds more tokens of long requests than of short."""
_OTHER_TOKENS: Final = 0.1
"""Tokens that a step brings more or less than before, from which on the engine counts as another one."""
_NOT_WAITING: Final = -1
_DONE: Final = object()


class QLM(PredictingPolicy):
    """Serves groups of similar requests, in the order with the least summed lateness."""

    needs = (
        PREEMPTION_COLUMNS
        | PACE_COLUMNS
        | LENGTH_COLUMNS
        | {"arrival_s", "ttft_s", "e2e_s", "first_token_s", "class_rank"}
    )

    @dataclass(frozen=True)
    class Settings(Policy.Settings):
        inside: str = "fcfs"
        """order inside a group, ``fcfs`` or ``edf``"""
        delta: float = 4.0
        """largest size of a group, in mean batches"""
        replan_s: float = 1.0
        """seconds between predictions of completion times; until the next one a new group is placed by deadline"""
        preempt: bool = True
        """whether to preempt at all"""
        preempt_margin_s: float = 30.0
        """a victim's deadline is later by at least this, in seconds"""
        max_preemptions: int = 3
        """most preemptions of one request"""
        length: str = "predicted"
        """``predicted``, ``empirical``, ``gaussian`` or ``oracle``, see docs/profile.md"""
        length_error: float = 0.0
        """relative error of the oracle's lengths"""

        def __post_init__(self) -> None:
            check_lengths(self.length, self.length_error)
            if self.inside not in ("fcfs", "edf"):
                raise ValueError(f"inside: {self.inside!r} is neither fcfs nor edf")
            if not 0.0 < self.delta <= 1000.0:
                raise ValueError(f"delta: {self.delta} is not within 0..1000")
            check_within(self, 0, math.inf, "preempt_margin_s", "max_preemptions", "replan_s")

    def __init__(self, settings: Any = None, *, seed: int = 0) -> None:
        super().__init__(settings, seed=seed)
        self._groups = Groups(self.settings.delta)
        self._ref = np.empty(0, np.int64)  # by slot: of the group that it waits in
        self._member: dict[int, tuple[int, Member]] = {}
        self._planner: tuple[EngineFacts, QLMPlanner] | None = None
        self._plan: FleetPlan | None = None
        self._replanning: Iterator[None] | None = None
        self._planned_s = -np.inf
        self._known = (np.empty(0, np.int64), np.empty(0))  # references, ascending, and keys of the planned groups
        chosen = self.settings
        self._rule = preemption_in_seconds(chosen.preempt, chosen.preempt_margin_s, chosen.max_preemptions)

    def arrived(self, rows: Rows, slot: int, now_s: float) -> None:
        self._wait(rows, slot)

    def finished(self, rows: Rows, slot: int, now_s: float) -> None:
        super().finished(rows, slot, now_s)
        self._groups.remove(slot)
        self._member.pop(slot, None)
        if slot < self._ref.size:
            self._ref[slot] = _NOT_WAITING

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        rows = snapshot.rows
        self._follow(snapshot)
        running_key = deadlines_s(rows, snapshot.running)
        if self._replanning is None:
            self._groups.tidy()
        if not snapshot.waiting.size:
            return plan_by_key(snapshot, np.empty(0), running_key, class_rank=ClassRank.UNDECIDED)
        if self._replanning is None and now_s - self._planned_s >= self.settings.replan_s:
            self._replanning = self._replan(snapshot, now_s)
        if self._replanning is not None and next(self._replanning, _DONE) is _DONE:
            self._replanning = None
        due = deadlines_s(rows, snapshot.waiting)
        return plan_by_key(
            snapshot,
            self._keys(snapshot.waiting, due, now_s),
            running_key,
            preempt=self._rule,
            may_preempt_for=(due >= now_s) & np.isfinite(due),
            class_rank=ClassRank.UNDECIDED,
        )

    def _wait(self, rows: Rows, slot: int) -> None:
        """Put the request into a group, or back into the one that it was taken from."""
        if slot in self._member:
            ref, member = self._member[slot]
            self._groups.put_back(member, ref)
        else:
            one = np.array([slot])
            arrival_s, due_s = float(rows.arrival_s[slot]), float(deadlines_s(rows, one)[0])
            member = Member(
                slot,
                _ENGINE,
                float(rows.prompt_tokens[slot]),
                float(self._lengths.left(rows, one)[0]),
                0.0,
                arrival_s,
                due_s - arrival_s,
                until_first_token=due_s < arrival_s + rows.e2e_s[slot] or np.isnan(rows.e2e_s[slot]),
            )
            ref = self._groups.add(member)
            self._member[slot] = ref, member
        if slot >= self._ref.size:
            self._ref = grown(self._ref, rows.capacity, _NOT_WAITING)
        self._ref[slot] = ref

    def _follow(self, snapshot: Snapshot) -> None:
        """Take requests that were admitted out of their groups, and put preempted ones back."""
        rows, ref = snapshot.rows, self._ref
        if ref.size < rows.capacity:
            ref = self._ref = grown(ref, rows.capacity, _NOT_WAITING)
        for slot in snapshot.running[ref[snapshot.running] != _NOT_WAITING].tolist():
            self._groups.remove(slot)
            ref[slot] = _NOT_WAITING
        for slot in snapshot.waiting[ref[snapshot.waiting] == _NOT_WAITING].tolist():
            self._wait(rows, slot)

    def _replan(self, snapshot: Snapshot, now_s: float) -> Iterator[None]:
        """Make a new plan, in pieces of which a step does one: none takes much longer than ordering the queue."""
        self._planned_s = now_s
        self._groups.set_batch(_ENGINE, max(float(snapshot.running.size), 8.0))
        groups, running = self._groups.sums(), self._running(snapshot)
        engine = InstanceState(_ENGINE, _ENGINE, {_ENGINE: ModelState.ACTIVE}, running=running)
        planner = self._planner_of(snapshot.engine)
        yield
        state = FleetState(now_s, groups, (engine,), {}, self._plan)
        times = planner.times(state)
        yield
        foreseen = planner.foresee(state, times)
        yield
        self._plan = planner.search(foreseen)
        by_ref = {group.ref: group for group in groups}
        order = [by_ref[ref] for ref in self._plan.queues[_ENGINE]]
        refs, keys = np.array([group.ref for group in order], np.int64), _keys_of(order)
        ascending = np.argsort(refs)
        self._known = refs[ascending], keys[ascending]

    def _planner_of(self, engine: EngineFacts) -> QLMPlanner:
        if self._planner is None or _differ(self._planner[0], engine):
            per_step, size = mean_tokens_per_step(engine), _size_of(engine)
            size = replace(size, token_budget=max(round(size.token_budget / per_step), 1))  # in the time of a token
            serving = Serving(TokenLatency(engine.step_latency, per_step), size)
            self._planner = engine, QLMPlanner({(_ENGINE, _ENGINE): serving}, _PLAN, seed=self.seed)
        return self._planner[1]

    def _running(self, snapshot: Snapshot) -> RunningSums:
        rows, slots = snapshot.rows, snapshot.running
        if not slots.size:
            return RunningSums()
        left = self._lengths.left(rows, slots)
        known = rows.prompt_tokens[slots] + rows.output_tokens[slots]
        computed = rows.computed_tokens[slots]
        return RunningSums(
            slots.size,
            float(np.maximum(known - computed - 1, 0).sum()),
            float(computed.sum()),
            float(left.sum()),
            float((left**2).sum()),
            float(left.max()),
        )

    def _keys(self, waiting: IntArray, due: FloatArray, now_s: float) -> FloatArray:
        """Return the keys of waiting requests: their groups' places, as deadlines; inf for a request without one.

        A group that is newer than the last plan is placed by deadline.
        """
        refs, keys = self._known
        if not refs.size:
            return due
        wanted = self._ref[waiting]
        at = np.minimum(np.searchsorted(refs, wanted), refs.size - 1)
        found = np.where(refs[at] == wanted, keys[at], due)
        if self.settings.inside == "edf":
            found = found + np.clip(due - now_s, 0.0, _MOST_APART_S) * (_APART_S / 2.0 / _MOST_APART_S)
        return np.where(np.isinf(due), np.inf, found)


def _differ(before: EngineFacts, now: EngineFacts) -> bool:
    """Return whether a planner that was made for one of these engines is wrong for the other."""
    tokens = abs(mean_tokens_per_step(before) - mean_tokens_per_step(now))
    return _size_of(before) != _size_of(now) or tokens > _OTHER_TOKENS


def _size_of(engine: EngineFacts) -> EngineSize:
    kv_tokens = int(engine.layout.capacity_tokens(engine.total_blocks, _CONTEXT_TOKENS))
    return EngineSize(engine.max_num_seqs, engine.token_budget, kv_tokens)


def _keys_of(order: list[GroupSums]) -> FloatArray:
    """Return keys that ascend along the queue: the latest deadline so far.

    Distances between these keys and running requests' deadlines count.
    """
    due = np.array([group.first_due_s for group in order])
    last = float(due[np.isfinite(due)].max(initial=0.0))
    keys: FloatArray = np.maximum.accumulate(np.where(np.isinf(due), last, due)) + _APART_S * np.arange(due.size)
    return keys
