"""Steps that an engine computes while its host launches the next one are told the times that they took."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from sloserve.estimator.step_time.grid import Scenario, Wave
from sloserve.estimator.step_time.measurements import TimedStep
from sloserve.estimator.step_time.profile import load_profile
from tests.engine_process import restored_process
from tests.equality.engine import ENGINE_WARNINGS
from tests.vllm_plugin.launched_worker import LAUNCH_S, TIME

pytestmark = [pytest.mark.slow, pytest.mark.vllm, *map(pytest.mark.filterwarnings, ENGINE_WARNINGS)]

PROFILE = "h100-llama3-8b"
"""2,048 tokens of a prompt take longer than launching them, 512 less."""
FLAGS = ["builtin:tiny", "--max-num-batched-tokens", "2048", "--max-model-len", "4096"]
FLAGS += ["--worker-cls", "tests.vllm_plugin.launched_worker.LaunchedWorker"]
FLAGS += ["--additional-config", f'{{"sloserve":{{"profile":"{PROFILE}"}}}}']


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    from sloserve.vllm_plugin.profile_engine import ProfileEngine
    from sloserve.vllm_plugin.server import serve

    with restored_process():
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        engine = ProfileEngine(serve.prepare(FLAGS, {}), now_s=TIME.monotonic_s)
        assert engine.core.batch_queue_size == 2  # as on a GPU
        yield engine
        engine.shutdown()


def true_s(step: TimedStep) -> float:
    """What the step takes."""
    computed_s = load_profile(PROFILE).step_s(step.load)
    return max(computed_s, LAUNCH_S) if step.load.prefill_tokens else computed_s


@pytest.mark.parametrize("chunk_tokens", [512, 2048])
def test_chunks_of_one_prompt(engine: Any, chunk_tokens: int) -> None:
    steps = engine.measure(Scenario(0, 0, (Wave(1, 4000, chunk_tokens),)))
    assert len(steps) == -(-4000 // chunk_tokens)
    for step in steps:
        assert step.duration_s == pytest.approx(true_s(step), rel=1e-6), step
    assert engine.core.batch_queue_size == 2


def test_a_prompt_beside_decodes(engine: Any) -> None:
    """The decodes before it are computed while it is launched: it costs what is left, its own time at least."""
    *decodes, short, long = engine.measure(Scenario(8, 256, (Wave(1, 32, 32), Wave(1, 1900, 1900))))
    assert len(decodes) == 12
    for step in decodes:
        assert step.duration_s == pytest.approx(true_s(step), rel=1e-6)
    assert short.duration_s == pytest.approx(LAUNCH_S - decodes[-1].duration_s, rel=0.02)
    assert long.duration_s == pytest.approx(true_s(long), rel=0.02)
