"""A choice in a fleet of a thousand instances compares a few of them, and the ones that matter always."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sloserve.core.spans import Phase
from sloserve.fleet.contract.plan_in_force import PlanInForce, PlannedGroup
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.fleet.gateway.gateway_instance import FRESH_S, GatewayInstance
from sloserve.fleet.gateway.instances import COMPARED, Instances
from sloserve.fleet.gateway.open_instances import DRAWN
from sloserve.fleet.gateway.prediction import Work
from sloserve.fleet.gateway.prefix_holders import MOST_HOLDERS, PrefixHolders
from sloserve.fleet.gateway.prefixes import Beginning, chained
from sloserve.scheduler.virtual_queues.contract import ModelState, RunningSums

WORK = Work(1, 1_000.0, 100.0)


def report(name: str, room: int = 10, model: str = "m", **given: Any) -> InstanceReport:
    phase = given.pop("phase", Phase.SERVING)
    return InstanceReport(name, "h100", phase, {model: ModelState.ACTIVE}, room=room, **given)


def many(size: int, compared: float = COMPARED, **given: Any) -> Instances:
    made = Instances(compared=compared)
    for i in range(size):
        made.reported(AgentReport(f"h{i}", f"unix:{i}", (report(f"h{i}/0", **given),)), f"unix:{i}", 0, 0.0)
    return made


def prompt(text: str) -> tuple[Beginning, ...]:
    return chained("m", ((text.encode(), 900),))


def chosen(instances: Instances, begins: tuple[Beginning, ...] = (), model: str = "m") -> GatewayInstance | None:
    return instances.choose(model, "c", WORK, begins, 0.0)


@pytest.fixture
def forecasts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the instances for which times were predicted."""
    counted, times_s = Counter[str](), GatewayInstance.times_s

    def counting(self: GatewayInstance, *given: Any) -> Any:
        counted[self.name] += 1
        return times_s(self, *given)

    monkeypatch.setattr(GatewayInstance, "times_s", counting)
    return counted


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan", [None, PlanInForce(0.0, {f"h{i}/0": (PlannedGroup(-1, "m", "c"),) for i in range(0, 999, 2)})]
)
def test_few_of_many_are_compared(plan: PlanInForce | None, forecasts: Counter[str]) -> None:
    instances = many(1_000)
    instances.plan = plan
    names = []
    for _ in range(20):
        one = chosen(instances)
        assert one is not None and forecasts.total() <= DRAWN + MOST_HOLDERS
        assert plan is None or one.name in plan.queues
        forecasts.clear()
        instances.send(one, WORK, (), 0.0)
        names.append(one.name)
    assert len(set(names)) > 10, "requests go to few of the instances"
    small = many(COMPARED)
    chosen(small)
    assert forecasts.total() == COMPARED


def test_the_same_requests_and_reports_give_the_same_choices() -> None:
    def names() -> list[str]:
        instances, found = many(100), []
        for i in range(200):
            begins = prompt(str(i % 7))
            one = chosen(instances, begins)
            assert one is not None
            flight = instances.send(one, WORK, begins, 0.0)
            if i % 3:
                flight.end()
            found.append(one.name)
        return found

    assert names() == names()


def test_the_holder_of_a_prefix_is_a_candidate_whatever_is_drawn() -> None:
    instances, begins = many(1_000), prompt("system")
    home = instances.by_name["h777/0"]
    instances.send(home, WORK, begins, 0.0).end()
    for i in range(50):  # each draw is another
        other = prompt(f"other {i}")
        instances.send(instances.by_name[f"h{i}/0"], WORK, other, 0.0).end()
        assert chosen(instances, begins) is home
    cached = {prompt("elsewhere")[0].digest.hex(): 900}
    instances.reported(AgentReport("h5", "unix:5", (report("h5/0", cached=cached),)), "unix:5", 99, 0.0)
    assert chosen(instances, prompt("elsewhere")) is instances.by_name["h5/0"], "another gateway sent it there"
    instances.reported(AgentReport("h777", "unix:777", (report("h777/0", room=0),)), "unix:777", 99, 0.0)
    assert chosen(instances, begins) is not home
    without = Instances(affinity=False, compared=1)
    for i in range(3):
        without.reported(AgentReport("h", "u", (report(f"h/{i}"),)), "u", 0, 0.0)
    without.send(without.by_name["h/2"], WORK, begins, 0.0).end()
    assert not len(without._holders)


