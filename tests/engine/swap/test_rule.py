"""Recompute or swap, as an engine asks it: the waits that it has seen count, and `always` asks for no cost."""

from dataclasses import replace

import pytest

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.engine.swap.rule import SwapRule
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.lso.plan import EngineFacts, SwapFacts
from sloserve.lso.swapping import recompute_s

PROFILE = load_profile("h100-llama2-7b")
POOL = SwapFacts(block_bytes=16 * PROFILE.kv_bytes_per_token, total_blocks=1000, free_blocks=1000, bytes_per_s=50e9)
ENGINE = EngineFacts(0, 7000, KVLayout.full(16), 256, 2048, 0, step_latency=PROFILE, swap=POOL)
RUNNING = StepLoad(decode_seqs=64, decode_context_tokens=64 * 500)


def test_who_waits_long_enough_for_the_copies_is_swapped() -> None:
    rule = SwapRule("cost")
    assert rule.wait_s(9.0) == 0.0
    assert rule.worth_s("a", 2000, RUNNING, ENGINE, 10.0) is None  # the link takes longer than the engine
    rule.has_turn("a", 13.0)
    rule.has_turn("never preempted", 13.0)
    assert rule.wait_s(13.0) == 3.0
    seen = replace(ENGINE, swap=replace(POOL, wait_s=rule.wait_s(13.0)))
    assert rule.worth_s("b", 2000, RUNNING, seen, 20.0) == recompute_s(2000, RUNNING, ENGINE)
    rule.ended("b")
    rule.has_turn("b", 99.0)
    assert rule.wait_s(99.0) == 3.0


def test_who_still_waits_counts_with_the_time_so_far() -> None:
    """A policy may leave its victims for last: then nobody has had a turn when the next one is preempted."""
    rule = SwapRule("cost")
    rule.worth_s("a", 2000, RUNNING, ENGINE, 10.0)
    rule.worth_s("b", 2000, RUNNING, ENGINE, 14.0)
    assert rule.wait_s(16.0) == (6.0 + 2.0) / 2
    rule.worth_s("a", 2000, RUNNING, ENGINE, 16.0)  # again
    assert rule.wait_s(16.0) == (0.0 + 2.0) / 2
    rule.has_turn("b", 20.0)
    assert rule.wait_s(20.0) == (6.0 + 4.0) / 2


@pytest.mark.parametrize("tokens", [0, 2000])
def test_always_swaps_what_there_is(tokens: int) -> None:
    worth_s = SwapRule("always").worth_s("a", tokens, RUNNING, ENGINE, 0.0)
    assert worth_s == (recompute_s(tokens, RUNNING, ENGINE) if tokens else None)
    assert SwapRule("always").worth_s("a", tokens, RUNNING, replace(ENGINE, swap=None), 0.0) is None
