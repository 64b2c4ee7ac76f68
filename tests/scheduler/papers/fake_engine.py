"""An engine as a policy sees vLLM's: blocks given out as tokens come, chunked prompts, steps scheduled one ahead.

Where blocks run out, the last that runs is preempted, as vLLM does; such failures of allocation are counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.rows import COLUMNS, Rows, State
from sloserve.scheduler.policy import EngineFacts, Plan, Policy, Snapshot, check_plan

STEP_S = 0.025
EPOCH_S = 1.7e9


@dataclass(frozen=True)
class Task:
    """A request. max_tokens: ``None`` for as long as its reply is."""

    prompt_tokens: int
    output_tokens: int
    arrival_step: int = 0
    e2e_s: float = np.nan
    max_tokens: int | None = None
    pausable: bool = True
    preemptable: bool = True


class FakeEngine:
    """Runs ``tasks``, ascending in arrival, under ``policy``.

    free_blocks, ended (places of tasks, in the order of their ends), failures: what came of it. on_plan: is called with
    each snapshot and plan.
    """

    def __init__(
        self,
        policy: Policy,
        tasks: Sequence[Task],
        *,
        blocks: int = 60,
        block_size: int = 4,
        slots: int = 16,
        budget: int = 48,
        on_plan: Callable[[Snapshot, Plan], None] | None = None,
    ) -> None:
        self.policy, self.tasks = policy, tasks
        self.blocks = self.free_blocks = blocks
        self.block_size, self.slots, self.budget = block_size, slots, budget
        self.rows = Rows(frozenset(COLUMNS))
        self.step_number = self.failures = 0
        self.ended: list[int] = []
        self._on_plan = on_plan
        self._task: dict[int, int] = {}
        self._running: list[int] = []
        self._waiting: list[int] = []
        self._held: dict[int, int] = {}
        self._in_flight: list[int] = []
        self._coming = 0

    def run(self, most_steps: int = 20_000) -> "FakeEngine":
        """To the end of all tasks."""
        while len(self.ended) < len(self.tasks):
            assert self.step_number < most_steps, "no progress"
            self.step()
        return self

    def place_of(self, slot: int) -> int:
        """The task in a slot."""
        return self._task[slot]

    def step(self) -> None:
        """Plans and schedules one step, then learns what the one before it has put out."""
        now_s = EPOCH_S + self.step_number * STEP_S
        while self._coming < len(self.tasks) and self.tasks[self._coming].arrival_step <= self.step_number:
            self._arrive(self._coming, now_s)
            self._coming += 1
        plan = Plan.IDENTITY
        if self._task:
            snapshot = self._snapshot()
            plan = self.policy.plan(snapshot, now_s)
            check_plan(plan, snapshot)
            if self._on_plan is not None:
                self._on_plan(snapshot, plan)
        before, self._in_flight = self._in_flight, self._schedule(plan)
        self._learn(before, now_s)
        self.step_number += 1

    def _arrive(self, place: int, now_s: float) -> None:
        task = self.tasks[place]
        slot = self.rows.add(
            arrival_s=now_s,
            e2e_s=task.e2e_s,
            prompt_tokens=task.prompt_tokens,
            max_tokens=task.max_tokens or task.output_tokens,
            oracle_output_tokens=task.output_tokens,
            pausable=task.pausable,
            preemptable=task.preemptable,
        )
        self._task[slot] = place
        self._waiting.append(slot)
        self.policy.arrived(self.rows, slot, now_s)

    def _snapshot(self) -> Snapshot:
        facts = EngineFacts(
            free_blocks=self.free_blocks,
            total_blocks=self.blocks + 1,
            layout=KVLayout.full(self.block_size),
            max_num_seqs=self.slots,
            token_budget=self.budget,
            free_slots=max(self.slots - len(self._running), 0),
        )
        waiting = self.rows.slots_in(State.WAITING, State.PREEMPTED)
        return Snapshot(self.rows, waiting, self.rows.slots_in(State.RUNNING), facts)

    def _schedule(self, plan: Plan) -> list[int]:
        for slot in plan.preempt.tolist():
            self._preempt(slot)
        self._running = _in_front(self._running, plan.running)
        self._waiting = _in_front(self._waiting, plan.waiting)
        most = self.slots if plan.max_running is None else min(self.slots, plan.max_running)
        left = min(self.budget, plan.token_budget or self.budget)
        sampling: list[int] = []
        failures = self.failures
        for slot in list(self._running):
            if slot in plan.pause or slot not in self._running:
                continue
            tokens = min(self._wanted(slot), left)
            if tokens and self._allocate(slot, tokens):
                left -= tokens
                sampling += [slot] * (self._wanted(slot) == 0)
        while self._waiting and len(self._running) < most and left and self.failures == failures:
            slot = self._waiting[0]
            if slot in self._in_flight:
                break  # what came in for it before it was preempted has to arrive first
            tokens = min(self._wanted(slot), left)
            if self._blocks_for(slot, tokens) > self.free_blocks:
                break
            self._waiting.pop(0)
            self._running.append(slot)
            self.rows.state[slot] = State.RUNNING
            self._allocate(slot, tokens)
            left -= tokens
            sampling += [slot] * (self._wanted(slot) == 0)
        return sampling

    def _wanted(self, slot: int) -> int:
        rows = self.rows
        output = int(rows.output_tokens[slot]) + (slot in self._in_flight)
        if output >= rows.max_tokens[slot]:
            return 0
        return int(rows.prompt_tokens[slot]) + output - int(rows.computed_tokens[slot])

    def _blocks_for(self, slot: int, tokens: int) -> int:
        return -(-(int(self.rows.computed_tokens[slot]) + tokens) // self.block_size) - self._held.get(slot, 0)

    def _allocate(self, slot: int, tokens: int) -> bool:
        while (needed := self._blocks_for(slot, tokens)) > self.free_blocks:
            self.failures += 1
            victim = self._running[-1]
            self._preempt(victim)
            if victim == slot:
                return False
        self.free_blocks -= needed
        self._held[slot] = self._held.get(slot, 0) + needed
        self.rows.computed_tokens[slot] += tokens
        self.rows.kv_blocks[slot] = self._held[slot]
        return True

    def _preempt(self, slot: int) -> None:
        self._running.remove(slot)
        self._waiting.insert(0, slot)
        self.free_blocks += self._held.pop(slot, 0)
        self.rows.state[slot] = State.PREEMPTED
        self.rows.computed_tokens[slot] = self.rows.kv_blocks[slot] = 0

    def _learn(self, sampled: list[int], now_s: float) -> None:
        for slot in sampled:
            if slot not in self._task:
                continue
            self.rows.output_tokens[slot] += 1
            if self.rows.output_tokens[slot] == self.tasks[self._task[slot]].output_tokens:
                self._end(slot, now_s)

    def _end(self, slot: int, now_s: float) -> None:
        self.policy.finished(self.rows, slot, now_s)
        queue = self._running if slot in self._running else self._waiting
        queue.remove(slot)
        self._in_flight = [one for one in self._in_flight if one != slot]
        self.free_blocks += self._held.pop(slot, 0)
        self.ended.append(self._task.pop(slot))
        self.rows.free(slot)


def _in_front(present: list[int], named: object) -> list[int]:
    first = [] if named is None else [int(one) for one in np.asarray(named) if int(one) in present]
    return first + [one for one in present if one not in first]
