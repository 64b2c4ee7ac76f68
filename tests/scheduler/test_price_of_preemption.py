"""Policies charge a preemption what it costs: where its victim can be swapped, less than computing it again."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sloserve.core.rows import State
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.lso.lengths import Lengths
from sloserve.lso.plan import EngineFacts, Snapshot, SwapFacts
from sloserve.lso.step_budget import StepBudget
from sloserve.scheduler.registry import make_policy
from tests.snapshots import make_snapshot

NOW_S = 1000.0
POOL = SwapFacts(block_bytes=2**21, total_blocks=4000, free_blocks=4000, bytes_per_s=50e9)
LONG = {"prompt_tokens": 2000, "output_tokens": 1, "computed_tokens": 2000, "kv_blocks": 126}
SHORT = {"prompt_tokens": 20, "output_tokens": 4, "computed_tokens": 23, "kv_blocks": 2, "first_token_s": NOW_S - 1.0}


class SlowPrompts:
    """Computing again is dear: 1 ms a token beside steps of 10 ms."""

    def step_s(self, load: StepLoad) -> float:
        return 0.01 + 0.001 * load.prefill_tokens

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        return max(int((seconds - 0.01) / 0.001), 0)


def crowded(policy: str) -> Snapshot:
    """An urgent request waits, and one that could give way for it is not far enough behind to be computed again."""
    if policy == "edf":
        victim = {**LONG, "arrival_s": NOW_S - 1.0, "e2e_s": 20.0}
        return make_snapshot([{"arrival_s": NOW_S, "e2e_s": 5.0}], [victim], free_blocks=0, max_num_seqs=4)
    if policy == "andes":
        victim = {**LONG, "output_tokens": 100, "arrival_s": NOW_S - 10.0, "first_token_s": NOW_S - 9.0, "tds": 4.0}
        waits = {"arrival_s": NOW_S - 0.8, "ttft_s": 1.0, "tds": 4.0, "oracle_output_tokens": 1000}
        return make_snapshot([waits], [victim], free_blocks=0, max_num_seqs=4)
    long = {**LONG, "arrival_s": NOW_S, "e2e_s": 60.0, "oracle_output_tokens": 12}
    waits = {"prompt_tokens": 1000, "arrival_s": NOW_S, "e2e_s": 5.0, "oracle_output_tokens": 20}
    return make_snapshot([waits] * 2, [long], free_blocks=20, total_blocks=150)


@pytest.mark.parametrize("name", ["edf", "andes", "econo", "auto"])
@pytest.mark.parametrize(
    ("swap", "preempts"),
    [
        (None, False),
        (POOL, True),
        (replace(POOL, free_blocks=100), False),  # fewer than the victim has
        (replace(POOL, out_s=60.0), False),  # behind a queue that takes longer than computing again
    ],
)
def test_who_can_be_swapped_gives_way_sooner(name: str, swap: SwapFacts | None, preempts: bool) -> None:
    at = crowded(name)
    at = replace(at, engine=replace(at.engine, step_latency=SlowPrompts(), swap=swap))
    options: dict[str, Any] = {} if name == "edf" else {"length": "oracle"}
    policy = make_policy(name, options)
    for slot in range(at.running.size + at.waiting.size):
        policy.arrived(at.rows, slot, NOW_S)
    assert policy.plan(at, NOW_S).preempt.tolist() == ([0] if preempts else [])


def test_a_step_has_no_prompt_of_a_request_that_the_pool_keeps() -> None:
    """What comes by the link takes none of the step's tokens, neither limits it nor divides by its length."""
    decode = {**SHORT, "tpot_s": 0.05, "arrival_s": NOW_S - 2.0}
    kept = {"prompt_tokens": 3000, "state": State.PREEMPTED, "swapped_tokens": 3000, "output_tokens": 1}
    prompt = {"prompt_tokens": 3000, "arrival_s": NOW_S}

    def tokens(*waiting: dict[str, Any]) -> int | None:
        at = make_snapshot(waiting, [decode])
        engine: EngineFacts = replace(at.engine, step_latency=SlowPrompts())
        order = at.waiting[np.argsort(at.rows.seq[at.waiting])]
        return StepBudget(Lengths(seed=0)).tokens(at.rows, at.running, order, order[:0], engine, NOW_S)

    assert tokens(kept) is None
    assert tokens(kept, prompt) == tokens(prompt) is not None
