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
from tests.forked import run_forked
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


def measure_with_ngrams() -> None:
    from sloserve.vllm_plugin.profile_engine import ProfileEngine
    from sloserve.vllm_plugin.server import serve

    ngrams = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":3,"prompt_lookup_min":1}'
    flags = ["builtin:tiny", "--max-num-batched-tokens", "512", "--max-model-len", "1024"]
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    engine = ProfileEngine(serve.prepare([*flags, "--speculative-config", ngrams], {}))
    assert engine.limits.decode_tokens == 4
    assert engine.facts("p", "tiny")["model"] == "tiny, float32, 3 drafts a step (ngram)"
    *decodes, prompt = engine.measure(Scenario(16, 128, (Wave(1, 448, 448),)))
    engine.shutdown()
    assert len(decodes) == 12 and all(step.load.decode_seqs == 16 for step in (*decodes, prompt))
    drafts = [step.load.draft_tokens or 0 for step in decodes]
    assert max(drafts) <= 48 and sum(drafts) > 12 * 16
    assert prompt.load.prefill_tokens == 448 and prompt.kind == "wave 0 step 0"


@pytest.mark.whole
def test_steps_with_drafts() -> None:
    """n-grams on the CPU engine: decodes are timed with their drafts, and prompts are computed beside them.

    In a process of its own: it loads numba, after which vLLM starts no second engine in the same one.
    """
    run_forked(measure_with_ngrams)
