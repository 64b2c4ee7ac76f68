"""The planner of a live fleet: what it plans for, and who leads. On every database."""

import math
from dataclasses import replace

import pytest

from sloserve.core.clock import ManualClock
from sloserve.fleet.contract.plan_in_force import PlanInForce, plan_of
from sloserve.fleet.contract.reports import (
    AgentReport,
    Demand,
    GatewayReport,
    InstanceReport,
    MeasuredSwap,
    Phase,
    to_json,
)
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.fleet import Fleet
from sloserve.fleet.gateway.demand import DemandMeter
from sloserve.fleet.gateway.held_request import HeldRequest
from sloserve.fleet.planning.plan_reader import PlanReader
from sloserve.fleet.planning.planning_task import LEASE_S, Planning
from sloserve.fleet.planning.snapshot import ALIVE_S, LiveMembers, Swaps, fleet_state, plan_settings, serving_of
from sloserve.fleet.planning.waiting_groups import HORIZON_S, stream_ref, streamed_groups
from sloserve.fleet.store.records import DurableRequest, RequestState, Result, StoredPlan
from sloserve.fleet.store.store import Store as OpenStore
from sloserve.scheduler.virtual_queues.contract import (
    FleetPlan,
    FleetState,
    InstanceState,
    ModelState,
    RunningSums,
    Swap,
)
from sloserve.scheduler.virtual_queues.qlm_planner import QLMPlanner
from sloserve.scheduler.virtual_queues.swaps import swap_table
from tests.fleet.store.databases import Store

FLEET = """
models:
  chat: {profile: h100-llama3-8b}
  legal: {profile: h100-llama2-7b}
hosts:
  a: {device: h100, devices: 2, host_memory_gib: 64}
"""
WARM, COLD, ACTIVE = ModelState.WARM, ModelState.COLD, ModelState.ACTIVE


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return parse_fleet(FLEET)


@pytest.fixture
def opened(store: Store) -> OpenStore:
    return OpenStore(store.open())


def planning(fleet: Fleet, opened: OpenStore, holder: str = "one") -> Planning:
    return Planning(fleet, opened, holder, ManualClock())


def beat(
    opened: OpenStore, *actives: str, demand: tuple[Demand, ...] = (), drain_s: tuple[float, ...] = (0.0, 0.0)
) -> None:
    """Two instances of host a, each with its active model; the gateway's demand. drain_s: of their streams."""
    instances = tuple(
        InstanceReport(
            f"a/{i}", "h100", Phase.SERVING, {"chat": WARM, "legal": WARM, active: ACTIVE}, 100.0, drain_s=drain_s[i]
        )
        for i, active in enumerate(actives)
    )
    opened.members.beat("agent a", to_json(AgentReport("a", "unix:a", instances)))
    opened.members.beat("gateway", to_json(GatewayReport(demand)))


def lines(opened: OpenStore, model: str, group: int, n: int = 200, deadline_s: float = 3_600.0) -> None:
    opened.requests.accept(
        [
            DurableRequest(f"{model}{group}.{i}", "t", model, "batch", group, b"{}", 200, 100.0, deadline_s)
            for i in range(n)
        ]
    )


def in_force(opened: OpenStore) -> PlanInForce:
    stored = opened.members.plan()
    assert stored is not None
    plan = plan_of(stored.plan)
    assert plan is not None
    return plan


def test_lines_and_streams_are_planned_where_their_models_are(fleet: Fleet, opened: OpenStore) -> None:
    beat(opened, "legal", "chat", demand=(Demand("chat", "interactive", rate_per_s=1.0, target_s=2.0),))
    lines(opened, "legal", 7)
    plan = planning(fleet, opened).step()
    assert plan == in_force(opened)
    refs = {name: [group.ref for group in queue] for name, queue in plan.queues.items()}
    assert refs == {"a/0": [7], "a/1": [stream_ref("chat", "interactive")]}
    (planned,) = plan.queues["a/0"]
    assert (planned.model, planned.slo_class, planned.durable) == ("legal", "batch", True)
    assert planned.due_in_s == pytest.approx(3_600.0, abs=5.0)
    assert plan.places_by_group()["chat", "interactive"] == {"a/1": 0}
    assert 0.0 < plan.pressure["batch"] < 0.1 and plan.pressure["interactive"] < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("drain_s", [(50.0, 0.0), (0.0, 50.0)])
