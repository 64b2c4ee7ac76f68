"""The plan made true on an agent's instances, and what they do without a planner."""

from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sloserve.core.clock import SystemClock
from sloserve.core.spans import Phase
from sloserve.fleet.agent.following import STALE_S, Following
from sloserve.fleet.agent.orders import unplanned
from sloserve.fleet.contract.plan_in_force import PlanInForce, PlannedGroup, to_json
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.store.records import RequestState, StoredPlan
from sloserve.scheduler.virtual_queues.contract import FleetState, GroupSums, InstanceState, ModelState
from sloserve.scheduler.virtual_queues.fleet_operations import Queued
from tests import bounded
from tests.fleet.agent.fake_endpoint import FakeEndpoint
from tests.fleet.agent.test_pulling import Host, host, run, stop_after

FLEET = parse_fleet("""
models:
  m: {profile: h100-llama3-8b, active_on: [a/0]}
  n: {profile: h100-llama2-7b}
hosts:
  a: {device: h100, devices: 1, host_memory_gib: 15}
switching: {min_active_s: 10, max_wait_s: 60}
""")


@dataclass
class Agent:
    host: Host
    door: FakeEndpoint
    following: Following

    def plan(
        self, *groups: PlannedGroup, age_s: float = 0.0, others: Mapping[str, tuple[PlannedGroup, ...]] | None = None
    ) -> None:
        store = self.host.store
        term = store.members.lead("planner", 1e9)
        assert term is not None
        stored = store.members.plan()
        version = 1 if stored is None else stored.version + 1
        plan = PlanInForce(store.now_s() - age_s, {"a/0": groups, **(others or {})})
        assert store.members.write_plan("planner", StoredPlan(term, version, to_json(plan)))

    async def switched(self) -> None:
        await bounded.until(lambda: not self.following._switches)


@asynccontextmanager
async def agent(folder: Path) -> AsyncIterator[Agent]:
    door = FakeEndpoint("a/0", "m", "n")
    async with host(folder, door) as a:
        with ThreadPoolExecutor(1) as executor:
            following = Following(FLEET, [door], a.pulling, a.store, SystemClock(), executor)
            yield Agent(a, door, following)
            await following.stop()


def group(ref: int, model: str) -> PlannedGroup:
    return PlannedGroup(ref, model, "batch")


@pytest.mark.slow
def test_the_head_group_is_pulled_and_then_its_model_gives_way_to_the_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with agent(tmp_path) as a:
            a.host.accept(3, group=1)
            a.host.accept(3, group=2, model="n", body={"model": "n"})
            a.plan(group(1, "m"), group(2, "n"))
            await a.following.step()
            assert set(await a.host.until_ended(3)) == {"1.000", "1.001", "1.002"}
            a.plan(group(2, "n"))
            await a.following.step()
            await a.switched()
            assert (a.door.switched, a.following.plan) == (["n"], (1, 2))
            await a.following.step()
            results = await a.host.until_ended(6)
            assert RequestState.FAILED not in results.values()
            assert a.door.warm == ("m",)

    run(scenario())


@pytest.mark.slow
def test_an_instance_with_room_helps_where_a_group_of_its_model_waits_behind_others(tmp_path: Path) -> None:
    """A group in another's queue, behind streams that are expected for ever."""

    async def scenario() -> None:
        async with agent(tmp_path) as a:
            a.host.accept(3, group=1)
            a.plan(group(-5, "m"), others={"b/0": (group(-7, "n"), group(1, "m"))})
            await a.following.step()
            assert len(await a.host.until_ended(3)) == 3 and a.door.switched == []

    run(scenario())


