"""Tensor parallelism: two ranks, each in its own process, and one scheduler above them, whose plans change no reply."""

import os
from pathlib import Path

import pytest

from tests.equality.engine import EngineConfig, started
from tests.equality.subjects import SUBJECTS
from tests.equality.test_real_engine import Bench, check_equal
from tests.forked import run_forked
from tests.whole import WHOLE

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

RANKS = 2
NAMES = ("fcfs", "edf", "chaos-all") if WHOLE else ("chaos-all",)


def serve_on_two_ranks() -> None:
    # vLLM binds each rank to a NUMA node of its own, and there may be one.
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_HOST_IP": "127.0.0.1"}
    config = EngineConfig(async_scheduling=True, prefix_caching=True)
    with started(config, tensor_parallel_size=RANKS, distributed_executor_backend="mp") as engine:
        assert engine.llm.vllm_config.parallel_config.world_size == RANKS
        bench = Bench(engine, Path())
        assert len(bench.stock("greedy").outputs) > 10
        for subject in (one for one in SUBJECTS if one.name in NAMES):
            check_equal(subject, "greedy", bench)
            assert engine.scheduler.slo_counters["plans"] > 0 or subject.name == "fcfs"


def test_outputs_are_stock_s() -> None:
    run_forked(serve_on_two_ranks)
