"""KV of ended requests on the host: which request gets it, how much of it, and when copying it is worth its cost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sloserve.core.kernels.kv_layout import KVGroups, KVLayout
from sloserve.core.tasks import TaskCall
from sloserve.engine.swap.retained import CONTINUED_WINDOW, LEAST_TOKENS, LOST_WINDOW, MOST_ENDED, Ending, RetainedKV
from sloserve.engine.swap.store import SwapStore
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.plan import EngineFacts, SwapFacts

BLOCK = 16
LAYOUT = KVLayout((KVGroups(1, BLOCK),), max_model_len=100_000)
RUNNING = StepLoad(decode_seqs=4, decode_context_tokens=4000)


def contents(*parts: tuple[str, int]) -> list[tuple[str, int]]:
    """Return the contents of blocks: each part is a text and the number of its blocks, and names all before it."""
    found, before = [], ""
    for text, blocks in parts:
        before += text
        found += [(before, place) for place in range(blocks)]
    return found


def engine(store: SwapStore, block_bytes: int = 2**20) -> EngineFacts:
    swap = SwapFacts(
        block_bytes=block_bytes, total_blocks=store.host_blocks, free_blocks=store.free_blocks, bytes_per_s=5e10
    )
    return EngineFacts(100, 1000, LAYOUT, 64, 2048, 60, swap=swap)


class Engine:
    """The calls that an engine makes of a store and of what it retains."""

    def __init__(self, host_blocks: int = 1000) -> None:
        self.counters: Counter[str] = Counter()
        self.store = SwapStore(host_blocks, LAYOUT.groups, self.counters)
        self.retained = RetainedKV(self.store)

    def is_worth(self, ending: Ending, kept_tokens: int = 0) -> bool:
        return self.retained.is_worth_keeping(ending, kept_tokens, RUNNING, engine(self.store))

    def end(self, name: str, blocks: Sequence[object], prompt_blocks: int, call: TaskCall | None = None) -> list[int]:
        """End a request; return the places of the blocks that are copied."""
        ending = Ending(blocks, BLOCK, prompt_blocks * BLOCK, call)  # type: ignore[arg-type]
        copied: list[int] = []
        self.retained.claim(name, ending)
        if self.is_worth(ending, self.store.tokens_of(name)):
            worth_s = self.retained.worth_s(ending.tokens)
            kept = self.store.store(name, ending.tokens, worth_s, ending.tokens, ends=True)
            copied = [] if kept is None else [place for of_group in kept[0] for place in of_group]
        self.retained.ended(name, ending)
        self.store.drop(name, "ended")
        return copied

    def arrive(self, name: str, blocks: Sequence[object], hit_blocks: int = 0) -> int:
        return self.retained.arrived(name, blocks, BLOCK, hit_blocks * BLOCK)  # type: ignore[arg-type]


FIRST = contents(("system", 40), ("question", 8), ("answer", 4))


def test_the_request_that_continues_an_ended_one_gets_its_kv_and_another_does_not() -> None:
    at = Engine()
    assert at.end("a.0", FIRST, prompt_blocks=48) == list(range(52))
    assert at.arrive("b.0", contents(("system", 40), ("another question", 20))) == 0
    assert at.arrive("a.1", [*FIRST, *contents(("result", 10))]) == 52 * BLOCK
    assert at.store.tokens_of("a.1") == 52 * BLOCK
    assert at.arrive("a.1 again", [*FIRST, *contents(("result", 10))]) == 0  # it is taken


def test_kv_is_found_up_to_where_the_next_prompt_differs() -> None:
    """A template that leaves out what the model thought changes everything behind the earlier prompt."""
    at = Engine()
    at.end("a.0", FIRST, prompt_blocks=48)
    assert at.arrive("a.1", [*FIRST[:50], *contents(("shorter answer", 9))]) == 50 * BLOCK
    assert at.store.used_blocks == 50


def test_the_end_of_the_next_call_copies_only_what_is_new() -> None:
    at = Engine()
    at.end("a.0", FIRST, prompt_blocks=48)
    second = [*FIRST, *contents(("result", 10), ("next answer", 6))]
    assert at.arrive("a.1", second[:62]) == 52 * BLOCK
    at.store.load("a.1", 0, 52 * BLOCK)
    assert at.store.loaded("a.1") and at.store.tokens_of("a.1") == 52 * BLOCK
    assert at.end("a.1", second, prompt_blocks=62) == list(range(52, 68))
    assert at.store.used_blocks == 68
    assert at.arrive("a.2", [*second, *contents(("result", 3))]) == 68 * BLOCK


def test_what_the_device_still_has_is_not_loaded_and_stays_kept() -> None:
    at = Engine()
    at.end("a.0", FIRST, prompt_blocks=48)
    at.arrive("a.1", [*FIRST, *contents(("result", 10))], hit_blocks=52)
    at.store.unused("a.1", 62 * BLOCK, "found_elsewhere")
    assert at.store.tokens_of("a.1") == 52 * BLOCK


def test_samples_of_one_prompt_copy_it_once() -> None:
    at = Engine()
    prompt = contents(("system", 40), ("question", 8))
    first, second = ([*prompt, *contents((text, 6))] for text in ("one answer", "another answer"))
    assert at.end("a", first, prompt_blocks=48) == list(range(54))
    assert at.end("b", second, prompt_blocks=48) == list(range(48, 54))
    assert at.store.used_blocks == 54
    assert at.arrive("c", [*second, *contents(("more", 4))]) == 54 * BLOCK


@pytest.mark.slow
def test_a_prompt_of_which_little_is_continued_is_worth_little() -> None:
    """Questions of one stretch on the same long document: the next one repeats the document, and not the answer."""
    at = Engine(host_blocks=10**6)
    document = contents(("document", 40))
    for i in range(2 * CONTINUED_WINDOW):
        asked = [*document, *contents((f"question {i}", 2), (f"answer {i}", 360))]
        at.arrive(f"r{i}", asked[:42], hit_blocks=40)
        at.end(f"r{i}", asked, prompt_blocks=42)
    assert at.retained._continued[False].value < 0.12  # noqa: SLF001


def test_the_last_call_of_a_task_is_not_kept() -> None:
    at = Engine()
    assert at.end("a.9", FIRST, 48, TaskCall("a", last=True)) == []
    assert at.store.used_blocks == 0
    assert at.end("a.8", FIRST, 48, TaskCall("a")) != []


def test_the_chance_falls_from_the_first_endings_on_where_none_is_continued() -> None:
    """Not only when the first prompts are decided: a run may be over by then."""
    at = Engine()
    slow = engine(at.store, block_bytes=2**22)
    ending = Ending(contents(("new", 52)), BLOCK, 48 * BLOCK)
    assert at.retained.is_worth_keeping(ending, 0, RUNNING, slow)
    for i in range(CONTINUED_WINDOW // 8):
        at.end(f"r{i}", contents((f"r{i}", 52)), 48, None)
    chance = at.retained._chance_continued(is_call=False)  # noqa: SLF001
    assert chance == pytest.approx(1 / (2 + 31 * 32 / 2 / CONTINUED_WINDOW))
    assert at.retained._chance_continued(is_call=True) == 0.5  # noqa: SLF001
    for i in range(4):
        at.arrive(f"r{i}.1", contents((f"r{i}", 52), ("more", 4)))
    assert at.retained._chance_continued(is_call=False) > 2 * chance  # noqa: SLF001


def test_kv_for_which_a_request_waits_outlasts_what_ends_later() -> None:
    at = Engine(host_blocks=160)
    at.end("a", contents(("a", 52)), 48)
    assert at.arrive("a.1", contents(("a", 52), ("more", 4))) == 52 * BLOCK
    for name in ("b", "c", "d"):
        at.end(name, contents((name, 52)), 48)
    assert at.store.tokens_of("a.1") == 52 * BLOCK
    assert at.arrive("b.1", contents(("b", 52), ("more", 4))) == 0
    at.store.load("a.1", 0, 52 * BLOCK)
    assert at.store.loaded("a.1")  # it runs, so that what is kept for it may never be asked for
    at.end("e", contents(("e", 52)), 48)
    assert at.store.tokens_of("a.1") == 0


def test_a_copy_that_steps_must_wait_for_is_made_for_what_saves_more() -> None:
    """Where no block is free the next step writes those of the request that ends."""
    at = Engine(host_blocks=10**4)
    ending = Ending(contents(("new", 640)), BLOCK, 640 * BLOCK)
    slow = engine(at.store)
    assert slow.swap is not None
    slow = replace(slow, swap=replace(slow.swap, bytes_per_s=1e9))
    assert not at.retained.is_worth_keeping(ending, 0, RUNNING, replace(slow, free_blocks=0))
    assert at.retained.is_worth_keeping(ending, 0, RUNNING, replace(slow, free_blocks=10**4))


def test_short_prompts_and_prompts_without_a_cache_are_not_kept() -> None:
    at = Engine()
    assert at.end("short", FIRST[:20], prompt_blocks=LEAST_TOKENS // BLOCK - 1) == []
    assert at.end("uncached", [], prompt_blocks=100) == []
    assert at.arrive("next", []) == 0


@pytest.mark.slow
def test_nothing_is_copied_where_no_prompt_is_ever_continued() -> None:
    at = Engine(host_blocks=10**6)
    for i in range(2 * CONTINUED_WINDOW):
        assert at.end(f"r{i}", contents((f"r{i}", 52)), 48) or i > CONTINUED_WINDOW
    ending = Ending(contents(("new", 52)), BLOCK, 48 * BLOCK)
    assert not at.retained.is_worth_keeping(ending, 0, RUNNING, engine(at.store, block_bytes=2**22))


@pytest.mark.slow
def test_little_is_copied_where_the_device_loses_nothing_and_all_once_it_does() -> None:
    """A long prompt is worth a copy at a small chance of loss, a short one is not."""
    at = Engine(host_blocks=10**6)
    slow = Ending(contents(("short", 40)), BLOCK, 640)
    for i in range(100):
        name = f"task {i}"
        at.end(name, contents((name, 52)), 48)
        at.arrive(f"{name}, next", contents((name, 52), ("more", 4)), hit_blocks=52)
    before = at.retained._lost.value  # noqa: SLF001
    assert before == pytest.approx(1 / (LOST_WINDOW + 2))
    for i in range(LOST_WINDOW // 2):
        name = f"lost {i}"
        at.end(name, contents((name, 52)), 48)
        at.arrive(f"{name}, next", contents((name, 52), ("more", 4)), hit_blocks=0)
    assert at.is_worth(slow) and at.retained._lost.value > 0.3  # noqa: SLF001


def test_a_full_pool_gives_up_what_ended_first_and_nothing_of_preempted_requests() -> None:
    at = Engine(host_blocks=160)
    at.store.store("preempted", 52 * BLOCK, worth_s=1e-3)
    for name in ("a", "b", "c"):
        at.end(name, contents((name, 52)), 48)
    assert at.arrive("a.1", contents(("a", 52), ("more", 4))) == 0
    assert at.arrive("c.1", contents(("c", 52), ("more", 4))) == 52 * BLOCK
    assert at.store.tokens_of("preempted") == 52 * BLOCK


@pytest.mark.slow
def test_ended_prompts_are_bounded_and_the_oldest_are_forgotten() -> None:
    at = Engine(host_blocks=10**6)
    for i in range(MOST_ENDED + 1):
        at.end(f"r{i}", contents((f"r{i}", 52)), 48)
    assert at.arrive("r0.1", contents(("r0", 52), ("more", 4))) == 0
    assert at.arrive("r1.1", contents(("r1", 52), ("more", 4))) > 0
    assert at.counters["swap_dropped_not_continued"] == 1


def test_the_memory_that_ended_prompts_take_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of 200k tokens has 12,500 contents, which take a megabyte."""
    monkeypatch.setattr("sloserve.engine.swap.retained.MOST_BLOCKS", 120)
    at = Engine(host_blocks=10**6)
    for name in ("a", "b", "c"):
        at.end(name, contents((name, 52)), 48)
    assert at.arrive("a.1", contents(("a", 52), ("more", 4))) == 0
    assert at.arrive("b.1", contents(("b", 52), ("more", 4))) == 52 * BLOCK
    assert at.store.used_blocks == 104
    at.end("longest", contents(("longest", 200)), 190)
    assert at.arrive("longest.1", contents(("longest", 200), ("more", 4))) == 200 * BLOCK


