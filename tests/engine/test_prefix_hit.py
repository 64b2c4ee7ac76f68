"""What the prefix cache holds of a waiting request: found by a few questions, and told to every policy."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sloserve.core.clock import ManualClock
from sloserve.core.request import WorkloadRequest
from sloserve.core.rows import COLUMNS
from sloserve.core.slo import DEFAULT_CLASSES, SLO, Targets
from sloserve.core.stated import StatedSLO
from sloserve.engine.kept_elsewhere import LOOKUPS
from sloserve.engine.prefix_hit import blocks_hit, is_unchanged
from sloserve.engine.request_table import RequestTable
from sloserve.engine.step_clock import StepClock
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.lso.decode_first import uncomputed_tokens
from sloserve.sim.model.blocks import Hit
from sloserve.sim.model.model_port import ModelPort
from sloserve.sim.model.scheduler import ModelScheduler

SLO_OF_ALL = SLO(DEFAULT_CLASSES.default, Targets())
STATED = StatedSLO(SLO_OF_ALL, class_id=0, output_tokens=None)


@given(st.integers(0, 2000), st.integers(0, 2000), st.integers(0, 3000))
def test_the_search_finds_what_a_walk_would(cached: int, most: int, before: int) -> None:
    asked: list[int] = []

    def is_cached(block: int) -> bool:
        asked.append(block)
        return block < cached

    assert blocks_hit(is_cached, most, before) == min(cached, most)
    assert all(0 <= block < most for block in asked) and len(asked) <= 24
    asked.clear()
    blocks_hit(is_cached, most, min(cached, most))
    assert len(asked) <= 2  # nothing has changed


@given(st.lists(st.integers(0, 12), min_size=1, max_size=3), st.integers(0, 12), st.booleans(), st.integers(1, 12))
def test_a_hit_that_is_unchanged_is_what_a_walk_would_find(
    cached: list[int], most: int, drops: bool, before: int
) -> None:
    """All layers keep all tokens; with a draft head each gives up the last block of what it has."""
    every = range(len(cached))
    longest = max(min([*cached, most]) - drops, 0)
    unchanged = is_unchanged(lambda kind, i: i < cached[kind], len(cached), every, most, before, every if drops else ())
    assert not unchanged or before == longest or before + drops > most
    assert unchanged or before != longest


class Cached:
    """A model engine with a prefix cache, and its table."""

    def __init__(self) -> None:
        self.scheduler = ModelScheduler(
            EngineSettings(
                max_num_seqs=8,
                max_num_batched_tokens=512,
                kv_blocks=64,
                max_model_len=320,
                enable_prefix_caching=True,
            )
        )
        self.table = RequestTable(frozenset(COLUMNS), ModelPort(self.scheduler, StepClock(), ManualClock()))

    def add(self, name: str, prompt: int, prefix_ids: tuple[int, ...]) -> int:
        item = WorkloadRequest(name, 0.0, prompt, 20, SLO_OF_ALL, prefix_ids=prefix_ids)
        slot = self.table.add(self.scheduler.requests.add(item, 0.0, 20), STATED)
        assert slot is not None
        return slot

    def compute(self, index: int) -> None:
        """All of the prompt of request ``index``, with blocks of its own."""
        kv, prompt = self.scheduler.kv, int(self.scheduler.requests.prompt[index])
        kv.admit(index, Hit(blocks=[[]]))
        kv.grow(index, prompt)
        kv.cache(index, prompt)

    def owed(self, slot: int) -> int:
        return int(uncomputed_tokens(self.table.rows, np.array([slot]))[0])


def test_a_prompt_owes_what_the_prefix_cache_does_not_hold() -> None:
    """A later round of a chat finds the blocks of the earlier one, until they are taken for others."""
    engine = Cached()
    engine.add("first", 160, (1,))
    engine.compute(0)
    again = engine.add("again", 200, (1,))
    alone = engine.add("alone", 200, (2,))
    assert (engine.owed(again), engine.owed(alone)) == (40, 200)

    engine.scheduler.kv.release(0)
    engine.scheduler.requests.computed[2] = 0
    engine.scheduler.kv.admit(2, Hit(blocks=[[]]))
    engine.scheduler.kv.grow(2, 60 * 16)  # all but four of the 64 blocks, the last of the first prompt before its first
    assert engine.owed(again) == 40  # not asked yet
    engine.table.look_up(np.array([again]))
    assert engine.owed(again) == 200 - 64


def test_a_running_request_has_no_hit_and_a_preempted_one_finds_its_own_blocks() -> None:
    engine = Cached()
    slot = engine.add("one", 100, (1,))
    engine.compute(0)
    engine.table.admitted(SimpleNamespace(admitted=[0]))
    assert engine.table.rows.hit_tokens[slot] == 0
    engine.scheduler.kv.release(0)
    engine.table.preempted(engine.scheduler.requests.handles[0])
    assert engine.table.rows.hit_tokens[slot] == 96


def test_few_are_looked_up_for_one_plan_and_all_heads_in_turn() -> None:
    engine = Cached()
    slots = np.array([engine.add(f"r{i}", 100, (1,)) for i in range(3 * LOOKUPS)])
    engine.compute(0)
    for looks in (1, 2, 3):
        engine.table.look_up(slots)
        assert np.count_nonzero(engine.table.rows.hit_tokens[slots]) == looks * LOOKUPS
