"""Promises of KV: what each rule promises, and that admission keeps them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.allocation import admit, exact_blocks, leading, max_blocks, oldest
from sloserve.scheduler.policy import Plan, Snapshot, check_plan
from tests.seeds import seeds

Make = Callable[..., Snapshot]


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "blocks"),
    [(1, 1, 1), (15, 1, 1), (16, 1, 2), (100, 60, 10), (48, 2000, 128), (16000, 16000, 999)],
)
def test_max_allocation_is_prompt_and_max_tokens_and_at_most_the_cache(
    prompt_tokens: int, max_tokens: int, blocks: int, snapshot: Make
) -> None:
    # What has been computed so far makes no difference.
    request = {"prompt_tokens": prompt_tokens, "max_tokens": max_tokens, "output_tokens": 1, "kv_blocks": 1}
    at = snapshot([request])
    assert max_blocks(at.rows, at.waiting, at.engine).tolist() == [blocks]


@pytest.mark.parametrize(
    ("request_", "left", "padding", "blocks"),
    [
        ({"prompt_tokens": 10}, 6.0, 0.0, 1),
        ({"prompt_tokens": 10}, 6.1, 0.0, 2),
        ({"prompt_tokens": 10, "output_tokens": 100}, 20.0, 0.0, 9),  # 130
        ({"prompt_tokens": 10, "output_tokens": 100}, 20.0, 0.5, 12),  # 190
        ({"prompt_tokens": 10, "output_tokens": 100, "max_tokens": 130}, 20.0, 0.5, 9),  # 140
        ({"prompt_tokens": 10, "max_tokens": 30000}, 29000.0, 0.0, 999),
    ],
)
def test_exact_allocation_is_prompt_and_padded_prediction(
    request_: dict[str, Any], left: float, padding: float, blocks: int, snapshot: Make
) -> None:
    at = snapshot([request_])
    assert exact_blocks(at.rows, at.waiting, np.array([left]), padding, at.engine).tolist() == [blocks]


def test_leading_stops_at_the_first_that_does_not_fit() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        blocks = rng.integers(1, 9, rng.integers(0, 9))
        free, most = int(rng.integers(-3, 40)), int(rng.integers(-2, 9))
        fit = 0
        while fit < min(most, blocks.size) and blocks[: fit + 1].sum() <= free:
            fit += 1
        assert leading(blocks, free, most) == fit


def test_oldest_are_the_first_by_arrival(snapshot: Make) -> None:
    at = snapshot([{}] * 5)
    at.rows.seq[:5] = [7, 3, 9, 1, 5]
    assert oldest(at.rows, at.waiting, 3).tolist() == [3, 1, 4]
    assert oldest(at.rows, at.waiting, 9).tolist() == [3, 1, 4, 0, 2]


@pytest.mark.parametrize("seed", seeds(5, 20))
def test_admission_never_promises_more_than_there_is(seed: int, snapshot: Make) -> None:
    rng = np.random.default_rng(seed)
    requests = [
        {"prompt_tokens": int(p), "max_tokens": int(m)} for p, m in zip(*rng.integers(1, 900, (2, 12)), strict=True)
    ]
    runs = int(rng.integers(0, 4))
    at = snapshot(requests[runs:], requests[:runs], total_blocks=int(rng.integers(20, 300)), max_num_seqs=8)
    promised = int(max_blocks(at.rows, at.running, at.engine).sum())
    batch = int(rng.integers(0, 6))
    order = rng.permutation(at.waiting)
    blocks = max_blocks(at.rows, order, at.engine)
    plan = admit(at, order, lambda slots: max_blocks(at.rows, slots, at.engine), promised, batch)
    check_plan(plan, at)
    assert plan.waiting is not None and plan.max_running is not None
    admitted = plan.max_running - runs
    assert plan.waiting.tolist() == order.tolist() and 0 <= admitted <= at.engine.free_slots
    if admitted:
        assert promised + blocks[:admitted].sum() <= at.engine.capacity_blocks
        assert not batch or plan.max_running <= batch
    # Whoever is next was refused for a reason.
    room = admitted < at.engine.free_slots and (not batch or runs + admitted < batch)
    if room and admitted < order.size:
        assert promised + blocks[: admitted + 1].sum() > at.engine.capacity_blocks
    if not runs:
        assert admitted >= 1


def test_one_that_could_fill_the_cache_is_admitted_alone(snapshot: Make) -> None:
    big = {"prompt_tokens": 100, "max_tokens": 100000}
    at = snapshot([big, {}], total_blocks=10)
    plan = admit(at, at.waiting, lambda slots: max_blocks(at.rows, slots, at.engine), 0)
    assert plan.max_running == 1
    beside = snapshot([big], [{}], total_blocks=100)
    promised = int(max_blocks(beside.rows, beside.running, beside.engine).sum())
    plan = admit(beside, beside.waiting, lambda slots: max_blocks(beside.rows, slots, beside.engine), promised)
    assert plan.max_running == 1


def test_nothing_is_planned_where_nobody_is(snapshot: Make) -> None:
    at = snapshot()
    assert admit(at, at.waiting, lambda slots: slots, 0) is Plan.IDENTITY
