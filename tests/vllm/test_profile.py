"""``sloserve profile`` on real engines of tiny models: a profile that loads, of the steps that were asked for."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_process import restored_process
from tests.equality.engine import ENGINE_WARNINGS
from tests.equality.layouts.models import ModelFolders

pytestmark = [pytest.mark.vllm, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Run the engine in this process on one thread, which the command sets in the environment: too late here."""
    import torch

    with restored_process():
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        torch.set_num_threads(1)
        yield


def test_profile_of_the_tiny_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from sloserve.cli import app
    from sloserve.estimator.step_time.measurements import Measurements
    from sloserve.estimator.step_time.profile import load_profile

    out = tmp_path / "tiny.yaml"
    flags = ["--max-num-seqs", "32", "--grid", "small", "--repetitions", "2", "--out", str(out)]
    app(["profile", "builtin:tiny", *flags], standalone_mode=False)
    assert "held-out steps" in capfd.readouterr().out

    profile = load_profile(out)
    assert profile.model == "builtin:tiny, float32"
    assert (profile.max_num_seqs, profile.kv_bytes_per_token) == (32, 2 * 2 * 2 * 32 * 4)
    assert profile.start_s is not None and profile.load_s is not None and 0.0 < profile.load_s < profile.start_s
    assert profile.tfs_tokens is not None and 8 <= profile.tfs_tokens <= 512

    steps = Measurements.read(out.with_suffix(".jsonl")).steps()
    loads = [s.load for s in steps]
    assert {x.prefill_tokens for x in loads if not x.decode_seqs and x.num_prefills == 1} >= {8, 32, 128, 256, 512}
    assert {(x.prefill_tokens, x.num_prefills) for x in loads} >= {(64, 2), (256, 2)}, "two prompts in a step"
    assert any(x.prefill_attention_tokens2 == 32 * (32 + 2 * 64) for x in loads), "a chunk of 32 on 64 computed before"
    assert {x.decode_seqs for x in loads} >= {1, 4, 16}
    assert any(x.decode_seqs and x.prefill_tokens == 64 for x in loads), "mixed"
    assert all(0.0 < s.duration_s < 5.0 for s in steps)
    predicted = profile.step_s(loads[0])
    assert 0.0 < predicted < 5.0


@pytest.mark.slow
@pytest.mark.whole
def test_profile_of_a_hybrid(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Attention beside Mamba states, whose block is longer than most chunks of the grid."""
    from sloserve.cli import app
    from sloserve.estimator.step_time.measurements import Measurements
    from sloserve.estimator.step_time.profile import load_profile

    model, out = ModelFolders(tmp_path).of("granite4"), tmp_path / "hybrid.yaml"
    flags = ["--max-num-seqs", "8", "--max-model-len", "1024", "--grid", "small", "--repetitions", "1"]
    app(["profile", model, *flags, "--out", str(out)], standalone_mode=False)
    assert "held-out steps" in capfd.readouterr().out

    profile, loads = load_profile(out), [s.load for s in Measurements.read(out.with_suffix(".jsonl")).steps()]
    assert profile.max_num_seqs == 8
    assert 0.0 < profile.step_s(loads[0]) < 5.0
    assert {x.prefill_tokens for x in loads if not x.decode_seqs and x.num_prefills == 1} >= {8, 32, 128, 256, 512}
    assert any(x.decode_seqs and x.prefill_tokens == 64 for x in loads), "mixed"
