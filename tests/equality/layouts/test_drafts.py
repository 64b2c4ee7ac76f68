"""Pauses under speculative decoding keep stock's replies, whoever drafts: n-grams, a model, an EAGLE head, MTP.

On a CPU under the V1 model runner. On a GPU under the V2, where pauses are still off with all but a draft model
(``plans_off.no_pauses_reason``): the tests there lift that guard, and it may go once they have passed.
"""

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sloserve.core.arrays import IntArray
from tests.equality.engine import ENGINE_WARNINGS, EngineConfig
from tests.equality.layouts.bench import SUBJECT, Case, bench_of, differences
from tests.equality.layouts.drafters import eagle_head, mimo
from tests.equality.layouts.models import ModelFolders
from tests.equality.subjects import Subject
from tests.equality.test_real_engine import Bench
from tests.forked import run_forked
from tests.gpu import ON_A_GPU
from tests.other_vllm import not_with_0_30
from tests.whole import WHOLE, sampled

pytestmark = [pytest.mark.vllm, pytest.mark.slow, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

NUM_DRAFTS = 3
NAMES = ("fcfs", "edf", "auto", "chaos-preempt", "chaos-pause", "chaos-limit", "chaos-all", "chaos-nearly-all")


def counting(patch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts drafts that our scheduler schedules, those of requests that were left out of the step before, and of
    both how many were accepted.
    """
    from sloserve.vllm_plugin import SLOScheduler

    seen: Counter[str] = Counter()
    schedule, update, last = SLOScheduler.schedule, SLOScheduler.update_from_output, set[str]()
    came_back: dict[int, set[str]] = {}  # by step in flight

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal last
        output = schedule(self, *args, **kwargs)
        drafted = output.scheduled_spec_decode_tokens
        seen["drafts"] += sum(map(len, drafted.values()))
        came_back[id(output)] = drafted.keys() - last
        seen["after_a_pause"] += sum(len(drafted[name]) for name in came_back[id(output)])
        last = set(output.num_scheduled_tokens)
        return output

    def updated(self: Any, output: Any, results: Any) -> Any:
        back = came_back.pop(id(output), set())
        for name in output.scheduled_spec_decode_tokens:
            accepted = max(len(results.sampled_token_ids[results.req_id_to_index[name]]) - 1, 0)
            seen["accepted"] += accepted
            seen["accepted_after_a_pause"] += accepted if name in back else 0
        return update(self, output, results)

    patch.setattr(SLOScheduler, "schedule", counted)
    patch.setattr(SLOScheduler, "update_from_output", updated)
    return seen


def serve_all(
    case: Case, speculative: dict[str, Any], names: tuple[str, ...], folders: ModelFolders, none: Path
) -> None:
    drafts = {"speculative_config": {"num_speculative_tokens": NUM_DRAFTS, **speculative}}
    with pytest.MonkeyPatch.context() as patch, bench_of(case, folders, none, "greedy", **drafts) as bench:
        if ON_A_GPU:
            assert bench.engine.llm.vllm_config.use_v2_model_runner
            patch.setattr("sloserve.vllm_plugin.engine.plans_off.no_pauses_reason", lambda scheduler: None)
        seen = counting(patch)
        stock = bench.stock("greedy")
        for name in names:
            seen.clear()
            served = bench.serve(SUBJECT[name], "greedy")
            print(case, name, dict(seen), served.steps, served.paused_steps, served.preemptions)
            counters = bench.engine.scheduler.slo_counters
            assert differences(served, stock) == [], name
            assert counters["internal_errors"] == 0
            assert seen["drafts"] > 10 and seen["accepted"] > 0
            assert not SUBJECT[name].pauses or (served.paused_steps > 0 and seen["after_a_pause"] > 0), name
        serve_with_fewer_drafts(bench)


def drawn_lengths(seed: int) -> Callable[..., IntArray]:
    """Return a choice of drafts without a reason: of each request between none and all."""
    rng = np.random.default_rng(seed)

    def lengths(rows: Any, decodes: IntArray, *args: Any, **kwargs: Any) -> IntArray:
        found: IntArray = rng.integers(0, NUM_DRAFTS + 1, decodes.size)
        return found

    return lengths


def serve_with_fewer_drafts(bench: Bench) -> None:
    """Compare replies with stock's while decodes verify any number of their drafts."""
    subject = Subject("fewer-drafts", {"policy": "auto", "policy_options": {"drafts": "slack"}}, pauses=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sloserve.engine.draft_control.draft_lengths", drawn_lengths(7))
        served = bench.serve(subject, "greedy")
    counters = bench.engine.scheduler.slo_counters
    assert differences(served, bench.stock("greedy")) == []
    assert counters["internal_errors"] == 0 and counters["drafts_left_out"] > 3


@not_with_0_30("its CPU build cannot compile the kernels of drafts")
def test_with_a_draft_model(folders: ModelFolders, tmp_path: Path) -> None:
    """Under async scheduling: without it vLLM's CPU engine asks for a CUDA stream."""
    draft = {"method": "draft_model", "model": folders.of("llama-draft")}
    serve_all(Case("llama", EngineConfig(True, True)), draft, NAMES if WHOLE else NAMES[-2:], folders, tmp_path)


HEADS: dict[str, tuple[str, Callable[[ModelFolders], dict[str, Any]]]] = {
    "eagle": ("llama", lambda folders: {"method": "eagle", "model": eagle_head(folders)}),
    "mtp": ("mimo", lambda folders: {"method": "mtp"} if mimo(folders) else {}),
}
"""The model, and what drafts for it."""


@not_with_0_30("its CPU build cannot compile the kernels of drafts")
@pytest.mark.parametrize("head", sampled(HEADS, ["eagle"]))
def test_with_a_head_on_the_model(head: str, folders: ModelFolders, tmp_path: Path) -> None:
    """Under async scheduling, as with a draft model."""
    model, speculative = HEADS[head]
    names = NAMES if WHOLE else NAMES[-1:]
    serve_all(Case(model, EngineConfig(True, True)), speculative(folders), names, folders, tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_A_GPU, reason="the V2 model runner needs a GPU")
@pytest.mark.parametrize("method", ["draft_model", "ngram", *HEADS])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_on_the_v2_model_runner(method: str, is_async: bool, folders: ModelFolders, tmp_path: Path) -> None:
    """There drafts stay in the request's own slot: those of one that comes back are verified, and may be accepted."""
    model, speculative = HEADS.get(method, ("llama", None))
    found: dict[str, Any] = {"method": method}
    if speculative is not None:
        found = speculative(folders)
    elif method == "ngram":
        found["prompt_lookup_max"] = 4
    else:
        found["model"] = folders.of("llama-draft")
    serve_all(Case(model, EngineConfig(is_async, True)), found, NAMES, folders, tmp_path)


def serve_with_ngrams() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ngram = {"method": "ngram", "prompt_lookup_max": 4}
        serve_all(Case("llama", EngineConfig(False, True)), ngram, NAMES, ModelFolders(Path(folder)), Path(folder))


@pytest.mark.whole
def test_with_ngrams() -> None:
    """In a process of its own: it loads numba, after which vLLM starts no second engine in the same one."""
    run_forked(serve_with_ngrams)
