"""Under ``fcfs`` the decisions are stock vLLM's, step by step, while it preempts; so are those of ``edf`` without
targets until a preempted request resumes, and its order of admission to the end.

The first requests of each trace here; benchmarks/serving/parity.py replays 2,000 of each, as these tests do with
SLOSERVE_PARITY=full.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving import parity
from sloserve.core.request import WorkloadRequest
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.sim.workloads.workload_registry import workload
from tests.whole import sampled

pytestmark = pytest.mark.vllm

REQUESTS = parity.REQUESTS if os.environ.get("SLOSERVE_PARITY") == "full" else 100

GENERATED = {
    # name: (rate, engine). Rates above what the engine serves, KV for a few dozen chats.
    "sharegpt-gamma3": (40.0, EngineSettings(kv_blocks=600, max_model_len=4096, max_num_batched_tokens=512)),
    "chat-batch-mix": (30.0, EngineSettings(kv_blocks=600, max_model_len=8192, max_num_seqs=16)),
}


def assert_same_decisions(settings: EngineSettings, requests: list[WorkloadRequest], must_preempt: bool) -> None:
    expected, stock = parity.decide(settings, requests, None)
    assert not must_preempt or any(r.num_preemptions for r in stock.requests)
    compare(expected.steps, parity.decide(settings, requests, "fcfs")[0].steps)
    edf, _ = parity.decide(settings, parity.without_targets(requests), "edf")
    compare(expected.steps[: expected.first_resumption], edf.steps[: expected.first_resumption])
    assert edf.admitted == expected.admitted


def compare(expected: list[str], found: list[str]) -> None:
    for step, (theirs, ours) in enumerate(zip(expected, found, strict=False)):
        assert ours == theirs, f"step {step} of {len(expected)}"
    assert len(found) == len(expected)


@pytest.mark.parametrize("name", sampled(GENERATED, ["sharegpt-gamma3"]))
def test_generated(name: str) -> None:
    rate_per_s, settings = GENERATED[name]
    assert_same_decisions(settings, workload(name).requests(REQUESTS, 3, rate_per_s), must_preempt=True)


@pytest.mark.parametrize("case", sampled(parity.CASES, parity.CASES[:2]), ids=lambda case: case.trace)
def test_trace(case: Any, data_dir: Path) -> None:
    assert_same_decisions(case.engine(), case.requests(data_dir, REQUESTS), must_preempt=False)
