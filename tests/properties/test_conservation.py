"""Whatever a policy plans: every request ends once with exactly its tokens, KV comes back, the engine never spins."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from sloserve.core.outcome import Outcome
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from tests.conformance import conserving_forms
from tests.whole import sampled

pytestmark = pytest.mark.vllm

POLICIES = (None, *conserving_forms(), "chaos", "chaos:pause=0.9", "chaos:preempt=0.7")
"""``None``: stock."""

MODEL_LEN = 192
PLAN_COST_US = (0.0, 500.0, 3_000.0, 30_000.0)
"""By seed: planning is free, or at the default share of 5 % a plan serves 10, 60 and 600 ms, which is too old."""


def random_workload(rng: np.random.Generator) -> list[WorkloadRequest]:
    """Bursts and gaps, prompts that fill the context or do not fit, limits shorter and longer than the reply."""
    n = int(rng.integers(8, 28))
    arrivals_s = np.sort(rng.choice([0.0, 0.1, 0.5], n) * rng.integers(0, 4, n) + rng.uniform(0.0, 0.2, n).round(1))
    requests = []
    for i, arrival_s in enumerate(arrivals_s.tolist()):
        targets = Targets(
            ttft_s=float(rng.uniform(0.01, 1.0)) if rng.random() < 0.3 else None,
            tpot_s=float(rng.uniform(0.005, 0.1)) if rng.random() < 0.3 else None,
            e2e_s=float(rng.uniform(0.05, 4.0)) if rng.random() < 0.5 else None,
        )
        requests.append(
            WorkloadRequest(
                f"r{i}",
                arrival_s,
                int(rng.choice([1, 15, 16, 17, 100, MODEL_LEN - 1, MODEL_LEN])),
                int(rng.integers(1, 60)),
                DEFAULT_CLASSES.slo(str(rng.choice(DEFAULT_CLASSES.names)), targets),
                max_tokens=int(rng.integers(1, 70)) if rng.random() < 0.5 else None,
                priority=int(rng.integers(-1, 3)),
                prefix_ids=(int(rng.integers(3)),) if rng.random() < 0.5 else (),
            )
        )
    return requests


def expected_tokens(request: WorkloadRequest) -> int:
    room = MODEL_LEN - request.prompt_tokens
    return min(request.output_tokens, room, room if request.max_tokens is None else request.max_tokens)


CASES = [(policy, seed) for policy in POLICIES for seed in range(len(PLAN_COST_US))]
ONCE = [(policy, number % len(PLAN_COST_US)) for number, policy in enumerate(POLICIES)]
"""Each policy with one seed, in turn."""


@pytest.mark.parametrize("case", sampled(CASES, ONCE), ids=lambda case: f"{case[0]}-{case[1]}")
def test_every_request_ends_once_with_its_tokens(case: tuple[str | None, int]) -> None:
    policy, seed = case
    from sloserve.engine.virtual.engine_settings import EngineSettings
    from sloserve.estimator.planning_cost import constant_cost
    from sloserve.estimator.step_time.profile import load_profile
    from sloserve.vllm_plugin.virtual.engine import VirtualEngine

    rng = np.random.default_rng([seed, 77])
    workload = random_workload(rng)
    settings = EngineSettings(
        kv_blocks=int(rng.integers(MODEL_LEN // 16, 30)),
        max_num_seqs=int(rng.integers(1, 6)),
        max_num_batched_tokens=int(rng.choice([16, 48, 200])),
        max_model_len=MODEL_LEN,
        enable_prefix_caching=bool(seed % 2),
    )
    classes = {c.name: {"rank": c.rank, "aged_after_s": 0.5} for c in DEFAULT_CLASSES}
    config: dict[str, Any] = {"sloserve": {"policy": policy, "seed": seed, "classes": classes}}
    profile = load_profile("h100-llama3-8b")
    engine = VirtualEngine(
        settings, profile, None if policy is None else config, planning_costs=constant_cost(PLAN_COST_US[seed])
    )
    admitted: Counter[str] = Counter()
    empty, longest_empty = 0, 0

    def watch(output: Any) -> None:
        nonlocal empty, longest_empty
        assert len(engine.scheduler.running) <= settings.max_num_seqs
        assert output.total_num_scheduled_tokens <= settings.max_num_batched_tokens
        admitted.update(new.req_id for new in output.scheduled_new_reqs)
        empty = 0 if output.total_num_scheduled_tokens else empty + 1
        longest_empty = max(longest_empty, empty)

    engine.on_step = watch
    log = engine.run(workload)

    assert [r.request for r in log.requests] == workload
    for r in log.requests:
        tokens = expected_tokens(r.request)
        assert (r.outcome, r.token_times_s.size) == (
            (Outcome.COMPLETED, tokens) if tokens > 0 else (Outcome.REJECTED, 0)
        )
        assert admitted[r.request.request_id] == (tokens > 0)
        assert (np.diff(r.token_times_s) > 0).all() and (r.token_times_s >= r.request.arrival_s).all()
    # One step is empty behind the one that ends all there is, and some while nobody may resume before results arrive.
    assert longest_empty <= 3

    scheduler = engine.scheduler
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == settings.kv_blocks
    assert not scheduler.requests and not scheduler.running and not scheduler.waiting
    assert scheduler.max_num_scheduled_tokens == settings.max_num_batched_tokens
    assert scheduler.scheduler_config.long_prefill_token_threshold == 0
    if policy not in (None, "fcfs"):
        table = scheduler.planner.table
        assert len(table.rows) == 0 and not table.slot_of and not any(table.request_at)
    if policy is not None:
        assert not log.counters.get("internal_errors")
    if policy is not None and policy.startswith("chaos"):
        assert (log.counters.get("reused_plans", 0) > 0) == (seed > 0)
