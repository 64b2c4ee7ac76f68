"""The worker that stands in for a GPU's sleep mode: memory is really given back, and outputs are those of before."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.equality.engine import ENGINE_WARNINGS, Engine, EngineConfig, started

pytestmark = [pytest.mark.vllm, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

WORKER = "tests.equality.sleeping_worker.SleepingCPUWorker"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with started(EngineConfig(async_scheduling=True, prefix_caching=True), worker_cls=WORKER) as engine:
        yield engine


def tokens(engine: Engine, prompt: str) -> list[int]:
    from vllm.sampling_params import SamplingParams

    engine.llm.add_request("one", prompt, SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True))
    outputs: list[Any] = []
    while not outputs:
        outputs = [output for output in engine.llm.step() if output.finished]
    while not engine.idle():
        engine.llm.step()
    return list(outputs[0].outputs[0].token_ids)


def resident(engine: Engine) -> tuple[int, int]:
    worker = engine.core.model_executor.driver_worker.worker
    return worker.resident_bytes("weights"), worker.resident_bytes("kv_cache")


@pytest.mark.parametrize("level", [1, 2])
def test_memory_goes_and_outputs_come_back(engine: Engine, level: int) -> None:
    before = tokens(engine, "Tell me about the sea")
    assert min(resident(engine)) > 0
    engine.core.sleep(level, "keep")
    assert resident(engine) == (0, 0)
    if level == 2:  # as with a GPU: the weights are gone for good
        engine.core.wake_up(["weights"])
        engine.core.collective_rpc("reload_weights")
        engine.core.wake_up(["kv_cache"])
    else:
        engine.core.wake_up()
    assert resident(engine)[0] > 0
    assert tokens(engine, "Tell me about the sea") == before
