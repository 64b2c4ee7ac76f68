"""EconoServe as published on vLLM's own scheduler: with lengths known, no allocation fails where stock's do."""

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.step_time.profile import load_profile

pytestmark = pytest.mark.vllm


def served(policy: str | None) -> RunLog:
    """15 requests at once on KV for three."""
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    rng = np.random.default_rng(11)
    slo = DEFAULT_CLASSES.slo("batch", Targets(e2e_s=2.0))
    workload = [
        WorkloadRequest(f"r{i}", 0.01 * i, int(rng.integers(5, 80)), int(rng.integers(5, 80)), slo) for i in range(15)
    ]
    settings = EngineSettings(kv_blocks=20, max_num_seqs=16, max_num_batched_tokens=128, max_model_len=256)
    config = None if policy is None else {"sloserve": {"policy": policy}}
    log = VirtualEngine(settings, load_profile("h100-llama3-8b"), config).run(workload)
    assert all(one.outcome == Outcome.COMPLETED for one in log.requests)
    return log


def preemptions(log: RunLog) -> int:
    return sum(one.num_preemptions for one in log.requests)


@pytest.mark.parametrize("settings", ["parts=d", "parts=full", "pipeline=future"])
def test_no_allocation_fails_with_lengths_known(settings: str) -> None:
    log = served(f"econo-paper:length=oracle:sync_tokens=16:{settings}")
    assert preemptions(log) == 0 and not log.counters.get("plan_errors")
    assert log.counters["paused_steps"] > 0


def test_stock_fails_there() -> None:
    assert preemptions(served(None)) > 0
