"""Replies to prompts with audio clips equal stock vLLM's whatever is planned, on a real multimodal model.

Clips are longer than what a step has left, so that chunks end inside them; several prompts at once fill the encoder's
cache; what is preempted is encoded again. (Models with images need torchvision for their processors.)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sloserve.core.clock import ManualClock
from tests.equality import audio_model
from tests.equality.engine import ENGINE_WARNINGS, Engine, EngineConfig, started
from tests.equality.harness import Served, serve
from tests.equality.layouts.bench import SUBJECT
from tests.equality.subjects import Subject
from tests.equality.workloads import Job
from tests.whole import WHOLE

pytestmark = [pytest.mark.vllm, pytest.mark.slow, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

NAMES = ("fcfs", "edf", "sjf", "auto", "econo", "andes", "chaos-limit", "chaos-all", "chaos-nearly-all")
CHOSEN = ("auto", "chaos-all", "chaos-nearly-all")
STEP_TOKENS = 96
MODES = [EngineConfig(async_scheduling=True, prefix_caching=True), EngineConfig(False, False)]


def jobs() -> list[Job]:
    """24 requests with 0 to 3 clips of half a second to two seconds: 13 to 50 tokens each."""
    rng = np.random.default_rng(4)
    sizes = [audio_model.SAMPLES_PER_S * halves // 2 for halves in (1, 2, 3, 4, 2, 3)]
    clips = [(rng.normal(0.0, 0.3, size).astype(np.float32), audio_model.SAMPLES_PER_S) for size in sizes]
    found = []
    for i in range(24):
        count = (1, 2, 0, 1, 3)[i % 5]
        text = "".join(audio_model.CLIP + "abcdefgh"[(i + j) % 8] * 5 for j in range(count)) + "xyz" * (1 + i % 7)
        prompt: dict[str, Any] = {"prompt": text}
        if count:
            prompt["multi_modal_data"] = {"audio": [clips[(i + 2 * j) % len(clips)] for j in range(count)]}
        params = {"temperature": 0.0, "max_tokens": 10 + 3 * (i % 9), "ignore_eos": True}
        slo = {"slo_e2e_ms": (1500, 9000, 400)[i % 3], "slo_ttft_ms": 900}
        found.append(Job(f"m{i}", prompt, i, params, slo=slo))
    return found


@dataclass
class Audio:
    """An engine of the model, and what stock vLLM replies."""

    engine: Engine
    stock: Served

    def serve(self, section: dict[str, Any] | None, order: int = 1) -> Served:
        clock = ManualClock()
        if section is None:
            self.engine.use_stock()
        else:
            self.engine.use_sloserve({**section, "plan_share": 1.0}, clock=clock)
        return serve(self.engine, jobs(), clock, Path(), order=order)


@pytest.fixture(scope="module", params=MODES if WHOLE else MODES[1:], ids=str)
def audio(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audio]:
    folder = tmp_path_factory.mktemp("audio")
    audio_model.write(folder)
    arguments: dict[str, Any] = {
        "model": str(folder),
        "max_num_batched_tokens": STEP_TOKENS,
        "num_gpu_blocks_override": 15,
        "limit_mm_per_prompt": {"audio": 3},
    }
    with started(request.param, **arguments) as engine:
        found = Audio(engine, Served())
        found.stock = found.serve(None)
        yield found


def test_stock_equals_itself(audio: Audio) -> None:
    """And its replies are such that a difference would show; clips are cut, and requests preempted."""
    assert audio.serve(None, order=-1).outputs == audio.stock.outputs
    assert audio.stock.cuts > 5 and audio.stock.preemptions > 0
    assert len({tuple(samples[0]) for samples in audio.stock.outputs.values()}) == 24


@pytest.mark.parametrize("subject", [SUBJECT[name] for name in (NAMES if WHOLE else CHOSEN)], ids=str)
def test_outputs(audio: Audio, subject: Subject) -> None:
    served = audio.serve(subject.section)
    scheduler = audio.engine.scheduler
    assert served.outputs == audio.stock.outputs
    counters = scheduler.slo_counters
    assert counters["internal_errors"] == 0 and scheduler.status()["plans_off"] is None
    assert counters["plans"] > 0 or subject.name == "fcfs"
    assert counters["evictions"] > 0 or not (subject.preempts and subject.name.startswith("chaos"))
    assert served.paused_steps > 0 or not subject.pauses
    manager = scheduler.encoder_cache_manager
    assert manager.num_freeable_slots == manager.cache_size, "somebody holds a clip"
