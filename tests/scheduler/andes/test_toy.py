"""Figure 4 of Andes on the real virtual engine: room for 200 tokens, four requests at once, and one who can wait.

The paper draws the example without its numbers. These are chosen so that a schedule exists which keeps all four readers
content: the first three fit together, and so do the first, the second and the fourth; the third and largest expects
nothing before 5 s, the fourth soon. Tokens come three times as fast as they are read, so that after 5 s whoever was
served from the start is far enough ahead to make room.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.estimator.step_time.latency import DecodeLine, Hinge
from sloserve.estimator.step_time.profile import load_profile
from tests.other_vllm import not_with_0_30

pytestmark = pytest.mark.vllm

CAPACITY_TOKENS = 200
STEP_MS, PREFILL_TOKEN_MS = 100.0, 0.5
"""Ten tokens a second each; a prompt, or a preempted request computed anew, adds to its step: 100 tokens 50 ms."""


@dataclass(frozen=True)
class Reader:
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tds: float


READERS = (Reader(30, 60, 1.0, 3.0), Reader(40, 60, 1.0, 3.0), Reader(100, 40, 5.0, 4.0), Reader(50, 60, 0.5, 3.0))

ANDES = "andes-parts:lead_s=2:urgent_s=0.5:watermark=0"
"""Made for caches of hundreds of requests, the defaults plan from nine tenths of the KV in use on, which four requests
of up to half the cache pass over, and preempt who is 40 s ahead, where this whole story takes a third of that. Here
every step is planned, and 2 s will do: a preempted request comes back within one step."""


def serve(policy: str | None) -> tuple[RunLog, list[float]]:
    """The run under ``policy`` (``None``: stock), and each reader's QoE."""
    from sloserve.engine.virtual.engine_settings import EngineSettings
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    latency = Hinge(
        free_tokens=0,
        base_ms=STEP_MS,
        token_ms=PREFILL_TOKEN_MS,
        seq_ms=-PREFILL_TOKEN_MS,  # decoding is as fast for three as for one
        context_token_ms=0.0,
        attention_token2_ms=0.0,
        prefix_attention_token2_ms=0.0,
        decode=DecodeLine(base_ms=STEP_MS, context_token_ms=0.0, seq_ms=0.0),
    )
    profile = load_profile("h100-llama3-8b").model_copy(update={"latency": latency, "engine_overhead_ms": 0.0})
    settings = EngineSettings(
        kv_blocks=CAPACITY_TOKENS, block_size=1, max_num_seqs=4, max_num_batched_tokens=200, max_model_len=200
    )
    config: dict[str, Any] | None = None if policy is None else {"sloserve": {"policy": policy, "aged_share": 0.0}}
    workload = [
        WorkloadRequest(
            f"r{i}",
            0.0,
            one.prompt_tokens,
            one.output_tokens,
            DEFAULT_CLASSES.slo(None, Targets(ttft_s=one.ttft_s, tds=one.tds)),
        )
        for i, one in enumerate(READERS, 1)
    ]
    log = VirtualEngine(settings, profile, config).run(workload)
    found = [one.qoe for one in log.requests]
    assert all(one is not None for one in found)
    return log, [one for one in found if one is not None]


def test_the_engine_is_that_of_the_example() -> None:
    prompts = [one.prompt_tokens for one in READERS]
    assert sum(prompts) > CAPACITY_TOKENS > max(sum(prompts[:3]), prompts[0] + prompts[1] + prompts[3])
    assert all(one.prompt_tokens + one.output_tokens <= CAPACITY_TOKENS for one in READERS)
    assert all(one.tds * STEP_MS / 1000.0 < 1.0 for one in READERS)


def test_first_come_first_served_keeps_the_fourth_waiting() -> None:
    log, found = serve(None)
    assert min(found[:3]) >= 0.999 and found[3] < 0.5
    # It begins only when somebody ends.
    assert log.requests[3].first_token_s > min(float(r.token_times_s[-1]) for r in log.requests[:3])


@not_with_0_30("round robin misses its readers by less than 3 % there")
@pytest.mark.parametrize("interval_steps", [1, 2, 5, 10, 20, 50])
def test_round_robin_misses_somebody_at_any_interval(interval_steps: int) -> None:
    _, stock = serve(None)
    log, found = serve(f"rr:interval_steps={interval_steps}")
    assert stock[3] < min(found) < 0.97
    if interval_steps <= 2:
        # In time with the first token, it fails in the later stage: all are served alike, whatever they have in store.
        assert log.requests[3].first_token_s <= READERS[3].ttft_s + STEP_MS / 1000.0


def test_andes_keeps_all_four_content() -> None:
    log, found = serve(ANDES)
    assert min(found) >= 0.999
    first, second, third, fourth = log.requests
    # Who expects something soon is served first, all three at once.
    assert first.token_times_s[0] == second.token_times_s[0] == fourth.token_times_s[0] <= READERS[3].ttft_s
    # The third comes when its time has come, for which somebody with a store makes room and returns later.
    assert 4.0 < third.first_token_s <= READERS[2].ttft_s
    assert log.counters["evictions"] >= 1
    early = [r for r in (first, second, fourth) if float(r.token_times_s[-1]) < third.first_token_s]
    assert not early
    assert any(r.num_preemptions and float(r.token_times_s[-1]) > float(third.token_times_s[-1]) for r in log.requests)


def test_andes_of_defaults_for_large_engines_serves_the_toy_better_than_stock() -> None:
    _, stock = serve(None)
    _, found = serve("andes")
    assert min(found) > min(stock) and sum(found) > sum(stock)


def test_the_same_twice() -> None:
    (one, _), (other, _) = serve(ANDES), serve(ANDES)
    for a, b in zip(one.requests, other.requests, strict=True):
        assert a.token_times_s.tolist() == b.token_times_s.tolist() and a.num_preemptions == b.num_preemptions
