"""What vLLM offers beside plain text, with prompts cut at every place, requests preempted, paused and swapped out.

The measure is a run of stock vLLM in which each request is alone, so that no prompt is cut. All draw with a seed: such
a reply is the same only if each token is drawn from the same logits, and from the same place of its generator.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from tests.equality.engine import ENGINE_WARNINGS, MAX_MODEL_LEN, EngineConfig, started
from tests.equality.harness import MAX_STEPS, Served, serve
from tests.equality.subjects import SUBJECTS
from tests.equality.test_real_engine import Bench
from tests.equality.workloads import RISING, Job
from tests.gpu import ON_A_GPU
from tests.other_vllm import IS_0_30
from tests.whole import sampled

pytestmark = [pytest.mark.vllm, *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS)]

ENGINES = [
    EngineConfig(async_scheduling=False, prefix_caching=False),
    EngineConfig(async_scheduling=True, prefix_caching=True, host_blocks=160),
]
CUT_TOKENS = 24
"""Of a step, where prompts are cut by vLLM itself."""

TOLERANCE = 3e-3 if ON_A_GPU else 1e-3
"""Of log probabilities. Triton multiplies float32 in fewer bits."""

FEATURES: dict[str, dict[str, Any]] = {
    "seed": {},
    "n": {"n": 2, "top_p": 0.9},
    "penalties": {
        "top_k": 20,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "logprobs": 2,
    },
    "min_tokens": {"min_p": 0.02, "min_tokens": 20, "ignore_eos": False},
    "bad_words": {"bad_words": ["a", "e", "to"], "logit_bias": {70: 4.0, 71: -5.0}},
    "allowed": {"allowed_token_ids": list(range(33, 90))},
    "stop": {"stop": ["xy", "qq"], "ignore_eos": False},
    "regex": {"structured_outputs": {"regex": r"[a-z]{6}-[0-9]{4}(, [a-z]{3}){8}"}, "ignore_eos": False},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "processor": {},
    "embeds": {},
}
if IS_0_30:
    # It leaves what a row that moved or ended had of these two to whatever request comes there, under stock too.
    del FEATURES["allowed"], FEATURES["embeds"]


def jobs() -> list[Job]:
    """One request of each feature, in three lengths of prompts, all within a few steps."""
    found = []
    for i, (name, params) in enumerate(FEATURES.items()):
        given = {"temperature": 1.0, "seed": i, "max_tokens": 24 + 6 * (i % 3), "ignore_eos": True, **params}
        prompt: Any = f"Request {i}: " + "to be or not to be, " * (2 + 2 * (i % 3))
        if name == "embeds":
            prompt = {"prompt_embeds": embeds(70)}
        slo = {"slo_class": ("interactive", "batch")[i % 2], "slo_e2e_ms": (9000, 2500, 30000)[i % 3]}
        slo |= {RISING: 1} if name == "processor" else {}
        found.append(Job(name, prompt, 3 * (i // 2), given, slo=slo))
    return found


def embeds(tokens: int) -> Any:
    import torch

    return torch.randn(tokens, 128, generator=torch.Generator().manual_seed(9))


@pytest.fixture(scope="module", params=sampled(ENGINES, ENGINES[1:]), ids=str)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    arguments = {"max_num_batched_tokens": MAX_MODEL_LEN, "enable_prompt_embeds": True}
    arguments |= {"logits_processors": ["tests.equality.logits:Rising"]}
    with started(request.param, **arguments) as engine:
        yield Bench(engine, tmp_path_factory.mktemp("none"))


@pytest.fixture(scope="module")
def uncut(bench: Bench) -> Served:
    bench.engine.use_stock()
    alone = [replace(job, at_step=MAX_STEPS) for job in jobs()]
    served = serve(bench.engine, alone, ManualClock(), bench._adapters)
    assert served.cuts == served.preemptions == 0
    return served


def check(served: Served, uncut: Served) -> None:
    assert served.cuts > 10
    for name, samples in uncut.outputs.items():
        assert served.outputs[name] == samples, name
    for name, places in uncut.logprobs.items():
        for mine, stocks in zip(served.logprobs[name], places, strict=True):
            assert mine == pytest.approx(stocks, abs=TOLERANCE)


@pytest.mark.parametrize("ours", [False, True], ids=["stock", "fcfs"])
def test_cut_by_vllm_itself(bench: Bench, uncut: Served, ours: bool) -> None:
    clock = ManualClock()
    if ours:
        bench.engine.use_sloserve({"policy": "fcfs"}, clock=clock)
    else:
        bench.engine.use_stock()
    bench.engine.scheduler.max_num_scheduled_tokens = CUT_TOKENS
    served = serve(bench.engine, jobs(), clock, bench._adapters)
    assert served.preemptions > 0 or IS_0_30  # which has room for all of them without a prefix cache
    check(served, uncut)


CHOSEN = ("edf", "auto", "chaos-limit", "chaos-nearly-all", "chaos-all-reused-plans")


@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.name in CHOSEN], ids=str)
def test_cut_by_plans(bench: Bench, uncut: Served, subject: Any) -> None:
    clock, swaps = ManualClock(), bool(bench.engine.config.host_blocks)
    section = subject.swapping().section if swaps else subject.section
    bench.engine.use_sloserve({**section, "plan_share": 1.0}, clock=clock)
    bench.engine.scheduler.max_num_scheduled_tokens = 2 * CUT_TOKENS
    served = serve(bench.engine, jobs(), clock, bench._adapters)
    check(served, uncut)
    counters = bench.engine.scheduler.slo_counters
    assert counters["internal_errors"] == 0
    assert counters["swap_loads"] > 0 or not (swaps and subject.preempts)


def test_each_feature_shows(uncut: Served) -> None:
    """What a feature does to its reply, so that one that were ignored would not pass for equal."""
    assert uncut.outputs["n"][0] != uncut.outputs["n"][1]
    assert len(uncut.outputs["min_tokens"][0]) >= 20
    assert set(uncut.outputs.get("allowed", [[]])[0]) <= set(range(33, 90))
    assert uncut.outputs["processor"][0] == sorted(uncut.outputs["processor"][0])
    assert sorted(uncut.logprobs) == ["penalties", "prompt_logprobs"]
