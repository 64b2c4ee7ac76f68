"""No policy serves an unfinished prompt before a decode while KV blocks suffice, whatever it orders by."""

from collections.abc import Callable

import numpy as np
import pytest

from sloserve.lso.decode_first import uncomputed_tokens
from sloserve.scheduler.policy import Snapshot, check_plan
from sloserve.scheduler.registry import make_policy, policy_names

Make = Callable[..., Snapshot]
NOW_S = 1000.0

OWN_ORDER = {
    "continuum", "fcfs", "multires", "orca", "sa", "sa-batches", "sarathi", "sync-coupled", "thunder-agent",
}  # fmt: skip
"""They leave the order of service to vLLM, which serves in the order of admission."""
PROMPTS_ALONE = {"vllm-2023"}
"""They compute prompts in steps of their own, in which decodes pause."""


def crowd(snapshot: Make) -> Snapshot:
    """Prompts in progress that are more urgent, shorter, of a better class and older than the decodes beside them."""
    urgent = {"arrival_s": NOW_S - 5, "ttft_s": 1.0, "tpot_s": 0.01, "priority": -1, "oracle_output_tokens": 1}
    prompts = [urgent | {"prompt_tokens": 100, "computed_tokens": 96, "kv_blocks": 6, "max_tokens": 10}] * 2
    lax = {"arrival_s": NOW_S - 1, "e2e_s": 900.0, "class_rank": 3, "class_id": 3, "oracle_output_tokens": 500}
    begun = {"first_token_s": NOW_S - 0.5, "prompt_tokens": 16, "computed_tokens": 20, "output_tokens": 5}
    return snapshot(
        [lax] * 2, [*prompts, *[lax | begun] * 3, *prompts], max_num_seqs=9, free_blocks=100, total_blocks=1000
    )


@pytest.mark.parametrize("name", policy_names())
def test_decodes_stand_before_unfinished_prompts(name: str, snapshot: Make) -> None:
    at = crowd(snapshot)
    policy = make_policy(name)
    for slot in (*at.running, *at.waiting):
        policy.arrived(at.rows, int(slot), NOW_S)
    at.rows.keep(policy.needs)  # what it did not ask for is not there, as in an engine
    planned = policy.plan(at, NOW_S)
    check_plan(planned, at)
    if name in OWN_ORDER:
        assert planned.running is None
        return
    assert planned.running is not None
    served = planned.running[~np.isin(planned.running, planned.pause)]
    left = uncomputed_tokens(crowd(snapshot).rows, served).tolist()
    if name in PROMPTS_ALONE:
        assert 0 not in left and planned.pause.size == 3
        return
    assert 0 in left and left == sorted(left)
