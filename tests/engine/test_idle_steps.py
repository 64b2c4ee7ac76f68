"""Steps that leave a policy nothing to plan: what follows is what would follow if all were read."""

from typing import Any

import numpy as np
import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.runlog import RunLog
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.planner import Planner
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.planning_cost import constant_cost
from sloserve.estimator.step_time.profile import load_profile
from sloserve.sim.model.engine import ModelEngine


def served(policy: str, plan_us: float, workload: list[WorkloadRequest]) -> RunLog:
    """Serves with three slots, room for all blocks and 256 tokens a step; who waits for 0.5 s has aged."""
    settings = EngineSettings(1000, max_num_seqs=3, max_num_batched_tokens=256, max_model_len=1100)
    classes = {"interactive": {"rank": 1, "aged_after_s": 0.5}}
    config = {"sloserve": {"policy": policy, "classes": classes}}
    engine = ModelEngine(settings, load_profile("a100-opt-13b"), config, planning_costs=constant_cost(plan_us))
    return engine.run(workload)


def request(request_id: str, arrival_s: float, prompt_tokens: int, output_tokens: int) -> WorkloadRequest:
    """Promised a pace that steps full of prompts break."""
    slo = DEFAULT_CLASSES.slo(None, Targets(tpot_s=0.03, ttft_s=1.0))
    return WorkloadRequest(request_id, arrival_s, prompt_tokens, output_tokens, slo)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["auto", "econo:step_budget=true"])
@pytest.mark.parametrize("plan_us", [0.0, pytest.param(500.0, marks=pytest.mark.slow)])
def test_a_step_without_a_snapshot_decides_what_one_with_it_does(
    policy: str, plan_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = [request(f"r{i}", 0.6 * (i // 3) + 0.01 * i, (40, 40, 500)[i % 3], 20 + 7 * (i % 5)) for i in range(12)]
    # Waits for a slot until it has aged, then runs, protected, while nobody waits.
    workload += [request("decodes", 5.0, 40, 90), request("too", 5.0, 40, 90), request("ends", 5.0, 40, 30)]
    workload.append(request("aged", 5.01, 1000, 5))
    idle = {True: 0, False: 0}
    looked_for = Planner._is_idle

    def counting(self: Planner, *args: Any) -> bool:
        found = looked_for(self, *args)
        idle[found] += 1
        return found

    monkeypatch.setattr(Planner, "_is_idle", counting)
    quick = served(policy, plan_us, workload)
    assert min(idle.values()) > 20 and quick.counters["limited_steps"] > 10
    monkeypatch.setattr(Planner, "_is_idle", lambda *args: False)
    read = served(policy, plan_us, workload)
    assert np.array_equal(quick.steps.scheduled_tokens, read.steps.scheduled_tokens)
    assert np.array_equal(quick.steps.end_s, read.steps.end_s)
    for ours, theirs in zip(quick.requests, read.requests, strict=True):
        assert np.array_equal(ours.token_times_s, theirs.token_times_s), ours.request.request_id
