"""Record all that a policy is given, and what it plans, so that its plans can be made again.

A policy's plan follows from the events that it was given, the snapshots that it saw and its seed. Of a snapshot all is
plain values but two: the latency of steps, which learns, and the blocks of running requests, which are looked up. What
they returned is recorded in the order of the calls.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

import msgspec
import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.rows import Rows
from sloserve.engine.recording.events import Event, PlanMade, PolicyBegan, PolicyCalled, RowsSeen
from sloserve.estimator.step_time.latency import StepLatency, StepLoad
from sloserve.lso.preemption import Holding
from sloserve.scheduler.policy import EngineFacts, Plan, Policy, Snapshot

logger = logging.getLogger(__name__)

ENGINE_FIGURES: Final = tuple(
    one.name for one in fields(EngineFacts) if one.name not in ("layout", "step_latency", "swap", "drafts")
)
"""Plain figures of :class:`~sloserve.lso.plan.EngineFacts`."""
WHOLE_EVERY: Final = 256
"""Events from which on rows are recorded whole again, so that the oldest segments can go."""


class NotedLatency:
    """The engine's latency, with a note of what it returns.

    A policy may keep it from one snapshot to the next, so that there is one for all snapshots.
    """

    def __init__(self) -> None:
        self.engine: StepLatency | None = None
        self.results: list[float | int] = []

    def step_s(self, load: StepLoad) -> float:
        assert self.engine is not None
        found = float(self.engine.step_s(load))
        self.results.append(found)
        return found

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        assert self.engine is not None
        found = int(self.engine.prefill_within(seconds, base, prefix_tokens))
        self.results.append(found)
        return found

    def taken(self) -> list[float | int]:
        """Return what it returned since the last call."""
        found, self.results = self.results, []
        return found


class PlanLog:
    """Stands between a planner and its policy, and records what passes.

    A fault of its own ends it, and changes nothing for planner and policy.

    Args:
        add: Records an event.
        measure: Function that reads a timer, in seconds.
    """

    def __init__(self, add: Callable[[Event], None], measure: Callable[[], float] = time.perf_counter) -> None:
        self._add, self._measure = add, measure
        self._policy: Policy | None = None
        self._learned: Policy | None = None
        self._began: PolicyBegan | None = None
        self._rows: Rows | None = None
        self._capacity, self._kept = 0, frozenset[str]()
        self._seen: list[np.ndarray] = []
        self._since_whole = 0
        self._latency = NotedLatency()
        self._failed = False

    def begins(self, policy: Policy, text: str, layout: KVLayout, now_s: float) -> None:
        """Note the policy that makes the next plans, if it is another one.

        Args:
            policy: The policy.
            text: Text of the policy.
            layout: Layout of the KV cache.
            now_s: The present time, in epoch seconds.
        """
        if policy is self._policy:
            return
        learns, self._policy, self._rows = self._learned is policy, policy, None
        groups = [list(group) for group in layout.groups]
        self._began = PolicyBegan(
            now_s, text, policy.seed, learns, False, groups, layout.lookahead_tokens, layout.max_model_len
        )
        self._add(self._began)

    def learned(self, policy: Policy) -> None:
        """Note that a policy, before it begins, continues with what the policy so far learned."""
        self._learned = policy

    def notify(self, policy: Policy, event: str, rows: Rows, *args: Any) -> None:
        """Report an event to the policy. What it raises is passed on."""
        seen = self._contained(self._changes, rows, args[-1])
        try:
            getattr(policy, event)(rows, *args)
        finally:
            if seen is not None:
                self._contained(self._note_call, event, args, seen)

    def _note_call(self, event: str, args: tuple[Any, ...], seen: RowsSeen) -> None:
        slots, *tokens, now_s = args
        given = _bytes(np.atleast_1d(np.asarray(slots, np.int64)))
        tokens_given = _bytes(np.asarray(tokens[0], np.int64)) if tokens else b""
        self._add(PolicyCalled(now_s, event, given, tokens_given, seen, self._latency.taken()))

    def plan(self, policy: Policy, snapshot: Snapshot, now_s: float) -> Plan:
        """Return the policy's plan for a snapshot. What it raises is passed on."""
        seen = self._contained(self._changes, snapshot.rows, now_s)
        self._latency.engine = snapshot.engine.step_latency
        shown = replace(snapshot, engine=replace(snapshot.engine, step_latency=self._latency))
        holdings: list[tuple[int, dict[int, int]]] | None = None
        if snapshot.holding_of is not None:
            holdings = []
            shown = replace(shown, holding_of=_noted(snapshot.holding_of, holdings))
        began_s, plan = self._measure(), None
        try:
            plan = policy.plan(shown, now_s)
            return plan
        finally:
            took_s = self._measure() - began_s
            if seen is not None:
                self._contained(self._note_plan, snapshot, now_s, seen, holdings, plan, took_s)

    def _contained(self, call: Callable[..., Any], *args: Any) -> Any:
        """Return what a function of this log returns; ``None`` once one has failed."""
        if self._failed:
            self._latency.results.clear()
            return None
        try:
            return call(*args)
        except Exception:
            self._failed = True
            logger.exception("plans are not recorded any more; serving is not affected")
            return None

    def _note_plan(self, *made: Any) -> None:
        self._add(self._made(*made))

    def _made(
        self,
        snapshot: Snapshot,
        now_s: float,
        seen: RowsSeen,
        holdings: list[tuple[int, dict[int, int]]] | None,
        plan: Plan | None,
        took_s: float,
    ) -> PlanMade:
        engine, turns, standing = snapshot.engine, snapshot.turns, snapshot.standing
        swap, drafts = engine.swap, engine.drafts
        return PlanMade(
            now_s,
            seen,
            {name: _plain(getattr(engine, name)) for name in ENGINE_FIGURES},
            None if swap is None else {one.name: _plain(getattr(swap, one.name)) for one in fields(swap)},
            None
            if drafts is None
            else (
                float(drafts.tokens_per_step),
                float(drafts.error),
                float(drafts.promised),
                _bytes(drafts.of_class),
                _bytes(drafts.accepted),
            ),
            (_bytes(turns.aged), turns.period, turns.before_next),
            None if standing is None else (_bytes(standing.level), _bytes(standing.over), _bytes(standing.service_s)),
            (int(snapshot.shared_blocks), float(snapshot.awaited_blocks), float(snapshot.awaited_on_host)),
            self._latency.taken(),
            holdings,
            None if plan is None else plan_fields(plan),
            took_s,
        )

    def _changes(self, rows: Rows, now_s: float) -> RowsSeen:
        """Return what changed in the rows; a policy may read columns that are kept for others, if they are kept."""
        assert self._began is not None
        if rows is not self._rows or rows.capacity != self._capacity or rows.kept != self._kept:
            self._rows, self._capacity, self._kept = rows, rows.capacity, rows.kept
            self._since_whole = WHOLE_EVERY
        blocks = rows.blocks()
        before, self._seen = self._seen, [columns.copy() for _, columns in blocks]
        self._since_whole += 1
        if self._since_whole > WHOLE_EVERY:
            self._since_whole = 0
            self._add(msgspec.structs.replace(self._began, at_s=now_s, goes_on=True))
            whole = [(number, names, b"", one.tobytes()) for number, (names, one) in enumerate(blocks)]
            return RowsSeen(rows.capacity, rows.last_seq, True, whole)
        changes: list[tuple[int, list[str], bytes, bytes]] = []
        for number, (old, new) in enumerate(zip(before, self._seen, strict=True)):
            changed = np.flatnonzero(_bits(old) != _bits(new))
            if changed.size:
                changes.append((number, [], changed.astype(np.int32).tobytes(), new.ravel()[changed].tobytes()))
        return RowsSeen(rows.capacity, rows.last_seq, False, changes)


def plan_fields(
    plan: Plan,
) -> tuple[bytes | None, bytes | None, bytes, bytes, int | None, int | None, int | None]:
    """Return a plan as plain values, see :class:`~sloserve.engine.recording.events.PlanMade`."""
    limits = (plan.max_running, plan.token_budget, plan.prefill_chunk_tokens)
    running, waiting = (None if slots is None else _bytes(slots) for slots in (plan.running, plan.waiting))
    whole = tuple(None if limit is None else int(limit) for limit in limits)
    return running, waiting, _bytes(plan.preempt), _bytes(plan.pause), *whole  # type: ignore[return-value]


def _noted(holding_of: Callable[[int], Holding], results: list[tuple[int, dict[int, int]]]) -> Any:
    def noted(slot: int) -> Holding:
        found = holding_of(slot)
        results.append((int(found.own), {int(block): int(count) for block, count in found.shared.items()}))
        return found

    return noted


def _bits(columns: np.ndarray) -> np.ndarray:
    """Return columns in a form in which equal bits are equal: nan is not equal to itself."""
    return columns.view(np.int64) if columns.dtype == np.float64 else columns


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _bytes(slots: IntArray | np.ndarray) -> bytes:
    return np.ascontiguousarray(slots).tobytes()
