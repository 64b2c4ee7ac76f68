"""What a plan may say: each illegal kind is refused with a message that names the field."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.rows import State
from sloserve.scheduler.policy import EngineFacts, Plan, PlanError, Snapshot, check_plan
from tests.chaos import Chaos
from tests.snapshots import make_snapshot

# Slots 0 and 1 run, 2 and 3 wait, 4 was preempted, 5 waits for its grammar; the table has 64 slots.
RUNNING: list[dict[str, Any]] = [{}, {}]
WAITING = [{}, {}, {"state": State.PREEMPTED}, {"state": State.BLOCKED}]


def slots(*values: Any) -> Any:
    return np.array(values)


LEGAL = {
    "identity": Plan.IDENTITY,
    "nothing named": Plan(running=np.empty(0, np.int64), waiting=np.empty(0, np.int64)),
    "part of the queues": Plan(running=slots(1), waiting=slots(4, 2)),
    "preempted one named as waiting": Plan(running=slots(0), waiting=slots(1, 2), preempt=slots(1)),
    "everything": Plan(
        running=slots(1, 0),
        waiting=slots(3, 2, 4),
        pause=slots(0),
        max_running=1,
        token_budget=1,
        prefill_chunk_tokens=1,
    ),
    "limits as numpy integers": Plan(max_running=np.int64(3), token_budget=np.int32(5)),  # type: ignore[arg-type]
    "narrow integers": Plan(running=np.array([1, 0], np.int8)),
}

ILLEGAL = {
    "floats": (Plan(running=slots(0.0, 1.0)), "running: an array of slots is one-dimensional and integer, not float64"),
    "two dimensions": (Plan(preempt=slots([0, 1])), r"preempt: an array of slots is one-dimensional and integer"),
    "negative slot": (Plan(pause=slots(-1)), r"pause: names a slot outside 0\.\.63"),
    "slot past the end": (Plan(running=slots(0, 64)), r"running: names a slot outside 0\.\.63"),
    "running twice": (Plan(running=slots(0, 1, 0)), "running: names a request twice"),
    "waiting twice": (Plan(waiting=slots(2, 2)), "waiting: names a request twice"),
    "preempt twice": (Plan(preempt=slots(1, 1)), "preempt: names a request twice"),
    "running one that waits": (Plan(running=slots(0, 2)), "running: names a request that is not running"),
    "preempt one that waits": (Plan(preempt=slots(3)), "preempt: names a request that is not running"),
    "preempt a free slot": (Plan(preempt=slots(9)), "preempt: names a request that is not running"),
    "pause one that waits": (Plan(pause=slots(4)), "pause: names a request that is not running"),
    "waiting one that runs": (Plan(waiting=slots(0)), "waiting: names a request that is neither waiting nor preempted"),
    "waiting a blocked one": (Plan(waiting=slots(5)), "waiting: names a request that is neither waiting nor preempted"),
    "waiting a free slot": (Plan(waiting=slots(9)), "waiting: names a request that is neither waiting nor preempted"),
    "max_running 0": (Plan(max_running=0), "max_running: 0 leaves the engine nothing to do; the least is 1"),
    "token_budget 0": (Plan(token_budget=0), "token_budget: 0 leaves"),
    "chunk -1": (Plan(prefill_chunk_tokens=-1), "prefill_chunk_tokens: -1 leaves"),
    "half a token": (Plan(token_budget=1.5), "token_budget: 1.5 is not a whole number"),  # type: ignore[arg-type]
    "nan": (Plan(max_running=float("nan")), "max_running: nan is not a whole number"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("plan", LEGAL.values(), ids=LEGAL)
def test_legal(plan: Plan, snapshot: Callable[..., Snapshot]) -> None:
    check_plan(plan, snapshot(WAITING, RUNNING))


@pytest.mark.parametrize(("plan", "message"), ILLEGAL.values(), ids=ILLEGAL)
def test_illegal(plan: Plan, message: str, snapshot: Callable[..., Snapshot]) -> None:
    with pytest.raises(PlanError, match=message):
        check_plan(plan, snapshot(WAITING, RUNNING))


def test_chaos_plans_what_is_legal_unless_it_means_to(snapshot: Callable[..., Snapshot]) -> None:
    at = snapshot(WAITING, RUNNING)
    policy = Chaos(Chaos.Settings(illegal=0.0), seed=1)
    for _ in range(100):
        check_plan(policy.plan(at, 0.0), at)


def test_chaos_gets_to_every_illegal_kind(snapshot: Callable[..., Snapshot]) -> None:
    at = snapshot(WAITING, RUNNING)
    policy = Chaos(Chaos.Settings(illegal=1.0), seed=1)
    messages = set()
    for _ in range(100):
        with pytest.raises((PlanError, RuntimeError)) as refused:
            check_plan(policy.plan(at, 0.0), at)
        messages.add(str(refused.value))
    assert len(messages) == 6


@pytest.mark.parametrize(
    ("facts", "begun"),
    [({}, 3), ({"chunked_prefill": False}, 2), ({"chunk_tokens": 40}, 5), ({"token_budget": 160}, 2)],
)
def test_a_step_begins_the_prompts_that_fit_and_the_part_of_one_more(facts: dict[str, Any], begun: int) -> None:
    """Without chunked prefill the part of one more stays out."""
    engine = EngineFacts(10, 10, KVLayout.full(16), 8, **{"token_budget": 170, **facts}, free_slots=8)
    assert engine.begun(np.array([100, 60, 80, 90, 10])) == begun


@pytest.mark.parametrize(("room", "encoded"), [(None, 4), (0, 1), (49, 1), (50, 3), (79, 3), (80, 4)])
def test_the_encoder_has_room_for_the_items_of_the_first_prompts(room: int | None, encoded: int) -> None:
    engine = EngineFacts(10, 10, KVLayout.full(16), 8, 170, 8, encoder_tokens=room)
    items = np.array([0, 50, 0, 30])
    assert engine.encoded(items, items) == encoded


def test_a_prompt_whose_item_comes_later_begins_without_room_for_it() -> None:
    """The engine computes the text before the item; behind it a prompt that begins with an item finds no room."""
    engine = EngineFacts(10, 10, KVLayout.full(16), 8, 170, 8, encoder_tokens=50)
    assert engine.encoded(np.array([0, 0, 1]), np.array([40, 40, 1])) == 2
    assert engine.encoded(np.array([0, 10, 1]), np.array([40, 10, 1])) == 2


def test_a_forecast_leaves_awaited_blocks_in_the_cache() -> None:
    at = make_snapshot(total_blocks=1000)
    assert at.forecast_blocks(0.01) == pytest.approx(990)
    assert replace(at, awaited_blocks=200.0).forecast_blocks(0.01) == pytest.approx(790)
