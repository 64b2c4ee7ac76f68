"""Blocks for who is admitted: those on their way count, those that the engine keeps back do not."""

from dataclasses import replace

import numpy as np
import pytest

from sloserve.lso.ordering import PreemptionRule, plan_by_key
from tests.snapshots import make_snapshot


@pytest.mark.parametrize(
    ("free", "freeing", "watermark", "preempted"),
    [(2, 0, 0, False), (1, 0, 0, True), (1, 1, 0, False), (2, 0, 1, True), (1, 2, 1, False)],
)
def test_none_is_preempted_for_blocks_that_are_on_their_way(
    free: int, freeing: int, watermark: int, preempted: bool
) -> None:
    """One that waits for two blocks before one that runs."""
    at = make_snapshot([{"kv_blocks": 4}], [{"prompt_tokens": 31}], free_blocks=free)
    at = replace(at, engine=replace(at.engine, freeing_blocks=freeing, watermark_blocks=watermark))
    rule = PreemptionRule(margin=0.1, max_preemptions=9, keep_free=0.0)
    key = np.zeros(at.rows.capacity)
    key[at.running] = 5.0
    plan = plan_by_key(at, key[at.waiting], key[at.running], preempt=rule)
    assert plan.preempt.size == preempted
