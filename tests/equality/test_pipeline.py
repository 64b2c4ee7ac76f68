"""Pipeline parallelism: two stages, each in its own process, and our scheduler above them, which leaves all to vLLM.

The CPU engine has no async scheduling here and runs vLLM's V1 model runner, whose first stage takes the tokens that it
is given: placeholders of a scheduler that is made for async scheduling crash it.
"""

import os
from pathlib import Path

import pytest

from sloserve.core.clock import ManualClock
from tests.equality.engine import EngineConfig, started
from tests.equality.harness import serve
from tests.equality.workloads import WORKLOADS
from tests.forked import run_forked

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

STAGES = 2


def serve_through_stages() -> None:
    # vLLM binds each stage to a NUMA node of its own, and there may be one.
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_HOST_IP": "127.0.0.1"}
    config = EngineConfig(async_scheduling=False, prefix_caching=True)
    arguments = {
        "pipeline_parallel_size": STAGES,
        "distributed_executor_backend": "mp",
        "worker_cls": "tests.equality.pp_worker.PipelineWorker",
    }
    with started(config, **arguments) as engine:
        assert engine.scheduler.use_pp and engine.core.batch_queue_size == STAGES

        def outputs() -> dict[str, list[list[int]]]:
            return serve(engine, WORKLOADS["mixed"](), ManualClock(), Path()).outputs

        engine.use_stock()
        expected = outputs()
        assert len(expected) > 10
        for policy in ("fcfs", "edf"):
            engine.use_sloserve({"policy": policy})
            assert outputs() == expected
            counters = engine.scheduler.slo_counters
            assert (counters["plans"], counters["internal_errors"]) == (0, 0)


def test_outputs_are_stock_s() -> None:
    run_forked(serve_through_stages)
