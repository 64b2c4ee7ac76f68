"""Greedy outputs equal stock's where preempted requests keep their KV in host memory, and no token is computed twice.

A subset of the policies, enough for some hundred swaps; ``benchmarks/swap/equality.py`` serves the whole grid.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.equality.copiers import FailingCopier, LateCopier, copying_by
from tests.equality.engine import ENGINE_WARNINGS, EngineConfig, started
from tests.equality.harness import Served
from tests.equality.subjects import SUBJECTS
from tests.equality.test_real_engine import Bench, check_equal
from tests.whole import sampled

pytestmark = [pytest.mark.vllm, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

ASYNC = EngineConfig(async_scheduling=True, prefix_caching=True, host_blocks=160)
SYNC = EngineConfig(async_scheduling=False, prefix_caching=False, host_blocks=160)
BESIDE = replace(ASYNC, beside_other=True)
SMALL = EngineConfig(async_scheduling=True, prefix_caching=False, host_blocks=12)
SWAPS = {subject.name: subject.swapping() for subject in SUBJECTS}


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with started(request.param) as engine:
        yield Bench(engine, tmp_path_factory.mktemp("adapters"))


def counted(bench: Bench, served: Served) -> Counter[str]:
    """The counters of swapping, after a run that held what must hold in each."""
    scheduler = bench.engine.scheduler
    counters = Counter({k: n for k, n in scheduler.slo_counters.items() if k.startswith("swap")})
    assert scheduler.slo_counters["internal_errors"] == 0
    assert counters["swap_stores"] + causes(counters, "refused") == served.preemptions
    seen = scheduler.status()["swap_space"]
    assert (seen["swap_stores"], seen["swap_loads"]) == (counters["swap_stores"], counters["swap_loads"])
    assert seen["swap_out_bytes"] > 0 or not seen["swap_stores"]
    store = scheduler._swapping._connector.store
    assert store.free_blocks == store.host_blocks
    return counters


def causes(counters: Counter[str], *kinds: str) -> int:
    return sum(n for name, n in counters.items() if any(kind in name for kind in kinds))


@pytest.mark.parametrize("bench", sampled([ASYNC, SYNC], [ASYNC]), indirect=True, ids=str)
@pytest.mark.parametrize(
    "name", sampled(["fcfs", "edf", "andes-restless", "fastserve", "chaos-nearly-all"], ["edf", "chaos-nearly-all"])
)
def test_no_token_is_computed_twice(bench: Bench, name: str) -> None:
    served = check_equal(SWAPS[name], "mixed", bench)
    counters = counted(bench, served)
    assert counters["swap_loads"] > 0
    assert not causes(counters, "refused", "failures", "worth_less")
    assert not served.computed_twice


@pytest.mark.parametrize("bench", [ASYNC], indirect=True, ids=str)
def test_aborts(bench: Bench) -> None:
    served = check_equal(SWAPS["chaos-all"], "aborts", bench)
    assert counted(bench, served)["swap_dropped_ended"] > 0
    assert any("preempted" in states for states in served.aborted.values())


@pytest.mark.parametrize("bench", [ASYNC], indirect=True, ids=str)
@pytest.mark.parametrize(("name", "workload"), [("chaos-nearly-all", "mixed"), ("chaos-all", "aborts")])
def test_loads_that_take_several_steps(bench: Bench, name: str, workload: str) -> None:
    with copying_by(LateCopier, 3) as copier:
        served = check_equal(SWAPS[name], workload, bench)
    counters = counted(bench, served)
    assert copier.most_under_way > 1
    assert not causes(counters, "refused", "failures", "worth_less")
    assert not served.computed_twice


@pytest.mark.parametrize("bench", [ASYNC], indirect=True, ids=str)
@pytest.mark.parametrize("name", ["edf", "chaos-nearly-all"])
def test_copies_that_fail(bench: Bench, name: str) -> None:
    with copying_by(FailingCopier, 3):
        served = check_equal(SWAPS[name], "mixed", bench)
    counters = counted(bench, served)
    assert 0 < len(served.computed_twice) <= counters["swap_failures"]


@pytest.mark.parametrize("bench", [ASYNC], indirect=True, ids=str)
def test_prompts_that_must_be_computed_are_not_kept(bench: Bench) -> None:
    served = check_equal(SWAPS["chaos-nearly-all"], "prompt-logprobs", bench)
    counters = counted(bench, served)
    assert counters["swap_refused_must_compute"] > 0
    assert all(int(name.removeprefix("text-").partition("-")[0]) % 3 == 0 for name in served.computed_twice)


@pytest.mark.parametrize("bench", [BESIDE], indirect=True, ids=str)
def test_beside_another_connector(bench: Bench) -> None:
    """Blocks that a step may still write are held back again, for the other's loads; plans go on, but no pauses."""
    served = check_equal(replace(SWAPS["chaos-preempt"], pauses=False), "mixed", bench)
    assert bench.engine.scheduler.defer_block_free
    assert bench.engine.scheduler.recompute_kv_load_failures
    assert counted(bench, served)["swap_loads"] > 0
    assert not served.computed_twice


@pytest.mark.parametrize("bench", [SMALL], indirect=True, ids=str)
def test_a_full_pool_gives_up_what_is_worth_least_and_it_is_computed_again(bench: Bench) -> None:
    served = check_equal(SWAPS["chaos-nearly-all"], "mixed", bench)
    counters = counted(bench, served)
    assert counters["swap_loads"] > 0
    assert 0 < len(served.computed_twice) <= causes(counters, "refused_full", "dropped_worth_less")


@pytest.mark.parametrize("bench", [SMALL], indirect=True, ids=str)
def test_without_our_scheduler_nothing_is_kept(bench: Bench) -> None:
    served = bench.serve_stock("mixed")
    assert served.preemptions > 0
    assert served.computed_twice
    assert not bench.engine.scheduler.connector.store.counters
