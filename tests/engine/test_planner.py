"""The planner between an engine's events: who has aged is protected once admitted, and its slot afterwards is not."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import DEFAULT_CLASSES, SLO, Targets
from sloserve.core.stated import StatedSLO
from sloserve.engine.guards import drop_forbidden
from sloserve.engine.planner import Planner
from sloserve.engine.step_clock import StepClock
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.lso.plan import Plan
from sloserve.scheduler.registry import make_policy, parse_policy, policy_class, policy_names
from sloserve.scheduler.settings import PluginSettings
from sloserve.sim.model.model_port import ModelPort
from sloserve.sim.model.scheduler import ModelScheduler

SLO_OF_ALL = SLO(DEFAULT_CLASSES.default, Targets())
STATED = StatedSLO(SLO_OF_ALL, class_id=DEFAULT_CLASSES.names.index(DEFAULT_CLASSES.default.name), output_tokens=None)
AGED_S = DEFAULT_CLASSES.default.aged_after_s + 1.0


class Engine:
    """A model engine and its planner, to which the test tells what happens."""

    def __init__(self, policy: str = "edf") -> None:
        settings = EngineSettings(max_num_seqs=4, max_num_batched_tokens=64, kv_blocks=20, max_model_len=320)
        self.scheduler = ModelScheduler(settings)
        port: Any = ModelPort(self.scheduler, StepClock(), ManualClock())
        given = {"shadow": None, "settings": PluginSettings(), "counters": Counter(), "on_plan": lambda cost_s: None}
        self.planner = Planner(port, make_policy(*parse_policy(policy)), **given, may_pause=True, cost=None)
        self.rows = self.planner.table.rows

    def arrives(self, name: str) -> Any:
        request = self.scheduler.requests.add(WorkloadRequest(name, 0.0, 100, 50, SLO_OF_ALL), 0.0, 50)
        self.planner.arrived(request, STATED, 0.0)
        return request

    def slot(self, request: Any) -> int:
        return self.planner.table.slot_of[request.request_id]

    def may(self, request: Any) -> tuple[bool, bool]:
        """Whether plans may preempt it, and pause it."""
        slot = self.slot(request)
        return bool(self.rows.preemptable[slot]), bool(self.rows.pausable[slot])


@pytest.mark.parametrize("how", ["admitted", "loading"])
def test_who_has_aged_is_protected_from_its_admission_on(how: str) -> None:
    engine = Engine()
    old, other = engine.arrives("old"), engine.arrives("other")
    engine.planner.next_step(AGED_S, 0.0)
    assert engine.may(old) == (True, True)
    if how == "admitted":
        engine.planner.admitted(SimpleNamespace(admitted=[old.index]), 0.0)
    else:
        engine.planner.loading([old], 0.0)
    assert engine.may(old) == (False, False)
    assert engine.may(other) == (True, True), "it still waits"


def test_who_has_not_aged_is_not_protected() -> None:
    engine = Engine()
    young = engine.arrives("young")
    engine.planner.next_step(AGED_S - 2.0, 0.0)
    engine.planner.admitted(SimpleNamespace(admitted=[young.index]), 0.0)
    assert engine.may(young) == (True, True)


def test_the_slot_of_an_aged_request_that_ended_makes_no_other_one_aged() -> None:
    """It may be aborted while it waits, and its slot goes to a request that comes before the next plan."""
    engine = Engine()
    old = engine.arrives("old")
    engine.planner.next_step(AGED_S, 0.0)
    slot = engine.slot(old)
    engine.planner.finished(old, AGED_S)
    young = engine.arrives("young")
    assert engine.slot(young) == slot
    engine.planner.admitted(SimpleNamespace(admitted=[young.index]), 0.0)
    assert engine.may(young) == (True, True)


@pytest.mark.parametrize("policy", ["fcfs:step_budget=true", "edf:step_budget=true"])
def test_who_is_blocked_no_more_counts_in_the_step_that_may_admit_it(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its plan is fresh or not: the engine will begin with its prompt."""
    engine, pending, seen = Engine(policy), [True], []
    monkeypatch.setattr(ModelPort, "is_blocked", lambda *args: pending[0])
    engine.planner.budget = SimpleNamespace(allows=lambda now_s: False)  # type: ignore[assignment]
    budget: Any = engine.planner._step_budget
    monkeypatch.setattr(budget, "tokens", lambda rows, running, waiting, *args, **kwargs: seen.append(waiting.tolist()))
    request = engine.arrives("a")
    engine.scheduler.waiting = np.array([request.index])
    engine.planner.next_step(0.0, 0.0)
    assert not any(seen)
    pending[0] = False
    engine.planner.next_step(0.1, 0.1)
    assert seen == [[engine.slot(request)]]


