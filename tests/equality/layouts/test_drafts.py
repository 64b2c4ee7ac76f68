"""Pauses under speculative decoding keep stock's replies: on a CPU under the V1 model runner, on a GPU under the V2.

A draft model that is right more often than not, and n-grams.
"""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.equality.engine import ENGINE_WARNINGS, EngineConfig
from tests.equality.layouts.bench import SUBJECT, Case, bench_of, differences
from tests.equality.layouts.models import ModelFolders
from tests.forked import run_forked
from tests.other_vllm import not_with_0_30
from tests.whole import WHOLE

pytestmark = [pytest.mark.vllm, pytest.mark.slow, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

NUM_DRAFTS = 3
NAMES = ("fcfs", "edf", "auto", "chaos-preempt", "chaos-pause", "chaos-limit", "chaos-all", "chaos-nearly-all")


def counting(patch: pytest.MonkeyPatch) -> Counter[str]:
    """Drafts that our scheduler schedules, and those of requests that were left out of the step before."""
    from sloserve.vllm_plugin import SLOScheduler

    seen: Counter[str] = Counter()
    schedule, last = SLOScheduler.schedule, set[str]()

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal last
        output = schedule(self, *args, **kwargs)
        drafted = output.scheduled_spec_decode_tokens
        seen["drafts"] += sum(map(len, drafted.values()))
        seen["after_a_pause"] += sum(len(tokens) for name, tokens in drafted.items() if name not in last)
        last = set(output.num_scheduled_tokens)
        return output

    patch.setattr(SLOScheduler, "schedule", counted)
    return seen


def serve_all(
    case: Case, speculative: dict[str, Any], names: tuple[str, ...], folders: ModelFolders, none: Path
) -> None:
    drafts = {"speculative_config": {"num_speculative_tokens": NUM_DRAFTS, **speculative}}
    with pytest.MonkeyPatch.context() as patch, bench_of(case, folders, none, "greedy", **drafts) as bench:
        seen = counting(patch)
        stock = bench.stock("greedy")
        for name in names:
            seen.clear()
            served = bench.serve(SUBJECT[name], "greedy")
            print(case, name, dict(seen), served.steps, served.paused_steps, served.preemptions)
            counters = bench.engine.scheduler.slo_counters
            assert differences(served, stock) == [], name
            assert counters["internal_errors"] == 0
            assert seen["drafts"] > 10
            assert not SUBJECT[name].pauses or (served.paused_steps > 0 and seen["after_a_pause"] > 0), name


@not_with_0_30("its CPU build cannot compile the kernels of drafts")
def test_with_a_draft_model(folders: ModelFolders, tmp_path: Path) -> None:
    """Under async scheduling: without it vLLM's CPU engine asks for a CUDA stream."""
    draft = {"method": "draft_model", "model": folders.of("llama-draft")}
    serve_all(Case("llama", EngineConfig(True, True)), draft, NAMES if WHOLE else NAMES[-2:], folders, tmp_path)


def serve_with_ngrams() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ngram = {"method": "ngram", "prompt_lookup_max": 4}
        serve_all(Case("llama", EngineConfig(False, True)), ngram, NAMES, ModelFolders(Path(folder)), Path(folder))


@pytest.mark.skipif(not WHOLE, reason="part of make whole")
def test_with_ngrams() -> None:
    """In a process of its own: it loads numba, after which vLLM starts no second engine in the same one."""
    run_forked(serve_with_ngrams)
