"""Readers for tests of Andes, and engines that serve them; what they gain follows by hand.

Most digest 2 tokens a second and expect the first after 1 s. The areas of Andes' Eq. 1 are then those of ramps, whose
ratio is that of the squares of their lengths: :func:`gain_of_new`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.scheduler.andes.policy import FIRST_HORIZON_S, Andes
from sloserve.scheduler.papers.andes_parts import AndesParts
from sloserve.scheduler.policy import Plan, Snapshot, check_plan
from tests.snapshots import STEP_S, make_snapshot

Make = Callable[..., Snapshot]
Request = dict[str, Any]
NOW_S = 1000.0
TDS, TTFT_S = 2.0, 1.0
BUDGET_TOKENS = 2048


def new(waited_s: float = 0.0, **more: Any) -> Request:
    """Waits for its first token; will have 1000, more than any horizon here takes to read."""
    return {"arrival_s": NOW_S - waited_s, "ttft_s": TTFT_S, "tds": TDS, "oracle_output_tokens": 1000} | more


def ahead(lead_s: float, **more: Any) -> Request:
    """Runs since 10 s, got all its tokens after 1 s, and has still ``lead_s`` to read."""
    tokens = round(TDS * (9.0 + lead_s))
    return (
        new(10.0, first_token_s=NOW_S - 9.0, output_tokens=tokens, max_tokens=10**6)
        | {"computed_tokens": 15 + tokens, "kv_blocks": 4}
        | more
    )


URGENT = new(0.8)


@dataclass(frozen=True)
class Steps:
    """Steps that take the longer the more requests they serve."""

    each_s: float
    base_s: float = 0.0
    square_s: float = 0.0

    def step_s(self, load: StepLoad) -> float:
        return self.base_s + (self.each_s + self.square_s * load.decode_seqs) * load.decode_seqs


def engine(at: Snapshot, **facts: Any) -> Snapshot:
    return replace(at, engine=replace(at.engine, **facts))


def told(at: Snapshot, *, seed: int = 0, **settings: Any) -> Andes:
    """One told of every arrival; output lengths are as stated, unless said otherwise.

    It is the variant for experiments where ``settings`` has an option of it.
    """
    cls = Andes if settings.keys() <= Andes.Settings.__dataclass_fields__.keys() else AndesParts
    policy = cls(cls.Settings(**({"length": "oracle"} | settings)), seed=seed)
    slots = np.concatenate((at.waiting, at.running))
    for slot in slots[np.argsort(at.rows.seq[slots])].tolist():
        policy.arrived(at.rows, slot, NOW_S)
    return policy


def plan(at: Snapshot, policy: Andes | None = None, **settings: Any) -> Plan:
    made = (policy or told(at, **settings)).plan(at, NOW_S)
    check_plan(made, at)
    return made


def order(slots: Any) -> list[int]:
    return [int(s) for s in slots]


def lists(made: Plan) -> list[Any]:
    """Of a plan: waiting, running, preempt, pause and max_running, to compare."""
    named = (made.waiting, made.running, made.preempt, made.pause)
    return [*(None if slots is None else order(slots) for slots in named), made.max_running]


def gain_of_new(waited_s: float, prompt_tokens: int, horizon_s: float = FIRST_HORIZON_S) -> float:
    """Of serving at steps of the usual time one who has nothing yet, and would have nothing at the horizon."""
    until_s = waited_s + horizon_s
    first_s = waited_s + STEP_S * (1.0 + prompt_tokens / BUDGET_TOKENS)
    return min((until_s - first_s) / (until_s - TTFT_S), 1.0) ** 2


def preempts_for(waiting: Request, running: Request | None = None, **settings: Any) -> bool:
    """Whether the only one that runs, by default far ahead, gives way to the only one that waits."""
    at = make_snapshot([waiting], [running or ahead(100.0)], max_num_seqs=1)
    return bool(plan(at, **settings).preempt.size)