def test_streams_that_take_long_to_end_are_part_of_what_a_swap_costs(
    fleet: Fleet, opened: OpenStore, drain_s: tuple[float, float]
) -> None:
    """The model comes where the other can leave at once."""
    beat(opened, "chat", "chat", drain_s=drain_s)
    lines(opened, "legal", 7, n=20, deadline_s=40.0)
    plan = planning(fleet, opened).step()
    assert plan is not None and plan.late_s == 0.0
    assert [name for name, queue in plan.queues.items() if queue] == [f"a/{drain_s.index(0.0)}"]


def test_a_model_on_its_way_counts_while_the_streams_of_the_other_end(fleet: Fleet) -> None:
    """It was planned again, elsewhere, and its instance for others, until the streams had ended."""
    running = RunningSums(8, 0.0, 1_000.0, 1_600.0, 640_000.0, 600.0)
    models = {"chat": WARM, "legal": ACTIVE}
    drains = InstanceReport("a/0", "h100", Phase.DRAINING, models, ready_in_s=4.0, running=running, drain_s=3.0)
    members = LiveMembers(((AgentReport("a", "unix:a", (drains,)), 1.0),), ())
    state, _ = fleet_state(100.0, (), members, swap_table(fleet.swaps()), None)
    (one,) = state.instances
    assert (one.active, one.ready_s, one.drained_s) == ("legal", 103.0, 103.0)
    assert one.running == RunningSums(), "what runs is of the model that leaves, and does not delay what comes"
    assert one.activated_s == 103.0, "it stays for its time from then on"


@pytest.mark.slow
def test_one_planner_leads_and_another_follows_with_the_same_plan(
    fleet: Fleet, opened: OpenStore, store: Store
) -> None:
    beat(opened, "legal", "chat")
    lines(opened, "legal", 7)
    lines(opened, "chat", 8)
    first, second = planning(fleet, opened), planning(fleet, opened, "two")
    before = first.step()
    assert before is not None and second.step() is None
    store.pass_s(LEASE_S + 0.1)
    beat(opened, "legal", "chat")
    after = second.step()
    assert after is not None and after.queues.keys() == before.queues.keys()
    assert [[g.ref for g in q] for q in after.queues.values()] == [[g.ref for g in q] for q in before.queues.values()]
    assert first.step() is None
    stored = opened.members.plan()
    assert stored is not None and (stored.term, stored.version) == (2, 1)


def test_a_leader_keeps_the_lead_for_rounds_that_are_longer_than_the_lease(
    fleet: Fleet, opened: OpenStore, store: Store
) -> None:
    """Another planner tries to lead during each round; if each took the lead from the other none would write a plan."""
    clock, others = ManualClock(), list[int | None]()

    def takes_long() -> None:
        clock.advance_to(clock.now_s() + LEASE_S + 1.0)
        store.pass_s(LEASE_S + 1.0)
        others.append(opened.members.lead("another", LEASE_S))

    beat(opened, "legal", "chat")
    lines(opened, "legal", 7)
    one = Planning(fleet, opened, "one", clock, replayed=takes_long)
    assert one.step() is None and others == [2]
    store.pass_s(LEASE_S)
    assert one.step() is not None and one.step() is not None
    assert others == [2, None, None] and one.leads


def test_a_leader_of_long_rounds_that_dies_is_followed_soon(fleet: Fleet, opened: OpenStore, store: Store) -> None:
    """Its lease has a limit, and it is short again once rounds are."""
    clock, rounds_s = ManualClock(), [3_000.0, 1.0, 1.0]
    one = Planning(fleet, opened, "one", clock, replayed=lambda: clock.advance_to(clock.now_s() + rounds_s.pop(0)))
    beat(opened, "legal", "chat")
    one.step()
    one.step()
    store.pass_s(125.0)
    assert opened.members.lead("another", LEASE_S) == 2
    store.pass_s(LEASE_S)
    one.step()
    store.pass_s(LEASE_S + 0.1)
    assert opened.members.lead("another", LEASE_S) == 4


@pytest.mark.slow
def test_a_plan_that_stays_is_not_written_each_time(fleet: Fleet, opened: OpenStore, store: Store) -> None:
    beat(opened, "legal", "chat")
    lines(opened, "legal", 7)
    planner = planning(fleet, opened)
    planner.step()
    planner.step()
    stored = opened.members.plan()
    assert stored is not None and stored.version == 1
    store.pass_s(3.5)
    beat(opened, "legal", "chat")
    planner.step()
    stored = opened.members.plan()
    assert stored is not None and stored.version == 2


