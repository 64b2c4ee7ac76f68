"""What one step may compute: prompt tokens that its running requests can bear, and drafts that its decodes verify."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.requests import slots_found
from sloserve.core.rows import State
from sloserve.engine.draft_control import choose_drafts, without_drafts
from sloserve.engine.planned_step import Step
from sloserve.engine.port import EnginePort, EngineRequest
from sloserve.engine.request_table import RequestTable
from sloserve.lso.decode_first import service_order, unfinished
from sloserve.lso.lengths import Lengths
from sloserve.lso.standing import Standing
from sloserve.lso.step_budget import MOST_PROMPTS, StepBudget
from sloserve.scheduler.policy import EngineFacts, Plan


def limit_tokens(
    step: Step,
    budget: StepBudget,
    table: RequestTable,
    port: EnginePort,
    *,
    counters: Counter[str],
    facts: Callable[[], EngineFacts],
    standing: Callable[[], Standing | None],
    may_pause: bool,
    aged: IntArray,
    now_s: float,
) -> Step:
    """Return ``step`` with the tokens that the running requests can bear, whether its plan is fresh or not.

    Its prompts in progress let others pass where the step budget says so.

    Args:
        step: The step, as it was planned.
        budget: The step budget.
        table: Rows of the requests.
        port: The engine.
        counters: Counters of what happens.
        facts: Function that returns what the engine can do now, if the step does not say it.
        standing: Returns the standing of the tenants.
        may_pause: Whether the engine can leave a running request out of a step.
        aged: Slots of the waiting requests that ageing moved forward.
        now_s: The present time, in epoch seconds.
    """
    plan, engine = step.plan, step.engine
    admits = MOST_PROMPTS
    if plan.max_running is not None:
        admits = max(int(plan.max_running) - table.num_running + plan.preempt.size, 0)
    table.unblock()
    may_begin = plan.preempt.size or (admits and table.num_waiting and port.free_slots)
    if not (port.takes_back_computed or table.has_prompts() or may_begin):
        budget.nothing_to_compute()
        return step
    engine = engine or facts()
    if engine.defers_prompts:  # what they are owed, they are owed later
        return step
    if not step.is_read:
        table.read_running()
    order = _order_of_service(table, port, plan.running)
    if plan.preempt.size:
        order = order[~table.rows.marks(plan.preempt)[order]]
    served = order[~table.rows.marks(plan.pause)[order]] if plan.pause.size else order
    waiting = plan.waiting
    if waiting is None:  # one more than can begin says that not all can
        waiting = _admissible(table, port, min(engine.free_slots + 1, admits + 1, MOST_PROMPTS))
    if engine.encoder_tokens is not None:
        table.note_items(waiting[: min(engine.free_slots, admits, MOST_PROMPTS)])
    in_turn = np.concatenate((aged, table.marks.protected_running())) if table.marks.has_protected else aged
    passing = None
    if may_pause and table.has_prompts():
        passing = budget.turns(table.rows, served, waiting, in_turn, engine, now_s, standing, admits=admits)
    if passing is not None:
        served = served[~table.rows.marks(passing.held_back)[served]]
        plan = step.plan = replace(plan, pause=np.concatenate((plan.pause, passing.held_back)))
    tokens = budget.tokens(table.rows, served, waiting, in_turn, engine, now_s, admits=admits)
    if passing is not None:
        decodes = served.size - int(np.count_nonzero(unfinished(table.rows, served)))
        taken = decodes * engine.decode_tokens
        tokens = min(taken + passing.tokens, engine.token_budget if tokens is None else tokens)
        if tokens > taken:
            budget.prompt_turns.begins(passing)
    if tokens is None:
        return step
    counters["limited_steps"] += 1
    tokens += _untracked_running(table, port) * engine.decode_tokens
    if plan.token_budget is not None:
        tokens = min(tokens, plan.token_budget)
    # Whatever stands behind an unfinished prompt gets nothing of a limited step.
    running = service_order(table.rows, order, engine, tokens)
    step.plan = Plan(
        running, plan.waiting, plan.preempt, plan.pause, plan.max_running, tokens, plan.prefill_chunk_tokens
    )
    return step


def trim_drafts(
    step: Step,
    rule: str,
    table: RequestTable,
    port: EnginePort,
    *,
    engine: EngineFacts,
    lengths: Lengths | None,
    now_s: float,
) -> Step:
    """Return ``step`` with the drafts that its decodes verify.

    Args:
        step: The step.
        rule: The policy's option ``drafts``: ``load`` or ``slack``.
        table: Rows of the requests.
        port: The engine.
        engine: What the engine can do now.
        lengths: Predicted lengths of outputs; ``None`` if nothing is known.
        now_s: The present time, in epoch seconds.
    """
    plan = step.plan
    served = table.rows.slots_in(State.RUNNING) if step.is_read else table.read_running()
    if plan.preempt.size or plan.pause.size:
        served = served[~table.rows.marks(plan.preempt, plan.pause)[served]]
    step.drafts = choose_drafts(
        table.rows,
        served,
        plan,
        engine,
        now_s,
        by_slack=rule == "slack",
        drafts_of=lambda slots: port.drafts_ready(slots, table),
        first_waiting=lambda most: _admissible(table, port, most) if plan.waiting is None else plan.waiting[:most],
        expected_left=lambda slots: np.ones(slots.size) if lengths is None else lengths.left(table.rows, slots),
    )
    if step.drafts is not None:
        step.plan = without_drafts(plan, engine, step.drafts)
    return step


def queued_slots(table: RequestTable, queue: Iterable[EngineRequest], most: int | None = None) -> IntArray:
    """Return the first ``most`` requests with a row in one of the engine's queues, in order; ``None`` for all."""
    return slots_found(table.slot_of, queue, "request_id", most)


def _untracked_running(table: RequestTable, port: EnginePort) -> int:
    """Return how many requests without a row run; most of them decode, as sessions with a computed input do."""
    return 0 if table.has_all(port.requests) else len(port.running) - table.num_running


def _admissible(table: RequestTable, port: EnginePort, most: int) -> IntArray:
    """Return the first ``most`` of the engine's queue that could be admitted: it holds blocked ones, too."""
    blocked = table.unblock()
    found = queued_slots(table, port.waiting, most + blocked)
    if blocked:
        found = found[table.rows.state[found] != State.BLOCKED][:most]
    return found


def _order_of_service(table: RequestTable, port: EnginePort, first: IntArray | None) -> IntArray:
    """Return the slots of all running requests in order of service: ``first``, then the others as queued."""
    if first is not None and first.size == table.num_running:
        return first
    present = table.running_in_order(port.running)
    if first is None or not first.size:
        return present
    return np.concatenate((first, present[~table.rows.marks(first)[present]]))