def test_the_last_instance_with_room_is_found() -> None:
    instances = many(500, room=0)
    assert chosen(instances) is None
    instances.reported(AgentReport("h3", "unix:3", (report("h3/0", room=1),)), "unix:3", 0, 0.0)
    one = chosen(instances)
    assert one is not None and one.name == "h3/0"
    flight = instances.send(one, WORK, (), 0.0)
    assert chosen(instances) is None
    flight.end()
    assert chosen(instances) is one
    instances.lost("unix:3")
    assert chosen(instances) is None
    stale = many(500)
    stale.reported(AgentReport("h3", "unix:3", (report("h3/0"),)), "unix:3", 0, FRESH_S)
    found = stale.choose("m", "c", WORK, (), FRESH_S)
    assert found is not None and found.name == "h3/0", "all others have not reported for too long"


def test_busy_instances_of_many_are_avoided() -> None:
    instances, busy = many(100), RunningSums(90, 9_000.0, 90_000.0, 9_000.0, 1e6, 300.0)
    for i in range(0, 100, 2):
        instances.reported(AgentReport("h", f"unix:{i}", (report(f"h{i}/0", running=busy),)), f"unix:{i}", 0, 0.0)
    went = Counter[bool]()
    for _ in range(400):
        one = chosen(instances)
        assert one is not None
        went[int(one.name[1:].split("/")[0]) % 2 == 0] += 1
        instances.send(one, WORK, (), 0.0).end()
    assert went[True] <= 8, "all of the drawn ones are busy once in 2 ** DRAWN times"


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["report", "send", "end", "refuse", "gone", "lost", "switch", "plan", "forget"]),
            st.integers(0, 5),
            st.integers(0, 2),
        ),
        max_size=60,
    )
)
def test_what_is_kept_equals_a_look_at_all_instances(steps: list[tuple[str, int, int]]) -> None:
    instances, flights = Instances(), []
    for what, i, room in steps:
        name, endpoint = f"h{i}/0", f"unix:{i}"
        one = instances.by_name.get(name)
        if what in ("report", "switch"):
            model = "n" if what == "switch" else "m"
            told = AgentReport(f"h{i}", endpoint, (report(name, room, model),))
            instances.reported(told, endpoint, instances.sent(), 0.0)
        elif what == "plan":
            queues = {f"h{k}/0": (PlannedGroup(-1, "m", "c"),) for k in range(i)}
            instances.plan = PlanInForce(0.0, queues) if room else None
        elif what == "lost":
            instances.lost(endpoint)
        elif what == "forget":
            instances.keep_only([f"unix:{k}" for k in range(6) if k != i])
        elif what == "send" and one is not None:
            flights.append(instances.send(one, WORK, (), 0.0))
        elif what in ("end", "refuse", "gone") and flights:
            flights.pop(0).end(refused=what != "end", gone=what == "gone")
        for model in ("m", "n"):
            able = [x for x in instances.by_name.values() if x.serves(model, 0.0) and x.room > 0]
            assert set(instances._open.of(model)) == set(able)
            assert set(instances.serving(model, 0.0)) == {x for x in instances.by_name.values() if x.serves(model, 0.0)}
            planned = set(instances.planned(model, "c"))
            assert set(instances._open.of(model, "c")) == {x for x in able if x.name in planned}
            found = instances.choose(model, "c", WORK, (), 0.0)
            assert (found is None) == (not able)


def test_holders_are_bounded() -> None:
    instances, holders, begins = many(40), PrefixHolders(), prompt("all")
    for seed, one in enumerate(instances.by_name.values()):
        holders.sent(one, begins, seed)
    assert len(list(holders.of(begins))) == MOST_HOLDERS and len(holders) == 1


@pytest.mark.slow
def test_a_request_that_may_go_to_some_instances_goes_to_the_best_of_these(forecasts: Counter[str]) -> None:
    instances = many(1_000)
    among = {f"h{i}/0" for i in range(0, 1_000, 3)}
    names = set()
    for _ in range(20):
        one = instances.choose("m", "c", WORK, (), 0.0, among)
        assert one is not None and one.name in among and forecasts.total() <= DRAWN
        instances.send(one, WORK, (), 0.0)
        names.add(one.name)
        forecasts.clear()
    assert len(names) > 10
    assert instances.choose("m", "c", WORK, (), 0.0, {"h1/0", "nowhere"}) is instances.by_name["h1/0"]
    assert instances.choose("m", "c", WORK, (), 0.0, set()) is None


def test_a_full_instance_is_chosen_only_where_the_request_must_go_somewhere_now() -> None:
    instances = many(3, room=0, running=RunningSums(4, 4_000.0))
    free_soon = report("h1/0", room=0, running=RunningSums(1, 10.0))
    instances.reported(AgentReport("h1", "unix:1", (free_soon,)), "unix:1", 0, 0.0)
    assert chosen(instances) is None
    one = instances.choose_full("m", WORK, (), 0.0)
    assert one is not None and one.name == "h1/0"
    assert instances.choose_full("m", WORK, (), 0.0, {"h2/0"}) is instances.by_name["h2/0"]
    assert instances.choose_full("m", WORK, (), 2 * FRESH_S) is None, "nobody responds"
