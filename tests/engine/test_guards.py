"""The guards by themselves, without vLLM: planning cost, ageing, and plans that would leave nothing to do."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.arrays import IntArray
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.rows import COLUMNS, Rows, State
from sloserve.core.slo import ClassTable, SLOClass
from sloserve.engine.guards import (
    Ageing,
    PlanBudget,
    drop_forbidden,
    ensure_progress,
    keep_idle_victims,
    keep_prompts_whole,
    spare_decodes,
)
from sloserve.scheduler.policy import EngineFacts, Plan, Snapshot, check_plan

ENGINE = EngineFacts(100, 100, KVLayout.full(16), 8, 2048, 8)


class Meter:
    """A cost meter that tests set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def plan(self, budget: PlanBudget, now_s: float, cost_s: float, charged_s: float | None = None) -> float:
        budget.start()
        self.now_s += cost_s
        return budget.stop(now_s, charged_s=charged_s)


def test_a_plan_must_be_paid_for_before_the_next() -> None:
    meter = Meter()
    budget = PlanBudget(0.05, meter)
    assert budget.allows(0.0)
    assert meter.plan(budget, 0.0, 0.001) == pytest.approx(0.001)
    assert not budget.allows(0.0199)
    assert budget.allows(0.0201)
    # A cheaper plan is paid for sooner; a free one at once.
    meter.plan(budget, 1.0, 0.0001)
    assert not budget.allows(1.0019) and budget.allows(1.0021)
    meter.plan(budget, 2.0, 0.0)
    assert budget.allows(2.0)


def test_a_share_of_one_still_waits_for_as_long_as_the_plan_took() -> None:
    meter = Meter()
    budget = PlanBudget(1.0, meter)
    meter.plan(budget, 5.0, 0.25)
    assert not budget.allows(5.2) and budget.allows(5.25)


def test_a_given_cost_is_charged_and_the_measured_one_reported() -> None:
    meter = Meter()
    budget = PlanBudget(0.5, meter)
    assert meter.plan(budget, 0.0, 7.0, 0.0) == 7.0
    assert budget.allows(0.0)
    meter.plan(budget, 0.0, 0.0, 1.0)
    assert not budget.allows(1.9) and budget.allows(2.0)


