"""Greedy replies equal stock's where preempted requests keep their KV in host memory, on every KV cache layout.

Windows, local chunks, Mamba states and hybrids, with the prefix cache on and off. No token is computed twice: for each
group of layers the blocks that came back were all that the request still needed. ``make whole`` has every model and
mode under several policies; ``make test`` one of each kind.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.equality.copiers import FailingCopier, LateCopier, copying_by
from tests.equality.engine import ENGINE_WARNINGS
from tests.equality.layouts.bench import ENOUGH_BLOCKS, MODES, SUBJECT, Case, bench_of, differences
from tests.equality.layouts.models import ModelFolders
from tests.equality.layouts.test_layouts import EXACT
from tests.equality.service import as_server
from tests.equality.subjects import Subject
from tests.equality.test_real_engine import Bench
from tests.equality.test_swapped_world import CALLS, LOADS, PROMPTS, TOKENS, World, answers
from tests.equality.test_swapping import causes, counted
from tests.forked import run_forked
from tests.other_vllm import not_with_0_30
from tests.whole import WHOLE

pytestmark = [pytest.mark.vllm, pytest.mark.slow, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

HOST_BLOCKS = 2000
"""Of builtin:tiny, in whose blocks the tests count: more than all requests need at once in blocks of these models."""

ASYNC_CACHE, ASYNC, SYNC_CACHE, SYNC = (replace(mode, host_blocks=HOST_BLOCKS) for mode in MODES)

CASES = (
    [Case(model, mode) for model in (*EXACT, "mistral") for mode in (ASYNC_CACHE, ASYNC, SYNC_CACHE, SYNC)]
    if WHOLE
    else [
        Case("gemma3", ASYNC_CACHE),
        Case("granite4", ASYNC_CACHE),  # with a prefix cache vLLM keeps states at the ends of blocks
    ]
)
NAMES = ("fcfs", "edf", "auto", "andes-restless", "chaos-all", "chaos-nearly-all") if WHOLE else ("chaos-nearly-all",)
CHOSEN = [SUBJECT[name].swapping() for name in NAMES]
CHAOS = SUBJECT["chaos-nearly-all"].swapping()
cases = pytest.mark.parametrize("bench", CASES, indirect=True, ids=str)
# Without those that reload weights, which the tests' worker does for builtin:tiny.
CALLS_ON_A_HYBRID = (
    ("reset", "reset-running", "pause-keep", "sleep-0", "park-0") if WHOLE else ("reset-running", "park-0")
)
a_hybrid = pytest.mark.parametrize("bench", [Case("granite4", ASYNC_CACHE)], indirect=True, ids=str)


@cases
@pytest.mark.parametrize("subject", CHOSEN, ids=str)
def test_no_token_is_computed_twice(bench: Bench, subject: Subject) -> None:
    served = bench.serve(subject, "short")
    counters = counted(bench, served)
    assert differences(served, bench.stock("short")) == []
    assert served.outputs.keys() == bench.stock("short").outputs.keys()
    assert counters["swap_loads"] > 0 or not served.preemptions
    assert not causes(counters, "refused", "failures", "failed", "worth_less", "taken_back")
    assert not served.computed_twice


@cases
def test_aborts(bench: Bench) -> None:
    """The harness asserts that no KV block is lost; ``counted`` that no host block is."""
    served = bench.serve(SUBJECT["chaos-all"].swapping(), "aborts")
    assert counted(bench, served)["swap_loads"] > 0
    assert differences(served, bench.stock("short")) == []


@a_hybrid
def test_loads_that_take_several_steps(bench: Bench) -> None:
    """Meanwhile vLLM gives the blocks of other requests away: a load writes none of them."""
    with copying_by(LateCopier, 3) as copier:
        served = bench.serve(CHAOS, "short")
    assert differences(served, bench.stock("short")) == []
    assert copier.most_under_way > 1
    assert counted(bench, served)["swap_loads"] > 0
    assert not served.computed_twice


@a_hybrid
def test_copies_that_fail(bench: Bench) -> None:
    with copying_by(FailingCopier, 3):
        served = bench.serve(CHAOS, "short")
    assert differences(served, bench.stock("short")) == []
    assert 0 < len(served.computed_twice) <= counted(bench, served)["swap_failures"]


def serve_windows_with_ngrams() -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        case = Case("gpt-oss", SYNC_CACHE)
        with bench_of(case, ModelFolders(root), root, "greedy", speculative_config=ngram) as bench:
            served = bench.serve(CHAOS, "greedy")
            counters = counted(bench, served)
            assert differences(served, bench.stock("greedy")) == []
            assert counters["swap_loads"] > 5
            assert not causes(counters, "refused", "failures", "failed", "taken_back")


@pytest.mark.whole
@not_with_0_30("its CPU build cannot compile the kernels of drafts")
def test_windows_with_drafts() -> None:
    """A rejected draft needs a token that an accepted one does not: the block of it is kept as well.

    In a process of its own: it loads numba, after which vLLM starts no second engine in the same one.
    """
    run_forked(serve_windows_with_ngrams)


@pytest.mark.parametrize("stuck", [False, True], ids=["", "stuck"])
@pytest.mark.parametrize("what", CALLS_ON_A_HYBRID)
@a_hybrid
def test_resets_and_parking_while_all_load(bench: Bench, what: str, stuck: bool) -> None:
    """The blocks that abandoned loads still write stay out of vLLM's pool in every group."""
    engine, blocks = bench.engine, bench.engine.scheduler.kv_cache_config.num_blocks
    engine.limit_blocks(ENOUGH_BLOCKS)
    try:
        with as_server(engine):
            expected = answers(engine, PROMPTS, dict.fromkeys(PROMPTS, TOKENS))
            world = World(engine)
            if not stuck:
                world.copier.let_go()
            world.call(lambda: CALLS[what](world))
            world.wake()
            assert world.end() == expected
            assert world.counters["swap_loads"] == (2 * LOADS if what == "park-0" else LOADS) or stuck
            assert world.counters["internal_errors"] == 0
    finally:
        engine.limit_blocks(blocks)