ORDERING = [name for name in policy_names() if policy_class(name).needs]


@pytest.mark.parametrize("policy", ORDERING)
def test_promised_requests_are_admitted_first_under_every_policy_that_orders(policy: str) -> None:
    """The promised ones arrive last, are of the least urgent class, and are due last."""
    engine = Engine(policy)
    requests = []
    for i in range(12):
        promised = i >= 9
        slo_class = list(DEFAULT_CLASSES)[-1 if promised else 0]
        slo = SLO(slo_class, Targets(ttft_s=50.0 if promised else 5.0, e2e_s=500.0 if promised else 50.0))
        request = engine.scheduler.requests.add(WorkloadRequest(str(i), 0.1 * i, 20, 50, slo), 0.1 * i, 50)
        stated = StatedSLO(
            slo, DEFAULT_CLASSES.names.index(slo_class.name), None, first_from_s=1.0 if promised else None
        )
        engine.planner.arrived(request, stated, 0.1 * i)
        requests.append(request)
    engine.scheduler.waiting = np.array([request.index for request in requests])
    order = engine.planner.next_step(2.0, 2.0).plan.waiting
    assert order is not None
    assert set(order[:3].tolist()) == {engine.slot(request) for request in requests[9:]}


def test_a_promised_request_comes_first_once_it_has_to() -> None:
    engine, slo = Engine("edf"), SLO(DEFAULT_CLASSES.default, Targets(ttft_s=9.0))
    late, due = (
        engine.scheduler.requests.add(WorkloadRequest(name, 0.0, 20, 50, slo), 0.0, 50) for name in ("late", "due")
    )
    later = SLO(DEFAULT_CLASSES.default, Targets(ttft_s=20.0))
    engine.planner.arrived(late, replace(STATED, slo=later, first_from_s=5.0), 0.0)
    engine.planner.arrived(due, replace(STATED, slo=slo), 0.0)
    engine.scheduler.waiting = np.array([late.index, due.index])
    for now_s, first in ((1.0, due), (6.0, late)):
        order = engine.planner.next_step(now_s, now_s).plan.waiting
        assert order is not None and order[0] == engine.slot(first)


def test_no_plan_stops_a_promised_request_that_comes_first() -> None:
    engine = Engine("edf")
    requests = []
    for name, first_from_s in (("promised", 5.0), ("lax", 50.0), ("other", None)):
        request = engine.scheduler.requests.add(WorkloadRequest(name, 0.0, 20, 50, SLO_OF_ALL), 0.0, 50)
        engine.planner.arrived(request, replace(STATED, first_from_s=first_from_s), 0.0)
        requests.append(engine.slot(request))
    slots = np.array(requests)
    for now_s, stays in ((1.0, [False, False, False]), (6.0, [True, False, False]), (60.0, [True, True, False])):
        snapshot = engine.planner._snapshot(engine.planner._facts(), now_s)
        assert snapshot.must_stay(slots).tolist() == stays
        plan = drop_forbidden(Plan(preempt=slots, pause=slots), snapshot, may_pause=True)
        assert plan.preempt.tolist() == [slot for slot, must in zip(requests, stays, strict=True) if not must]


def test_when_the_last_promised_request_has_ended_no_order_is_changed() -> None:
    engine = Engine("edf")
    request = engine.scheduler.requests.add(WorkloadRequest("a", 0.0, 100, 50, SLO_OF_ALL), 0.0, 50)
    engine.planner.arrived(request, replace(STATED, first_from_s=9.0), 0.0)
    assert engine.planner.table.has_promised
    engine.planner.finished(request, 1.0)
    assert not engine.planner.table.has_promised
