"""A policy that plans on events: its last plan holds while nothing happens, and no longer."""

import pytest

from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.engine.held_plan import MAX_UNEVENTFUL_S
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.estimator.planning_cost import NO_PLANNING_COST
from sloserve.estimator.step_time.profile import load_profile
from sloserve.scheduler.auto.policy import Auto
from sloserve.scheduler.policy import Plan, Snapshot
from sloserve.sim.model.engine import ModelEngine

LATE_S = 0.4


def planned_at(monkeypatch: pytest.MonkeyPatch, *, on_events: bool) -> list[float]:
    """When plans were made: two run and two wait from the start, another comes late."""
    times: list[float] = []
    plan = Auto.plan

    def noted(self: Auto, snapshot: Snapshot, now_s: float) -> Plan:
        times.append(now_s)
        return plan(self, snapshot, now_s)

    slo = DEFAULT_CLASSES.slo(None, Targets(ttft_s=60.0))
    arrivals = {"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0, "late": LATE_S}
    workload = [WorkloadRequest(name, at_s, 20, 100, slo) for name, at_s in arrivals.items()]
    settings = EngineSettings(1000, max_num_seqs=2, max_num_batched_tokens=256, max_model_len=1100)
    config = {"sloserve": {"policy": "auto", "plan_share": 1.0}}
    with monkeypatch.context() as patched:
        patched.setattr(Auto, "plan", noted)
        patched.setattr(Auto, "plans_on_events", on_events)
        ModelEngine(settings, load_profile("h100-llama3-8b"), config, planning_costs=NO_PLANNING_COST).run(workload)
    return times


@pytest.mark.slow
def test_fewer_plans_while_nothing_happens_and_one_at_each_event(monkeypatch: pytest.MonkeyPatch) -> None:
    each_step, on_events = (planned_at(monkeypatch, on_events=value) for value in (False, True))
    assert len(on_events) < len(each_step) / 4
    gaps = [after - before for before, after in zip(on_events, on_events[1:], strict=False)]
    assert max(gaps[:20]) < MAX_UNEVENTFUL_S + 0.02  # two steps
    came = each_step[0] + LATE_S
    first_after = min(at_s for at_s in on_events if at_s >= came)
    assert first_after == min(at_s for at_s in each_step if at_s >= came)
