"""Ranked service: who is served, who may stay, who makes room, against a plain loop."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.allocation import max_blocks
from benchmarks.baselines.preemptive import divide, plan_ranked
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.scheduler.policy import EngineFacts, Plan, Snapshot, check_plan
from tests.seeds import seeds

Make = Callable[..., Snapshot]


def plain_division(
    blocks: list[int], held: list[int], runs: list[bool], capacity: int, slots: int, most: int
) -> tuple[list[int], list[int]]:
    served: list[int] = []
    stays: list[int] = []
    for i, need in enumerate(blocks):
        if len(served) == min(most, slots) or sum(blocks[j] for j in served) + need > capacity:
            break
        served.append(i)
    used = sum(blocks[j] for j in served)
    for i in range(len(served), len(blocks)):
        if runs[i]:
            used += max(held[i], 1)
            if used > capacity or len(served) + len(stays) == slots:
                break
            stays.append(i)
    return served, stays


@pytest.mark.parametrize("seed", seeds(10, 100))
def test_division_is_that_of_a_plain_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, slots = int(rng.integers(1, 12)), int(rng.integers(1, 9))
    engine = EngineFacts(0, int(rng.integers(12, 60)), KVLayout.full(16), slots, 64, 0)
    blocks = rng.integers(1, 12, n)
    held = np.minimum(rng.integers(0, 12, n), blocks)
    runs = rng.random(n) < 0.5
    batch = int(rng.integers(1, 6)) if seed % 2 else None
    found = divide(blocks, held, runs, engine, batch=batch)
    served, stays = plain_division(
        blocks.tolist(), held.tolist(), runs.tolist(), engine.capacity_blocks, slots, slots if batch is None else batch
    )
    assert np.flatnonzero(found.served).tolist() == served and len(served) >= 1
    assert np.flatnonzero(found.stays).tolist() == stays


def ranked(at: Snapshot, *keys: float, **options: Any) -> Plan:
    """``keys`` by slot: first the running requests, then the waiting ones."""
    by_slot = np.array(keys)
    made = plan_ranked(at, by_slot[at.waiting], by_slot[at.running], **options)
    check_plan(made, at)
    return made


def order(slots: Any) -> list[int]:
    return [int(s) for s in slots]


FOUR = {"prompt_tokens": 32, "max_tokens": 32, "kv_blocks": 2}
"""Four blocks promised, two held."""


def test_takes_the_room_from_the_last(snapshot: Make) -> None:
    at = snapshot([FOUR, FOUR], [FOUR, FOUR, FOUR], total_blocks=13)
    made = ranked(at, 5, 1, 3, 2, 4)
    assert (order(made.running), order(made.waiting), order(made.preempt)) == ([1, 2], [3], [0])
    assert made.max_running == 3 and not made.pause.size


def test_one_that_waits_for_more_than_there_is_takes_nothing(snapshot: Make) -> None:
    # The waiting one ranks before slot 1, and does not fit even without it.
    at = snapshot([{"prompt_tokens": 16, "max_tokens": 144}], [FOUR, FOUR], total_blocks=13)
    made = ranked(at, 1, 3, 2)
    assert (order(made.running), order(made.preempt), made.max_running) == ([0, 1], [], 2)


def test_sits_out_with_its_kv_where_there_is_room(snapshot: Make) -> None:
    at = snapshot([FOUR, FOUR], [FOUR, FOUR], total_blocks=13)
    # 4 + 4 are promised to those served, 2 + 2 held by the others.
    made = ranked(at, 3, 4, 1, 2, batch=2, pause=True)
    assert (order(made.waiting), order(made.pause), order(made.preempt)) == ([2, 3], [0, 1], [])
    assert made.max_running == 4
    made = ranked(snapshot([FOUR, FOUR], [FOUR, FOUR], total_blocks=12), 3, 4, 1, 2, batch=2, pause=True)
    assert (order(made.pause), order(made.preempt)) == ([0], [1])


def test_slots_are_room_too(snapshot: Make) -> None:
    at = snapshot([FOUR], [FOUR, FOUR], max_num_seqs=2)
    made = ranked(at, 1, 3, 2)
    assert (order(made.preempt), made.max_running) == ([1], 2)


def test_ties_end_in_seq(snapshot: Make) -> None:
    at = snapshot([FOUR, FOUR], [FOUR, FOUR], total_blocks=9)
    at.rows.seq[:4] = [3, 2, 1, 0]
    made = ranked(at, 1, 1, 1, 1)
    assert (order(made.waiting), order(made.preempt)) == ([3, 2], [1, 0])


@pytest.mark.parametrize("pause", [False, True])
@pytest.mark.parametrize("seed", seeds(4, 20))
def test_never_promises_more_than_there_is(seed: int, pause: bool, snapshot: Make) -> None:
    rng = np.random.default_rng(seed)

    def request() -> dict[str, int]:
        prompt, most = rng.integers(1, 200, 2).tolist()
        return {"prompt_tokens": prompt, "max_tokens": most, "kv_blocks": int(rng.integers(0, prompt // 16 + 2))}

    at = snapshot(
        [request() for _ in range(rng.integers(0, 9))],
        [request() for _ in range(rng.integers(0, 6))],
        total_blocks=int(rng.integers(30, 90)),
        max_num_seqs=6,
    )
    keys = rng.integers(0, 4, at.waiting.size + at.running.size).astype(float)
    made = ranked(at, *keys, batch=3, pause=pause)
    if made is Plan.IDENTITY:
        assert not keys.size
        return
    assert made.running is not None and made.waiting is not None and made.max_running is not None
    served = np.concatenate((made.running[~np.isin(made.running, made.pause)], made.waiting))
    promised = max_blocks(at.rows, served, at.engine).sum() + at.rows.kv_blocks[made.pause].sum()
    assert promised <= at.engine.capacity_blocks
    assert made.max_running == made.running.size + made.waiting.size <= 6
    assert sorted([*made.running, *made.preempt]) == order(at.running)
