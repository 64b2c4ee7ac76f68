"""How much of the KV of requests that ended is expected to be found again."""

import pytest

from sloserve.engine.prefix_reuse import EVIDENCE, LOOK_BACK, MOST_PROMPTS, PrefixReuse

MANY = 10**9
"""A cache that has room for all."""
BLOCKS = 10


def context(name: int, blocks: int = 4) -> list[tuple[int, int]]:
    return [(name, place) for place in range(blocks)]


def longer(name: int, by: int = 3) -> list[tuple[int, int]]:
    return context(name) + [(name, 100 + place) for place in range(by)]


def with_tasks(count: int, gap_s: float = 2.0, every_s: float = 10.0) -> tuple[PrefixReuse, float]:
    """Return an estimate after ``count`` contexts, each continued after ``gap_s``, and the time."""
    reuse, now_s = PrefixReuse(), 0.0
    for name in range(count):
        reuse.ended(context(name), BLOCKS, now_s)
        reuse.arrived(longer(name), now_s + gap_s)
        now_s += every_s
    return reuse, now_s


@pytest.mark.parametrize(("gap_s", "is_kept"), [(40.0, False), (1.0, True)])
def test_nothing_is_awaited_that_the_cache_drops_before_it_is_continued(gap_s: float, is_kept: bool) -> None:
    """20 prompts of 256 blocks end each second, and each is continued after ``gap_s``; half of the cache keeps 2 s."""
    reuse, every_s, waits = PrefixReuse(), 0.05, round(gap_s / 0.05)
    for name in range(2000):
        now_s = name * every_s
        if name >= waits:
            reuse.arrived(longer(name - waits), now_s)
        reuse.ended(context(name), 256, now_s)
    awaited = reuse.awaited_blocks(2000 * every_s, total_blocks=2 * 256 * 40)
    assert (awaited > 0.5 * 256 * 20 * gap_s) if is_kept else (awaited < 256)


def test_nothing_is_awaited_before_any_context_was_continued() -> None:
    reuse = PrefixReuse()
    for name in range(100):
        reuse.arrived(context(name), name)
        reuse.ended(context(name), BLOCKS, name)
    assert reuse.awaited_blocks(100.0, MANY) == 0.0


def test_a_context_that_ended_just_now_is_awaited_where_all_were_continued() -> None:
    reuse, now_s = with_tasks(50)
    assert reuse.awaited_blocks(now_s, MANY) == 0.0
    reuse.ended(context(1000), BLOCKS, now_s)
    assert reuse.awaited_blocks(now_s + 0.1, MANY) == pytest.approx(BLOCKS, rel=0.05)
    reuse.arrived(longer(1000), now_s + 1.0)
    assert reuse.awaited_blocks(now_s + 1.0, MANY) == 0.0


def test_what_was_not_continued_in_the_usual_time_is_awaited_no_more() -> None:
    reuse, now_s = with_tasks(50)
    reuse.ended(context(1000), BLOCKS, now_s)
    assert reuse.awaited_blocks(now_s + 60.0, MANY) < 0.01 * BLOCKS


def test_half_is_awaited_where_half_was_continued() -> None:
    reuse, now_s = PrefixReuse(), 0.0
    for name in range(400):
        reuse.ended(context(name), BLOCKS, now_s)
        if name % 2:
            reuse.arrived(longer(name), now_s + 2.0)
        now_s += 10.0
    before = reuse.awaited_blocks(now_s, MANY)
    reuse.ended(context(1000), BLOCKS, now_s)
    assert reuse.awaited_blocks(now_s + 0.1, MANY) - before == pytest.approx(0.5 * BLOCKS, rel=0.1)


def test_a_continuation_is_found_at_most_so_many_stretches_before_the_end_of_the_prompt() -> None:
    near, far = PrefixReuse(), PrefixReuse()
    for reuse, by in ((near, LOOK_BACK - 1), (far, LOOK_BACK)):
        reuse.ended(context(0), BLOCKS, 0.0)
        reuse.arrived(longer(0, by), 1.0)
        reuse.ended(context(1), BLOCKS, 1.0)
    assert near.awaited_blocks(1.0, MANY) > 0.0
    assert far.awaited_blocks(1.0, MANY) == 0.0


def test_the_same_content_is_in_the_cache_once() -> None:
    reuse, now_s = with_tasks(50)
    for _ in range(5):
        reuse.ended(context(1000), BLOCKS, now_s)
    assert reuse.awaited_blocks(now_s, MANY) == pytest.approx(BLOCKS, rel=0.05)


def test_memory_is_bounded_and_what_is_forgotten_waited_in_vain() -> None:
    reuse, now_s = with_tasks(5)
    for name in range(10_000, 10_000 + 5 * MOST_PROMPTS):
        now_s += 1.0
        reuse.ended(context(name), BLOCKS, now_s)
    assert len(reuse._place_of) <= len(reuse._key_at) <= 2 * MOST_PROMPTS
    assert reuse.awaited_blocks(now_s, MANY) < 0.05 * BLOCKS


def test_estimates_follow_the_traffic() -> None:
    reuse, now_s = with_tasks(3 * EVIDENCE)
    assert reuse._continued.sum() <= EVIDENCE
    for name in range(10**6, 10**6 + 4 * EVIDENCE):
        now_s += 10.0
        reuse.ended(context(name), BLOCKS, now_s)
    assert reuse.awaited_blocks(now_s, MANY) < 0.5 * BLOCKS


def test_a_prompt_shorter_than_a_block_says_nothing() -> None:
    reuse, now_s = with_tasks(5)
    reuse.ended([], 1, now_s)
    reuse.arrived([], now_s)
    assert reuse.awaited_blocks(now_s, MANY) == 0.0