def test_a_request_that_ends_counts_as_no_preemption_kept_or_refused() -> None:
    at = Engine(host_blocks=60)
    assert at.end("a", contents(("a", 52)), 48) != []
    at.store.store("preempted", 58 * BLOCK, worth_s=1.0)
    assert at.end("b", contents(("b", 52)), 48) == []
    assert (at.counters["swap_stores_of_ended"], at.counters["swap_stores"]) == (1, 1)
    assert not any("refused" in name for name in at.counters)


def test_what_is_kept_of_ended_requests_gives_way_to_preempted_ones() -> None:
    """Else a preemption would count as a whole recomputation once the pool is full of what nobody waits for."""
    at = Engine(host_blocks=110)
    at.end("a", contents(("a", 52)), 48)
    at.end("b", contents(("b", 52)), 48)
    assert (at.store.free_blocks, at.store.yielding_blocks) == (6, 104)
    at.store.store("preempted", 58 * BLOCK, worth_s=1.0)
    assert (at.store.free_blocks, at.store.yielding_blocks) == (0, 52)
    assert at.arrive("b.1", contents(("b", 52), ("more", 4))) == 52 * BLOCK
    at.store.load("b.1", 0, 52 * BLOCK)
    assert at.store.yielding_blocks == 0
    at.store.loaded("b.1")
    assert at.store.yielding_blocks == 52


def test_weights_that_change_void_what_is_retained() -> None:
    at = Engine()
    at.end("a.0", FIRST, prompt_blocks=48)
    at.store.new_epoch()
    assert at.arrive("a.1", [*FIRST, *contents(("result", 10))]) == 0
