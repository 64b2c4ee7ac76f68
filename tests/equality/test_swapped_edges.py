"""Swapping beside what else an engine does: aborts in every state, LoRA, drafts, several samples, prompts in chunks.

The same requests with every preemption computed again are the measure, and nothing is computed twice.
"""

import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from tests.equality.engine import ENGINE_WARNINGS, Engine, EngineConfig, started
from tests.equality.harness import Served, serve
from tests.equality.subjects import SUBJECTS
from tests.equality.test_real_engine import Bench, check_equal
from tests.equality.workloads import Job
from tests.forked import run_forked
from tests.gpu import ON_A_GPU
from tests.other_vllm import not_with_0_30
from tests.whole import sampled

pytestmark = [pytest.mark.vllm, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

HOST_BLOCKS = 96
CHAOS = {subject.name: subject for subject in SUBJECTS}["chaos-preempt"].swapping()


def texts(count: int, **params: Any) -> list[Job]:
    chosen = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True, **params}
    # Of words that come again, so that drafts are found in it; longer than a step, so that it is computed in chunks.
    return [Job(f"r{i}", f"Request {i}: " + "to be or not to be, " * (1 + i % 6), 3 * i, chosen) for i in range(count)]


def preempting(engine: Engine, jobs: list[Job], folder: Path, swapping: bool, drafts: bool = False) -> Served:
    """drafts: whether there are any, which are computed twice where they were rejected."""
    clock = ManualClock()
    engine.use_sloserve({**CHAOS.section, "plan_share": 1.0}, clock=clock)
    if not swapping:
        engine.scheduler._swapping._reason_against = lambda request: "reset"  # refuses all
    served = serve(engine, jobs, clock, folder)
    counters = engine.scheduler.slo_counters
    assert counters["internal_errors"] == 0 and served.preemptions > 10
    assert engine.scheduler._swapping._connector.store.used_blocks == 0
    assert counters["swap_loads"] > 5 if swapping else counters["swap_loads"] == 0
    assert not served.computed_twice or drafts or not swapping
    return served


@pytest.mark.whole
def test_soak_loses_no_block() -> None:
    """``benchmarks/swap/soak.py`` with fewer requests: aborts in every state, late loads, copies that fail."""
    soak = import_module("benchmarks.swap.soak")
    with started(soak.CONFIG) as engine:
        figures = soak.soak(engine, 150, seed=1)
        assert figures["swap_loads"] > 50 and figures["swap_failures"] > 0
        assert figures["aborted_preempted"] > 3 and figures["swap_dropped_ended"] > 0


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "seeded": ({}, {"n": 2, "temperature": 1.0, "seed": 5}),
    "fp8": ({"kv_cache_dtype": "fp8_e5m2", "dtype": "bfloat16"}, {}),
}


def serve_case(arguments: dict[str, Any], params: dict[str, Any], folder: Path) -> Served:
    config = EngineConfig(async_scheduling=False, prefix_caching=False, host_blocks=HOST_BLOCKS)
    drafts = "speculative_config" in arguments
    with started(config, **arguments) as engine:
        expected = preempting(engine, texts(12, **params), folder, swapping=False)
        served = preempting(engine, texts(12, **params), folder, swapping=True, drafts=drafts)
    assert served.outputs == expected.outputs and served.computed_tokens < expected.computed_tokens
    return expected


def check_fp8() -> None:
    """Skip the test where vLLM's fp8 KV cache does not work, or where its replies cannot be compared."""
    import torch

    if ON_A_GPU:
        pytest.skip("On a GPU, bfloat16 rounds differently when KV is computed again.")
    if not (torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()):
        pytest.skip("vLLM's fp8 KV cache needs a CPU with AVX-512 or AMX.")


@pytest.mark.parametrize("case", sampled(CASES, ["seeded"]))
def test_with(case: str, tmp_path: Path) -> None:
    if case == "fp8":
        check_fp8()
    served = serve_case(*CASES[case], tmp_path)
    assert case != "seeded" or len({tuple(one) for both in served.outputs.values() for one in both}) == 24


def serve_with_drafts() -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    serve_case({"speculative_config": drafts}, {}, Path(tempfile.gettempdir()))


@pytest.mark.whole
@pytest.mark.slow
@not_with_0_30("its CPU build cannot compile the kernels of drafts")
def test_with_drafts() -> None:
    """In a process of its own: it loads numba, after which vLLM starts no second engine in the same one."""
    run_forked(serve_with_drafts)


@pytest.fixture
def lora(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    config = EngineConfig(async_scheduling=True, prefix_caching=True, lora=True, host_blocks=HOST_BLOCKS)
    with started(config) as engine:
        yield Bench(engine, tmp_path_factory.mktemp("adapters"))


@pytest.mark.whole
def test_with_an_adapter_on_every_request(lora: Bench) -> None:
    served = check_equal(CHAOS, "lora", lora)
    counters = lora.engine.scheduler.slo_counters
    assert counters["swap_loads"] > 5 and not served.computed_twice and not counters["internal_errors"]
