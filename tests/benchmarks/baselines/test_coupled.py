"""MultiRes takes what is nearest, by brute force too; SyncCoupled takes groups, whole or in part."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.coupled import MultiRes, SyncCoupled, grouped, nearest
from sloserve.scheduler.policy import Plan, Policy, Snapshot, check_plan
from tests.seeds import seeds

Make = Callable[..., Snapshot]


def plan(at: Snapshot, policy: Policy) -> Plan:
    made = policy.plan(at, 0.0)
    check_plan(made, at)
    return made


def order(slots: Any) -> list[int]:
    return [int(s) for s in slots]


def plain_nearest(tokens: list[int], blocks: list[int], free_tokens: int, free_blocks: int, most: int) -> list[int]:
    taken: list[int] = []
    while free_tokens > 0 and len(taken) < most:
        distances = [
            (np.hypot(1 - min(t, free_tokens) / free_tokens, 1 - b / free_blocks), i)
            for i, (t, b) in enumerate(zip(tokens, blocks, strict=True))
            if i not in taken and b <= free_blocks
        ]
        if not distances:
            break
        one = min(distances)[1]
        taken.append(one)
        free_tokens, free_blocks = free_tokens - tokens[one], free_blocks - blocks[one]
    return taken


@pytest.mark.parametrize("seed", seeds(8, 50))
def test_nearest_is_what_brute_force_takes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens, blocks = rng.integers(1, 300, 10), rng.integers(1, 20, 10)
    limits = int(rng.integers(-5, 700)), int(rng.integers(-2, 60)), int(rng.integers(0, 8))
    assert nearest(tokens, blocks, *limits).tolist() == plain_nearest(tokens.tolist(), blocks.tolist(), *limits)


def of_length(tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": 16, "oracle_output_tokens": tokens, **more}


ORACLE: dict[str, Any] = {"length": "oracle", "padding": 0.0}


def test_multires_takes_until_nothing_fits(snapshot: Make) -> None:
    # Promised: 4 of 15 blocks to who runs; 3, 9 and 9 are asked for, and the first of the two large ones fits best.
    at = snapshot([of_length(32), of_length(128), of_length(128)], [of_length(48)], total_blocks=16)
    made = plan(at, MultiRes(MultiRes.Settings(**ORACLE)))
    assert (order(made.waiting), made.max_running) == ([2], 2)
    # With one block more, the small one fits beside.
    at = snapshot([of_length(32), of_length(128), of_length(128)], [of_length(48)], total_blocks=17)
    made = plan(at, MultiRes(MultiRes.Settings(**ORACLE)))
    assert (order(made.waiting), made.max_running) == ([2, 1], 3)


def test_multires_leaves_no_compute_to_spare_and_cuts_a_prompt(snapshot: Make) -> None:
    # Of 2048 tokens, 1900 are asked for by a prompt that runs, and one by each that decodes.
    running = [
        {"prompt_tokens": 2000, "computed_tokens": 100, "oracle_output_tokens": 1},
        of_length(9, computed_tokens=16),
    ]
    at = snapshot([of_length(1), of_length(1, prompt_tokens=500), of_length(1)], running)
    made = plan(at, MultiRes(MultiRes.Settings(**ORACLE)))
    assert (order(made.waiting), made.max_running) == ([3], 3)
    # Nothing is left of the step: nobody is admitted.
    at = snapshot([of_length(1)], [{"prompt_tokens": 3000, "oracle_output_tokens": 1}])
    assert plan(at, MultiRes(MultiRes.Settings(**ORACLE))).max_running == 1


def test_multires_looks_at_the_oldest_alone(snapshot: Make) -> None:
    at = snapshot([of_length(10), of_length(20), of_length(900)])
    made = plan(at, MultiRes(MultiRes.Settings(**ORACLE, window=2)))
    assert order(made.waiting) == [1, 0]


def test_groups_are_in_the_order_of_their_oldest() -> None:
    assert grouped(np.array([4, 2, 4, 2, 9]), np.array([5, 3, 1, 8, 2])).tolist() == [2, 0, 4, 1, 3]
    assert grouped(np.empty(0, np.int64), np.empty(0, np.int64)).size == 0


@pytest.mark.parametrize(("blocks", "admitted"), [(16, 5), (15, 4), (11, 4), (10, 3), (7, 3), (6, 2), (2, 1)])
def test_sync_coupled_admits_groups_whole_or_splits_the_last(blocks: int, admitted: int, snapshot: Make) -> None:
    # Up to 32 tokens: slots 0, 2 and 4, with 2, 3 and 2 blocks; up to 64: 1 and 3, with 4 and 5.
    lengths = (10, 40, 32, 64, 9)
    at = snapshot([of_length(tokens) for tokens in lengths], total_blocks=blocks + 1)
    made = plan(at, SyncCoupled(SyncCoupled.Settings(**ORACLE, sync_tokens=32)))
    assert (order(made.waiting), made.max_running) == ([0, 2, 4, 1, 3], admitted)


def test_one_that_has_begun_is_of_the_group_of_its_whole_length(snapshot: Make) -> None:
    at = snapshot([of_length(200), of_length(90), of_length(200, output_tokens=110)])
    assert order(plan(at, SyncCoupled(SyncCoupled.Settings(**ORACLE))).waiting) == [0, 2, 1]


@pytest.mark.parametrize("policy", [MultiRes, SyncCoupled])
@pytest.mark.parametrize(("padding", "admitted"), [(0.0, 3), (0.5, 2)])
def test_padding_is_promised_too(padding: float, admitted: int, policy: type[Policy], snapshot: Make) -> None:
    # 1 + 10 blocks without, 1 + 15 with.
    at = snapshot([of_length(160)] * 4, total_blocks=34)
    made = plan(at, policy(policy.Settings(length="oracle", padding=padding)))
    assert made.max_running == admitted


@pytest.mark.parametrize("policy", [MultiRes, SyncCoupled])
def test_who_outlives_the_prediction_is_promised_what_the_new_one_says(policy: type[Policy], snapshot: Make) -> None:
    running = [of_length(16, output_tokens=64)] * 2
    at = snapshot([of_length(16)] * 2, running, total_blocks=14)
    # 81 tokens make 6 blocks for each that runs: of 13 one is left, and two are asked for.
    assert plan(at, policy(policy.Settings(**ORACLE))).max_running == 2
    at = snapshot([of_length(16)] * 2, running, total_blocks=15)
    assert plan(at, policy(policy.Settings(**ORACLE))).max_running == 3
