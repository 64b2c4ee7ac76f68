"""Nobody starves: under a policy that serves the newest first, and scarce KV, all that age complete within a bound."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.lso.ordering import PREEMPTION_COLUMNS, PreemptionRule, plan_by_key
from sloserve.scheduler.policy import Plan, Policy, Snapshot

pytestmark = pytest.mark.vllm

AGED_AFTER_S = 0.3
STEP_S = 0.009
"""Longer than any step of this engine."""


class NewestFirst(Policy):
    """Admits and serves whoever came last, and preempts whoever came first for it, as often as it likes."""

    needs = PREEMPTION_COLUMNS | {"arrival_s"}

    def plan(self, snapshot: Snapshot, now_s: float) -> Plan:
        arrival_s = snapshot.rows.arrival_s
        key, running_key = -arrival_s[snapshot.waiting], -arrival_s[snapshot.running]
        return plan_by_key(snapshot, key, running_key, preempt=PreemptionRule(max_preemptions=10**9))


LONG = st.tuples(st.floats(0.0, 0.4), st.integers(20, 150), st.integers(20, 90))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    long=st.lists(LONG, min_size=1, max_size=3),
    kv_blocks=st.integers(16, 24),
    share=st.sampled_from([0.25, 0.5]),
    seed=st.integers(0, 2**16),
)
def test_every_request_completes_within_a_bound_under_a_flood_of_newer_ones(
    monkeypatch: pytest.MonkeyPatch, long: list[tuple[float, int, int]], kv_blocks: int, share: float, seed: int
) -> None:
    from sloserve.engine.virtual.engine_settings import EngineSettings
    from sloserve.estimator.step_time.profile import load_profile
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    monkeypatch.setattr("sloserve.engine.policy_maker.make_policy", lambda *args, **kwargs: NewestFirst())
    slo = DEFAULT_CLASSES.slo("interactive", Targets())
    rng = np.random.default_rng(seed)
    # The flood goes on for longer than the bound: who waits for its end is late.
    requests = [WorkloadRequest(f"long{i}", *one, slo) for i, one in enumerate(long)]
    requests += [
        WorkloadRequest(f"new{i}", float(at_s), int(rng.integers(8, 60)), int(rng.integers(4, 12)), slo)
        for i, at_s in enumerate(np.arange(0.0, 12.0, 0.03))
    ]
    requests.sort(key=lambda one: one.arrival_s)
    config: dict[str, Any] = {
        "policy": "edf",
        "aged_share": share,
        "classes": {"interactive": {"rank": 1, "aged_after_s": AGED_AFTER_S}},
    }
    size = EngineSettings(kv_blocks=kv_blocks, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=256)
    engine = VirtualEngine(size, load_profile("h100-llama3-8b"), {"sloserve": config})
    scheduler = engine.scheduler
    preempt, taken = scheduler._preempt_request, []

    def watched(request: Any, *args: Any, **kwargs: Any) -> None:
        """Protected ones lose their KV to older protected ones alone."""
        table = scheduler.planner.table
        if not table.rows.preemptable[table.slot_of[request.request_id]]:
            others = [r.request_id for r in scheduler.running if r is not request]
            taken.extend(i for i in others if table.rows.preemptable[table.slot_of[i]])
        preempt(request, *args, **kwargs)

    scheduler._preempt_request = watched
    log = engine.run(requests)

    assert {one.outcome for one in log.requests} == {Outcome.COMPLETED}
    assert not taken
    # When it has aged, as many turns come before its own as there are older requests left. A turn comes after a period
    # of admissions, none of which takes longer than serving a short one; who has it is served to the end.
    short_s, long_s = STEP_S * (60 // 16 + 12), STEP_S * (150 // 16 + 90)
    for one in log.requests:
        arrival_s = one.request.arrival_s
        older = sum(
            other.request.arrival_s < arrival_s and other.token_times_s[-1] > arrival_s + AGED_AFTER_S
            for other in log.requests
        )
        bound_s = AGED_AFTER_S + (older + 1) * (short_s / share + long_s)
        assert one.token_times_s[-1] - arrival_s <= bound_s
