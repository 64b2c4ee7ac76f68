"""Hand-made engine states for the tests of policies."""

import math
from collections.abc import Sequence
from typing import Any

from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.core.rows import COLUMNS, Rows, State
from sloserve.estimator.step_time.inverse import MOST_TOKENS
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.scheduler.policy import EngineFacts, Snapshot

Request = dict[str, Any]

STEP_S = 0.03


class SteadySteps:
    """Every step takes as long, whatever is in it."""

    def step_s(self, load: StepLoad) -> float:
        return STEP_S

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        return MOST_TOKENS if seconds >= STEP_S else 0


def make_snapshot(
    waiting: Sequence[Request] = (),
    running: Sequence[Request] = (),
    *,
    free_blocks: int = 1000,
    total_blocks: int = 1000,
    max_num_seqs: int = 8,
    block_size: int = 16,
) -> Snapshot:
    """Slots and ``seq`` count from 0: first the running requests, then the waiting ones, each in the order given.

    An e2e target is the request's own, and no task's deadline, unless the request says otherwise.
    """
    rows = Rows(frozenset(COLUMNS))
    runs = {"state": State.RUNNING, "kv_blocks": 2}
    for request, state in [(one, runs) for one in running] + [(one, {}) for one in waiting]:
        own = {"own_e2e_s": request.get("e2e_s", math.nan)}
        rows.add(**state | {"prompt_tokens": 16, "max_tokens": 1000} | own | request)
    engine = EngineFacts(
        free_blocks=free_blocks,
        total_blocks=total_blocks,
        layout=KVLayout.full(block_size),
        max_num_seqs=max_num_seqs,
        token_budget=2048,
        free_slots=max_num_seqs - len(running),
        step_latency=SteadySteps(),
    )
    return Snapshot(rows, rows.slots_in(State.WAITING, State.PREEMPTED), rows.slots_in(State.RUNNING), engine)
