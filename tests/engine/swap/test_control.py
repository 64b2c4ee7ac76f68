"""Recompute or swap, as an engine asks it: the waits that it has seen count, and ``always`` considers no cost."""

from collections import Counter
from dataclasses import replace
from typing import Literal

import pytest

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.engine.step_clock import StepClock
from sloserve.engine.swap.control import SLOWEST, SwapControl, TurnWaits
from sloserve.engine.swap.store import SwapStore
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.lso.plan import EngineFacts, SwapFacts
from sloserve.lso.swapping import recompute_s

PROFILE = load_profile("h100-llama2-7b")
POOL = SwapFacts(block_bytes=16 * PROFILE.kv_bytes_per_token, total_blocks=1000, free_blocks=1000, bytes_per_s=50e9)
ENGINE = EngineFacts(0, 7000, KVLayout.full(16), 256, 2048, 0, step_latency=PROFILE, swap=POOL)
RUNNING = StepLoad(decode_seqs=64, decode_context_tokens=64 * 500)


class SetClock:
    """A clock that shows what it is set to."""

    def __init__(self) -> None:
        self.set_s = 0.0

    def now_s(self) -> float:
        return self.set_s

    def monotonic_s(self) -> float:
        return self.set_s


class Decoding(StepClock):
    """A step clock of an engine whose last step had the decodes RUNNING."""

    @property
    def decodes(self) -> StepLoad:
        return RUNNING


def control(swapping: Literal["cost", "always"]) -> tuple[SwapControl, SetClock]:
    clock, layout = SetClock(), ENGINE.layout
    store = SwapStore(POOL.total_blocks, layout.groups, Counter())
    control = SwapControl(
        store,
        layout,
        block_bytes=POOL.block_bytes,
        swapping=swapping,
        bytes_per_s=POOL.bytes_per_s,
        steps=Decoding(PROFILE),
        clock=clock,
    )
    return control, clock


def test_no_step_waits_for_a_copy_that_may_be_a_little_late_unless_it_writes_its_blocks() -> None:
    """Half of all copies take longer than predicted."""
    asked, clock = control("always")
    intact = [True]
    assert asked.stores_beside(50, lambda: intact[0]) == 1
    clock.set_s = 1.5 * asked.facts().out_s
    assert asked.facts().out_s == 0.0 and asked.awaited() == 0
    intact[0] = False
    assert asked.awaited() == 1 and asked.awaited() == 0
    assert asked.stores_beside(50, lambda: True) == 2
    clock.set_s += SLOWEST * asked.facts().out_s
    assert asked.awaited() == 2


def test_who_waits_long_enough_for_the_copies_is_swapped() -> None:
    asked, clock = control("cost")
    assert asked.facts().wait_s == 0.0
    clock.set_s = 10.0
    assert (
        asked.worth_s("a", 2000, replace(ENGINE, swap=asked.facts())) is None
    )  # the link takes longer than the engine
    clock.set_s = 13.0
    asked.admitted(["a", "never preempted"])
    assert asked.facts().wait_s == 3.0
    clock.set_s = 20.0
    seen = replace(ENGINE, swap=asked.facts())
    assert asked.worth_s("b", 2000, seen) == recompute_s(2000, RUNNING, ENGINE)
    asked.ended("b")
    clock.set_s = 99.0
    asked.admitted(["b"])
    assert asked.facts().wait_s == 3.0


def test_who_still_waits_counts_with_the_time_so_far() -> None:
    """A policy may leave its victims for last: then nobody has had a turn when the next one is preempted."""
    waits = TurnWaits()
    waits.preempted("a", 10.0)
    waits.preempted("b", 14.0)
    assert waits.mean_s(16.0) == (6.0 + 2.0) / 2
    waits.preempted("a", 16.0)  # again
    assert waits.mean_s(16.0) == (0.0 + 2.0) / 2
    waits.has_turn("b", 20.0)
    assert waits.mean_s(20.0) == (6.0 + 4.0) / 2


@pytest.mark.parametrize("tokens", [0, 2000])
def test_always_swaps_what_there_is(tokens: int) -> None:
    asked, _ = control("always")
    assert asked.worth_s("a", tokens, ENGINE) == (recompute_s(tokens, RUNNING, ENGINE) if tokens else None)
    assert asked.worth_s("a", tokens, replace(ENGINE, swap=None)) is None