@given(st.lists(st.tuples(st.floats(0.0, 0.1), st.floats(0.0, 0.01)), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_planning_never_takes_more_than_its_share_beyond_the_last_plan(
    steps: list[tuple[float, float]], share: float
) -> None:
    meter = Meter()
    budget = PlanBudget(share, meter)
    now_s, spent_s, last_s = 0.0, 0.0, 0.0
    for step_s, cost_s in steps:
        if budget.allows(now_s):
            meter.plan(budget, now_s, cost_s)
            spent_s, last_s = spent_s + cost_s, cost_s
        now_s += step_s
    assert spent_s - last_s <= now_s * share + 1e-9


CLASSES = ClassTable(
    {"fast": SLOClass("fast", 0, aged_after_s=10.0), "slow": SLOClass("slow", 1, aged_after_s=50.0)}, "fast"
)


def waiting_rows(*arrivals_and_class: tuple[float, int]) -> Rows:
    rows = Rows(frozenset(COLUMNS))
    for arrival_s, class_id in arrivals_and_class:
        rows.add(arrival_s=arrival_s, class_id=class_id)
    return rows


def test_aged_by_the_age_of_its_own_class_oldest_first() -> None:
    rows = waiting_rows((0.0, 1), (80.0, 0), (40.0, 0), (95.0, 0), (60.0, 1))
    rows.seq[[1, 2]] = rows.seq[[2, 1]]
    waiting = rows.slots_in(State.WAITING)
    assert Ageing(0.1, CLASSES).turns(rows, waiting, 100.0).aged.tolist() == [0, 2, 1]
    assert Ageing(0.0, CLASSES).turns(rows, waiting, 1000.0).aged.size == 0


@pytest.mark.parametrize(("admitted", "before_next"), [([], 3), ([0, 1], 1), ([0] * 9, 0), ([0, 8, 1], 2), ([8], 3)])
def test_the_admission_of_the_oldest_starts_the_count_anew(admitted: list[int], before_next: int) -> None:
    ageing = Ageing(0.25, CLASSES)
    aged = np.array([8, 9])
    found = ageing.admitted(np.array(admitted, np.int64), aged)
    assert found.tolist() == [slot for slot in admitted if slot in (8, 9)]
    rows = waiting_rows((0.0, 0))
    turns = ageing.turns(rows, np.array([0]), 100.0)
    assert (turns.aged.tolist(), turns.period, turns.before_next) == ([0], 4, before_next)


@pytest.mark.parametrize(("held", "others", "before_next"), [(0, 90, 0), (5, 95, 0), (6, 94, 1), (9, 0, 1)])
def test_no_turn_while_aged_requests_hold_more_than_their_share_of_the_kv(
    held: int, others: int, before_next: int
) -> None:
    rows = waiting_rows((0.0, 0))
    protected, other = (rows.add(state=State.RUNNING, kv_blocks=blocks) for blocks in (held, others))
    ageing = Ageing(0.05, CLASSES)
    ageing.admitted(np.array([9] * 19), np.array([0]))
    turns = ageing.turns(rows, np.array([0]), 100.0, np.array([protected, other]), np.array([protected]))
    assert (turns.aged.tolist(), turns.before_next) == ([0], before_next)
    assert ageing.turns(rows, np.array([0]), 100.0, np.array([other])).before_next == 0  # none of them runs


@given(
    st.integers(0, 2**32), st.sampled_from([0.1, 0.25, 0.5, 1.0]), st.integers(1, 8), st.integers(0, 6), st.booleans()
)
def test_bounded_overtaking_whatever_the_policy_ranks_first(
    seed: int, share: float, backlog: int, named: int, newest_first: bool
) -> None:
    """At most (k + 1) * period are admitted before a request that became aged with k aged ones before it."""
    rng = np.random.default_rng(seed)
    ageing = Ageing(share, CLASSES)
    assert ageing.period is not None
    rows = waiting_rows(*[(0.0, 0)] * backlog)
    limit: dict[int, int] = {}
    overtaken: dict[int, int] = {}
    for now_s in range(1, 40):
        for _ in range(int(rng.integers(5))):
            rows.add(arrival_s=float(now_s), class_id=1)
        waiting = rows.slots_in(State.WAITING)
        turns = ageing.turns(rows, waiting, float(now_s))
        aged = turns.aged
        for k, slot in enumerate(aged.tolist()):
            limit.setdefault(slot, (k + 1) * ageing.period)
            overtaken.setdefault(slot, 0)
        # The newest first, or any order: policies rank aged requests too, only not the oldest first.
        ranked = waiting[::-1] if newest_first else rng.permutation(waiting)
        woven = turns.weave(ranked[:named])
        order = np.concatenate([woven, waiting[~np.isin(waiting, woven)]])
        assert sorted(order.tolist()) == waiting.tolist()
        places, oldest_first = woven.tolist(), aged.tolist()
        for i, slot in enumerate(ranked[:named].tolist()):
            if slot in oldest_first:
                older = oldest_first[: oldest_first.index(slot)]
                assert sum(s not in older for s in places[: places.index(slot)]) <= i
        taken = order[: int(rng.integers(4))]
        rows.state[taken] = State.RUNNING
        ageing.admitted(taken, aged)
        for slot in taken.tolist():
            limit.pop(slot, None)
            for other in limit:
                overtaken[other] += 1
        assert all(overtaken[slot] <= most for slot, most in limit.items())


def engine_state(running: Sequence[Any], waiting: Sequence[Any]) -> Snapshot:
    """running: (preemptable, pausable) of each; waiting: state of each. Slots count from 0, running ones first."""
    rows = Rows(frozenset(COLUMNS))
    for preemptable, pausable in running:
        rows.add(state=State.RUNNING, preemptable=preemptable, pausable=pausable)
    for state in waiting:
        rows.add(state=state)
    return Snapshot(rows, rows.slots_in(State.WAITING, State.PREEMPTED), rows.slots_in(State.RUNNING), ENGINE)


FREE, PINNED = (True, True), (False, False)


def test_drop_forbidden_drops_what_must_not_be_touched() -> None:
    at = engine_state([FREE, PINNED, FREE], [])
    plan = Plan(preempt=np.array([0, 1]), pause=np.array([0, 1, 2]))
    made = drop_forbidden(plan, at, may_pause=True)
    assert (made.preempt.tolist(), made.pause.tolist()) == ([0], [2])
    made = drop_forbidden(plan, at, may_pause=False)
    assert (made.preempt.tolist(), made.pause.tolist()) == ([0], [])
    made = drop_forbidden(plan, at, may_pause=True, may_preempt=False)
    assert (made.preempt.tolist(), made.pause.tolist()) == ([], [0, 2])


def test_drop_forbidden_hands_back_the_same_plan_where_nothing_is_forbidden() -> None:
    at = engine_state([FREE, FREE], [])
    for plan in (Plan.IDENTITY, Plan(preempt=np.array([0]), pause=np.array([1]))):
        assert drop_forbidden(plan, at, may_pause=True) is plan


def test_ensure_progress_changes_nothing_while_somebody_runs() -> None:
    at = engine_state([FREE] * 3, [])
    for plan in (Plan.IDENTITY, Plan(preempt=np.array([0]), pause=np.array([1])), Plan(pause=np.array([0, 2]))):
        assert ensure_progress(plan, at) is plan


def test_ensure_progress_lifts_the_pauses_where_all_that_stay_are_paused() -> None:
    made = ensure_progress(Plan(preempt=np.array([0]), pause=np.array([1, 2])), engine_state([FREE] * 3, []))
    assert (made.preempt.tolist(), made.pause.tolist()) == ([0], [])


def test_ensure_progress_lets_all_go_for_one_that_can_be_admitted_at_once() -> None:
    made = ensure_progress(Plan(preempt=np.array([0, 1])), engine_state([FREE] * 2, [State.WAITING]))
    assert made.preempt.tolist() == [0, 1]


def test_ensure_progress_keeps_the_oldest_where_only_preempted_ones_would_be_left() -> None:
    at = engine_state([FREE] * 2, [State.PREEMPTED])
    at.rows.seq[[0, 1]] = [5, 3]
    made = ensure_progress(Plan(preempt=np.array([0, 1]), waiting=np.array([1, 2, 0])), at)
    assert made.preempt.tolist() == [0]
    assert made.waiting is not None and made.waiting.tolist() == [2, 0]


def prompts_and_decodes(prompts: int, decodes: int) -> Snapshot:
    at = engine_state([PINNED] * (prompts + decodes), [])
    at.rows.prompt_tokens[: prompts + decodes] = 50
    at.rows.computed_tokens[prompts : prompts + decodes] = 50
    return at


@pytest.mark.parametrize(
    ("protected", "planned", "chunk"),
    [
        ([], Plan(), None),
        # Those who decode take one token each, wherever they stand.
        ([2, 3], Plan(), None),
        ([0], Plan(), 2048 - 6),
        ([0, 4], Plan(), 2048 - 6),
        ([0, 1], Plan(), (2048 - 6) // 2),
        ([0], Plan(token_budget=100), 94),
        ([0], Plan(token_budget=10_000), 2048 - 6),
        ([0], Plan(prefill_chunk_tokens=100), 100),
        ([0], Plan(prefill_chunk_tokens=5000), 2048 - 6),
        ([0], Plan(token_budget=4), 1),
    ],
)
def test_protected_prompts_leave_each_decode_its_token(protected: list[int], planned: Plan, chunk: int | None) -> None:
    at = prompts_and_decodes(2, 6)
    made = spare_decodes(planned, at, np.array(protected, np.int64))
    check_plan(made, at)
    assert made.prefill_chunk_tokens == chunk
    assert chunk is not None or made is planned


def test_no_chunk_of_a_protected_prompt_ends_inside_a_multimodal_item() -> None:
    at, both = prompts_and_decodes(2, 6), np.array([0, 1])
    for item_tokens, chunk in ((1000, 1021), (1500, 1500), (4000, 2042)):
        at.rows.item_tokens[1] = item_tokens
        assert spare_decodes(Plan(), at, both).prefill_chunk_tokens == chunk


@pytest.mark.parametrize(
    ("facts", "first", "victims"),
    [
        ({}, 2, [0]),
        ({"defers_prompts": True}, 2, []),
        ({"encoder_tokens": 99}, 2, []),  # the encoder has no room for the item of the first
        ({"encoder_tokens": 100}, 2, [0]),
        ({"encoder_tokens": 0}, 3, [0]),  # cached KV covers the item of the first
        ({"encoder_tokens": 99}, None, [0]),  # the engine's own order, which the plan does not say
    ],
)
def test_nobody_is_preempted_for_a_prompt_that_the_next_step_does_not_begin(
    facts: dict[str, Any], first: int | None, victims: list[int]
) -> None:
    at = engine_state([FREE, FREE], [State.WAITING, State.WAITING])
    at.rows.item_tokens[2:] = 100
    at.rows.first_item_tokens[2] = at.rows.left_item_tokens[2] = 100
    at = replace(at, engine=replace(ENGINE, **facts))
    waiting = None if first is None else np.array([first, 5 - first])
    made = keep_idle_victims(Plan(waiting=waiting, preempt=np.array([0])), at)
    assert made.preempt.tolist() == victims


def test_no_limit_cuts_a_prompt_where_chunked_prefill_is_off() -> None:
    plan = Plan(pause=np.array([3]), max_running=5, token_budget=100, prefill_chunk_tokens=20)
    at = prompts_and_decodes(2, 6)
    assert keep_prompts_whole(plan, at) is plan
    whole = replace(at, engine=replace(ENGINE, chunked_prefill=False))
    made = keep_prompts_whole(plan, whole)
    assert (made.token_budget, made.prefill_chunk_tokens) == (None, None)
    assert (made.pause.tolist(), made.max_running) == ([3], 5)
    unlimited = Plan(max_running=5)
    assert keep_prompts_whole(unlimited, whole) is unlimited


STATES = st.sampled_from([State.WAITING, State.PREEMPTED, State.BLOCKED])
FLAGS = st.tuples(st.booleans(), st.booleans())


@pytest.mark.slow
@given(st.data(), st.lists(FLAGS, max_size=6), st.lists(STATES, max_size=4), st.booleans())
def test_something_can_always_be_scheduled(
    data: st.DataObject, running: list[Any], waiting: list[State], may_pause: bool
) -> None:
    at = engine_state(running, waiting)

    def some(slots: IntArray) -> IntArray:
        return np.array(data.draw(st.permutations([s for s in slots.tolist() if data.draw(st.booleans())])), np.int64)

    plan = Plan(preempt=some(at.running), pause=some(at.running))
    check_plan(plan, at)
    made = ensure_progress(drop_forbidden(plan, at, may_pause=may_pause), at)
    check_plan(made, at)

    assert set(made.preempt.tolist()) <= set(plan.preempt.tolist()) and set(made.pause.tolist()) <= set(
        plan.pause.tolist()
    )
    assert not set(made.preempt.tolist()) & set(made.pause.tolist())
    assert at.rows.preemptable[made.preempt].all() and at.rows.pausable[made.pause].all()
    assert may_pause or not made.pause.size
    served = set(at.running.tolist()) - set(made.preempt.tolist()) - set(made.pause.tolist())
    admissible = (at.rows.state[at.waiting] == State.WAITING).any() and not made.pause.size
    assert not at.running.size or served or admissible


def test_ages_of_classes_may_change_while_turns_are_counted() -> None:
    ageing, rows = Ageing(0.25, CLASSES), waiting_rows((0.0, 0))
    ageing.admitted(np.array([9, 9]), np.array([0]))
    assert ageing.turns(rows, np.array([0]), 9.0).aged.size == 0
    sooner = [SLOClass(one.name, one.rank, one.targets, aged_after_s=5.0) for one in CLASSES]
    ageing.follow(ClassTable({one.name: one for one in sooner}, sooner[0].name))
    turns = ageing.turns(rows, np.array([0]), 9.0)
    assert (turns.aged.tolist(), turns.before_next) == ([0], 1)