def test_a_plan_is_read_anew_when_another_is_in_force(fleet: Fleet, opened: OpenStore) -> None:
    reader = PlanReader(opened.members)
    assert reader.read() is None
    beat(opened, "legal", "chat")
    planner = planning(fleet, opened)
    first = planner.step()
    read = reader.read()
    assert read == first and reader.read() is read and reader.stored is not None
    lines(opened, "legal", 7)
    second = planning(fleet, opened).step()
    assert reader.read() == second != first and reader.stored.version == 2
    opened.members.write_plan("one", StoredPlan(1, 3, {"made_s": "of another version"}))
    assert reader.read() is None and reader.stored.version == 3


def test_an_agent_that_gives_no_sign_of_life_is_not_planned_with(fleet: Fleet, opened: OpenStore, store: Store) -> None:
    beat(opened, "legal", "chat")
    lines(opened, "legal", 7)
    planner = planning(fleet, opened)
    planner.step()
    store.pass_s(ALIVE_S + 0.1)
    plan = planner.step()
    assert plan is not None and plan.queues == {}


def test_a_planner_keeps_nothing_that_a_new_one_lacks(fleet: Fleet, opened: OpenStore) -> None:
    """What has been claimed and ended meanwhile is in no queue of either."""
    beat(opened, "legal", "chat")
    lines(opened, "legal", 7, n=2)
    old = planning(fleet, opened)
    old.step()
    claim = opened.requests.claim("x", 7, 2, 30.0)
    assert claim is not None
    opened.requests.finish([Result(r.id, r.attempt, RequestState.DONE, 200, b"") for r in claim.requests])
    plan = planning(fleet, opened).step()
    assert plan is not None and plan.queues == {"a/0": (), "a/1": ()}


def test_a_swap_that_an_agent_has_measured_replaces_what_profiles_say(fleet: Fleet) -> None:
    swaps = Swaps(fleet)
    profiles = swaps.table
    one = MeasuredSwap("h100", "chat", "legal", WARM, 7.5)
    report = AgentReport("a", "unix:a", (), swaps=(one, replace(one, coming="unknown")))
    swaps.note([report, AgentReport("b", "unix:b", (), swaps=(replace(one, seconds=8.5),))])
    measured = swaps.table
    assert measured[Swap("h100", "chat", "legal", WARM)] == 8.0
    assert measured.keys() == profiles.keys()
    swaps.note([report, AgentReport("b", "unix:b", (), swaps=(replace(one, seconds=8.5),))])
    assert swaps.table is measured


def test_streams_that_have_ceased_keep_no_instance(fleet: Fleet) -> None:
    """Of 8 a second some were expected for two minutes after the last one, and held a device against who waited."""
    meter = DemandMeter(fleet.settings.classes)
    for k in range(480):
        meter.arrived("chat", "interactive", 100, k / 8.0)

    def expected(after_s: float) -> int:
        (demand,) = meter.report((), 60.0 + after_s).demand
        return sum(group.sums.requests for group in streamed_groups(0.0, [(demand, 0.0)], {}))

    assert expected(0.0) > 60
    assert expected(5.0) <= 6
    assert expected(20.0) == 0


def test_a_held_stream_is_due_before_it_is_refused(fleet: Fleet) -> None:
    """With a target of 220 s and a wait of at most 60 s, plans turned to its model long after it had been refused. The
    time to live that its client gave it makes it no more urgent than its targets may.
    """
    held = [HeldRequest("legal", "interactive", 0.0, due_s=due_s, until_s=60.0, ends_s=5.0) for due_s in (220.0, 30.0)]
    (demand,) = DemandMeter(fleet.settings.classes).report(held, 10.0).demand
    assert (demand.first_due_in_s, demand.last_due_in_s) == (20.0, 50.0)
    for request in held:
        request.sent_back(20.0)
    assert [(request.wanted_s, request.refused_s) for request in held] == [(80.0, 5.0), (30.0, 5.0)]


def test_a_held_stream_is_not_planned_behind_streams_that_never_cease(fleet: Fleet) -> None:
    """Those expected within 10 s counted as done within their work of 1 s, and a held one as in time behind them: at
    each plan anew, until it was late. As long as they come the instance does not drain.
    """
    steady = Demand("chat", "interactive", rate_per_s=2.0, target_s=20.0, mean_prompt_tokens=100.0)
    held = replace(steady, model="legal", rate_per_s=0.1, held=1, first_due_in_s=11.0, last_due_in_s=11.0, oldest_s=9.0)
    groups = [one.sums for one in streamed_groups(0.0, [(steady, 0.0), (held, 0.0)], {})]
    running = RunningSums(8, 0.0, 1_000.0, 1_600.0, 640_000.0, 600.0)
    one = InstanceState("a/0", "h100", {"chat": ACTIVE, "legal": WARM}, running=running, drained_s=4.0)
    planner = QLMPlanner(serving_of(fleet), plan_settings(fleet))
    refs = {group.model: group.ref for group in groups}
    last = FleetPlan({"a/0": (refs["chat"], refs["legal"])})
    state = FleetState(0.0, tuple(groups), (one,), swap_table(fleet.swaps()), last)
    assert planner.plan(state).queues["a/0"] == (refs["legal"], refs["chat"])
    early = replace(held, first_due_in_s=40.0, last_due_in_s=40.0)  # there is time
    groups = [one.sums for one in streamed_groups(0.0, [(steady, 0.0), (early, 0.0)], {})]
    assert planner.plan(replace(state, groups=tuple(groups))).queues == last.queues


