"""The benchmark of chats beside long prompts: what is limited, and what is counted."""

from types import SimpleNamespace

import numpy as np

from benchmarks.policies import long_prompts
from benchmarks.policies.long_prompts import CHUNKS, Chunked, figures
from tests.snapshots import make_snapshot


def ended(prompt_tokens: int, first_s: float, good: bool) -> SimpleNamespace:
    request = SimpleNamespace(prompt_tokens=prompt_tokens, arrival_s=1.0)
    return SimpleNamespace(
        request=request, token_times_s=np.array([first_s, first_s + 1.0]), good=good, num_preemptions=1
    )


def test_stock_with_chunks_changes_nothing_but_the_chunks() -> None:
    for tokens in CHUNKS:
        plan = Chunked(tokens).plan(make_snapshot([{}], [{}]), 0.0)
        assert plan.prefill_chunk_tokens == tokens
        assert plan.running is plan.waiting is plan.max_running is None and not plan.preempt.size


def test_both_kinds_are_counted_apart() -> None:
    log = SimpleNamespace(
        requests=[ended(500, 2.0, True), ended(500, 4.0, False), ended(long_prompts.LONG_TOKENS, 9.0, True)],
        counters={"paused_steps": 6},
    )
    found = figures(log)  # type: ignore[arg-type]
    assert (found["chats_in_time"], found["chats_ttft_s"]) == (0.5, 2.0)
    assert (found["long_in_time"], found["long_ttft_s"]) == (1.0, 8.0)
    assert (found["output_throughput"], found["preemptions_per_request"], found["pauses_per_request"]) == (
        0.6,
        1.0,
        2.0,
    )