def test_a_model_stays_for_its_least_time_and_streams_alone_make_it_come(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with agent(tmp_path) as a:
            a.door.active_for_s = 5.0
            a.host.accept(1, group=1)
            a.plan(group(-7, "n"), group(1, "m"))
            await a.following.step()
            assert a.door.switched == []
            await a.host.until_ended(1)  # meanwhile it serves what it has
            a.door.active_for_s = 11.0
            await a.following.step()
            await a.switched()
            assert a.door.switched == ["n"]

    run(scenario())


@pytest.mark.slow
def test_running_lines_give_way_to_a_group_that_becomes_the_first(tmp_path: Path) -> None:
    """The plan has the store's clock, and lines have the clock of their agent."""

    async def scenario() -> None:
        async with agent(tmp_path) as a:
            a.door.room, engine = 2, a.door.engine
            stop_after(engine, tokens=6)
            a.host.accept(2, group=1, deadline_s=3_600.0)
            later, sooner = PlannedGroup(1, "m", "batch", 3_600.0), PlannedGroup(2, "m", "batch", 60.0)
            a.plan(later)
            await a.following.step()
            await bounded.until(lambda: engine.computed >= 6)
            a.host.accept(1, group=2, deadline_s=60.0)
            a.plan(sooner, later)
            await a.following.step()
            await bounded.until(lambda: engine.seen[2:] == ["2.000"])
            assert engine.aborted == 1
            waits = a.host.store.requests.sums
            await bounded.until(lambda: sum(sums.requests for sums in waits()) == 1)  # one of them waits again
            work = a.host.pulling._work["a/0"]
            assert work.giving_way.groups
            a.plan(sooner, later, age_s=STALE_S + 1.0)
            await a.following.step()
            assert not work.giving_way.groups, "no planner says that lines give way"

    run(scenario())


def test_an_instance_begins_with_the_model_of_the_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with agent(tmp_path) as a:
            a.door.phase, a.door.active = Phase.EMPTY, ""
            await a.following.step()
            await a.switched()
            assert a.door.switched == ["m"]

    run(scenario())


@pytest.mark.slow
def test_the_last_plan_holds_and_then_what_waits_is_served_all_the_same(tmp_path: Path) -> None:
    """No planner: group 1 is in the last plan, group 3 never was in one."""

    async def scenario() -> None:
        async with agent(tmp_path) as a:
            a.host.accept(2, group=1)
            a.host.accept(2, group=3)
            a.plan(group(1, "m"), age_s=STALE_S + 1.0)
            a.host.store.members.beat("agent:a", a.door.beat())
            await a.following.step()
            assert len(await a.host.until_ended(4)) == 4

    run(scenario())


def test_a_model_that_the_host_does_not_know_holds_up_no_other(tmp_path: Path) -> None:
    """Where a planner has another file already: the instance waited for that model to come, and pulled nothing."""

    async def scenario() -> None:
        async with agent(tmp_path) as a:
            a.host.accept(1, group=1)
            a.plan(group(7, "unknown"), group(1, "m"))
            await a.following.step()
            assert len(await a.host.until_ended(1)) == 1
            assert a.door.switched == []

    run(scenario())


def waiting(ref: int, model: str, due_s: float, arrival_s: float = 90.0) -> GroupSums:
    return GroupSums(ref, model, 1, 10.0, 10.0, 100.0, due_s, due_s, arrival_s)


def test_without_a_plan_deadlines_say_the_order_and_no_model_waits_for_ever() -> None:
    instances = tuple(
        InstanceState(name, "h100", {model: ModelState.COLD for model in "mno"} | {active: ModelState.ACTIVE})
        for name, active in (("a/0", "m"), ("a/1", "n"))
    )
    groups = (waiting(1, "m", 300.0), waiting(2, "m", 200.0), waiting(3, "n", 100.0), waiting(4, "o", 500.0, 30.0))
    state = FleetState(100.0, groups, instances, {})
    queues = {name: [one.ref for one in unplanned(name, None, state, 60.0)] for name in ("a/0", "a/1")}
    assert sorted(queues.values()) in ([[2, 1], [4, 3]], [[3], [4, 2, 1]])
    assert unplanned("a/0", None, state, 80.0) == [Queued(2, "m", 200.0), Queued(1, "m", 300.0)]
    last = PlanInForce(0.0, {"a/0": (group(1, "m"), group(9, "m")), "a/1": (group(4, "o"),)})
    assert [one.ref for one in unplanned("a/0", last, state, 80.0)] == [1, 2]
    assert [one.ref for one in unplanned("a/1", last, state, 80.0)] == [4, 3]
