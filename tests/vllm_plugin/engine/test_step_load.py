"""Steps are timed and their load is read as the engine ran them: two deep, prefill and decode mixed."""

import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import load_profile
from sloserve.vllm_plugin.virtual.settings import EngineSettings

pytestmark = pytest.mark.vllm

ENGINE, ASSUMED = "h100-llama3-8b", "a100-llama2-7b"


def workload() -> list[WorkloadRequest]:
    slo = DEFAULT_CLASSES.slo(None, Targets(e2e_s=60.0))
    sizes = [(200 + 97 * i % 1500, 20 + 53 * i % 200) for i in range(150)]
    return [WorkloadRequest(f"r{i}", 0.08 * i, prompt, output, slo) for i, (prompt, output) in enumerate(sizes)]


@pytest.mark.parametrize("policy", ["fcfs", "edf"])
def test_a_wrong_profile_is_corrected_by_the_engines_own_steps(policy: str) -> None:
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    true, assumed = load_profile(ENGINE), load_profile(ASSUMED)
    settings = EngineSettings(kv_blocks=20_000, max_num_seqs=64, max_num_batched_tokens=2048)
    engine = VirtualEngine(settings, true, {"sloserve": {"policy": policy, "profile": ASSUMED}})
    engine.run(workload())
    pace = engine.scheduler.step_pace
    assert pace is not None and pace.latency.observed > 300
    loads = [
        StepLoad.of((), [600] * 16),
        StepLoad.of((), [900] * 32),
        StepLoad.of([(512, 0)], [600] * 12),
        StepLoad.of([(1200, 0)], [800] * 16),
    ]
    for load in loads:
        wrong = abs(assumed.step_s(load) / true.step_s(load) - 1.0)
        left = abs(pace.latency.step_s(load) / true.step_s(load) - 1.0)
        assert left < 0.15 and left < wrong / 2
    figures = engine.scheduler.status()
    assert figures["step_error"] == pytest.approx(pace.latency.relative_error)
    assert figures["step_factor_decode"] == pytest.approx(pace.latency.factors[2])


def test_without_a_profile_nothing_is_timed() -> None:
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    engine = VirtualEngine(EngineSettings(kv_blocks=20_000), load_profile(ENGINE), {"sloserve": {"policy": "edf"}})
    engine.run(workload()[:5])
    assert engine.scheduler.step_pace is None and engine.scheduler.status()["step_factor_decode"] == 0.0