def test_streams_that_are_expected_keep_an_instance_and_many_spread_over_several() -> None:
    quiet = Demand("m", "interactive", rate_per_s=0.01)
    assert streamed_groups(0.0, [(quiet, 0.0)], {"m": 4}) == []
    steady = Demand("m", "interactive", rate_per_s=0.2, target_s=1.0, mean_prompt_tokens=100.0, weight=3.0)
    (group,) = streamed_groups(50.0, [(steady, 1.0)], {"m": 4})
    sums = group.sums
    assert (sums.requests, sums.prompt_tokens, sums.weight) == (2, 200.0, 3.0)
    assert (sums.first_due_s, sums.last_due_s) == (50.75, 50.75 + HORIZON_S)
    held = Demand(
        "m", "interactive", held=40, prompt_tokens=4_000.0, first_due_in_s=-1.0, last_due_in_s=9.0, target_s=20.0
    )
    groups = streamed_groups(50.0, [(held, 1.0), (quiet, 0.0)], {"m": 2})
    assert [group.sums.requests for group in groups] == [20, 20]
    assert {group.sums.ref for group in groups} == {stream_ref("m", "interactive", k) for k in range(2)}
    assert groups[0].sums.first_due_s == 45.5 and sum(group.sums.prompt_tokens for group in groups) == 4_000.0
    (late,) = streamed_groups(0.0, [(replace(held, held=1, first_due_in_s=None, last_due_in_s=None), 0.0)], {})
    assert late.sums.first_due_s == math.inf


@pytest.mark.slow
def test_an_instance_that_comes_empty_gets_work_although_nothing_would_be_late(fleet: Fleet, opened: OpenStore) -> None:
    """In the next plan, so within two seconds."""
    one = planning(fleet, opened)
    serving = InstanceReport("a/0", "h100", Phase.SERVING, {"chat": ACTIVE, "legal": WARM}, 100.0)
    opened.members.beat("agent a", to_json(AgentReport("a", "unix:a", (serving,))))
    for group in range(10):
        lines(opened, "chat", group, 600)
    plan = one.step()
    assert plan is not None and len(plan.queues["a/0"]) == 10
    joined = InstanceReport("a/1", "h100", Phase.EMPTY, {"chat": COLD, "legal": COLD})
    opened.members.beat("agent a", to_json(AgentReport("a", "unix:a", (serving, joined))))
    plan = one.step()
    assert plan is not None and [one.model for one in plan.queues["a/1"]] == ["chat"] and len(plan.queues["a/0"]) == 9
    again = one.step()
    assert again is not None and again.order == plan.order


@pytest.mark.slow
def test_what_waits_for_a_model_that_comes_late_goes_to_an_instance_that_is_free(
    fleet: Fleet, opened: OpenStore
) -> None:
    one = planning(fleet, opened)
    lines(opened, "chat", 7, 16)
    for ready_in_s, places in ((0.1, ["a/0"]), (120.0, ["a/1"])):
        coming = InstanceReport("a/0", "h100", Phase.SWITCHING, {"chat": ACTIVE, "legal": COLD}, ready_in_s=ready_in_s)
        free = InstanceReport("a/1", "h100", Phase.SERVING, {"chat": WARM, "legal": ACTIVE}, 100.0)
        opened.members.beat("agent a", to_json(AgentReport("a", "unix:a", (coming, free))))
        waits = Demand(
            "chat",
            "interactive",
            held=1,
            output_tokens=10.0,
            oldest_s=40.0,
            first_due_in_s=-35.0,
            last_due_in_s=-35.0,
            rate_per_s=0.01,
            mean_output_tokens=10.0,
            target_s=5.0,
        )
        opened.members.beat("gateway", to_json(GatewayReport((waits,))))
        plan = one.step()
        assert plan is not None
        assert [name for name, queue in plan.queues.items() if queue] == places
