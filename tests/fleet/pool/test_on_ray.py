"""What a pool on Ray does with nodes and actors, on a cluster that is only said to be there."""

import asyncio
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from sloserve.fleet.pool.pool import Gone
from tests import bounded

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    from tests.fleet.pool.fake_cluster import FakeCluster

    made = FakeCluster(monkeypatch)
    made.table.append({"NodeID": "own", "Alive": True, "Resources": {}, "NodeManagerAddress": "10.0.0.9"})
    return made


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.01)


def test_a_pool_ends_where_its_own_node_has_left_the_cluster(cluster: Any) -> None:
    """After the head was lost and Redis knew what it knew, Ray told it of unavailable actors for ever."""

    async def all_of_it() -> None:
        pool = cluster.pool()
        await pool.offers()
        assert not cluster.ended
        cluster.table[0]["Alive"] = False
        await pool.offers()
        assert len(cluster.ended) == 1

    bounded.run(all_of_it())


def test_nodes_are_hosts_of_the_kind_that_their_label_says(cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    cluster.add("c")
    cluster.add("b", labels={"ray.io/accelerator-type": "H100"}, GPU=8.0)
    cluster.add("a", labels={"sloserve-device": "a100", "ray.io/accelerator-type": "H100"}, GPU=8.0)
    cluster.add("d", labels={"sloserve-device": "a100"}, GPU=2.0)
    cluster.add("e", labels={"sloserve-device": "l4"}, GPU=2.0)
    offers = bounded.run(cluster.pool().offers())
    assert [(one.host, one.device, one.devices) for one in offers.values()] == [
        ("a", "a100", 4),
        ("b", "h100", 8),
        ("c", "cpu", 1),
    ]
    assert "node d gets no agent: it has 2 GPUs, and pool.devices.a100 says 4" in caplog.text
    assert "node e gets no agent: its kind of device, l4, is not in pool.devices" in caplog.text


def test_an_agent_that_is_there_is_looked_after_and_not_touched(cluster: Any) -> None:
    async def all_of_it() -> None:
        actor = cluster.run("one", cluster.add("one"))
        pool = cluster.pool()
        offers = await pool.offers()
        await pool.ensure(offers["one"])
        await until(lambda: len(actor.asked) == 2)
        assert actor.asked == [("look_after", 0, 600.0)] * 2 and not cluster.gone
        await pool.drain("one")
        assert ("stop", 80.0) in actor.asked and cluster.gone == ["red-1/one/00000000-one"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.gone(), 0.01)

    bounded.run(all_of_it())


def test_an_agent_with_another_file_reads_it_again_and_one_with_other_options_is_replaced(cluster: Any) -> None:
    async def all_of_it() -> None:
        old_file = cluster.run("one", cluster.add("one"), digest="other")
        old_options = cluster.run("two", cluster.add("two"), start="other")
        pool = cluster.pool()
        for offer in (await pool.offers()).values():
            await pool.ensure(offer)
        gone = await asyncio.wait_for(pool.gone(), 30)
        assert gone == Gone("two", "has ended because its options have changed", certain=True)
        assert ("stop", 80.0) in old_options.asked and cluster.gone == ["red-1/two/00000000-two"]
        await until(lambda: ("change", {"fleet.yaml": "a: 1"}, "1") in old_file.asked)
        assert ("stop", 80.0) not in old_file.asked
        await pool.close(at_once=True)

    bounded.run(all_of_it())


def test_agents_of_nodes_that_are_no_hosts_any_more_end(cluster: Any) -> None:
    async def all_of_it() -> None:
        cluster.run("one", cluster.add("one"))
        kind_is_gone = cluster.run("two", cluster.add("two", labels={"sloserve-device": "l4"}, GPU=1.0))
        node_is_gone = cluster.run("three", cluster.add("three", is_alive=False))
        await cluster.pool().offers()
        await until(lambda: len(cluster.gone) == 2)
        assert set(cluster.actors) == {"red-1/one/00000000-one"}
        assert kind_is_gone.asked == [("stop", 80.0)] and node_is_gone.asked == []

    bounded.run(all_of_it())


def test_a_pool_that_is_closed_ends_agents_that_it_has_not_found_yet(cluster: Any) -> None:
    async def all_of_it() -> None:
        actor = cluster.run("one", cluster.add("one"))
        pool = cluster.pool()
        await pool.offers()
        await pool.close()
        assert ("stop", 80.0) in actor.asked and not cluster.actors

    bounded.run(all_of_it())


@pytest.mark.parametrize(("left_s", "within_s"), [(30.0, 28.0), (500.0, 80.0), (0.5, 2.0), (None, 80.0)])
def test_an_agent_ends_before_its_node_goes(cluster: Any, left_s: float | None, within_s: float) -> None:
    async def all_of_it() -> None:
        one = cluster.add("one")
        actor = cluster.run("one", one)
        pool = cluster.pool()
        await pool.ensure((await pool.offers())["one"])
        cluster.leaving[one] = None if left_s is None else cluster.clock.now_s() + left_s
        assert not await pool.offers() and not await pool.offers()
        gone = await asyncio.wait_for(pool.gone(), 30)
        assert gone == Gone("one", f"ends within {within_s:.0f} s, since its node is to be drained", certain=False)
        await until(lambda: bool(cluster.gone))
        assert [call for call in actor.asked if call[0] == "stop"] == [("stop", within_s)]

    bounded.run(all_of_it())


def test_an_agent_whose_node_dies_is_told_of(cluster: Any) -> None:
    async def all_of_it() -> None:
        cluster.run("one", cluster.add("one"))
        pool = cluster.pool()
        await pool.ensure((await pool.offers())["one"])
        cluster.table[-1]["Alive"] = False
        assert not await pool.offers()
        gone = await asyncio.wait_for(pool.gone(), 30)
        assert gone.what == "has died with its actor: its node has left the cluster" and not gone.certain
        await until(lambda: bool(cluster.gone))

    bounded.run(all_of_it())


def test_what_is_asked_for_is_hosts_beside_those_that_work(cluster: Any) -> None:
    """A group that waits may not be placed where an agent is, nor on a node of another kind."""

    async def all_of_it() -> None:
        pool = cluster.pool(a100={"GPU": 4.0, "x": 1.0})
        h100 = {"ray.io/accelerator-type": "H100"}
        works, idle = cluster.add("works", labels=h100, GPU=8.0), cluster.add("idle", labels=h100, GPU=4.0)
        cpu = cluster.add("cpu")
        cluster.run("works", works)
        await pool.ensure((await pool.offers())["works"])
        await pool.want({"h100": 3, "a100": 1, "cpu": 1})
        assert cluster.asked == [
            ("h100", 2, {"GPU": 8.0}, {"own", works, cpu}),
            ("a100", 1, {"GPU": 4.0, "x": 1.0}, {"own", works, idle, cpu}),
            ("cpu", 1, {"CPU": 1.0}, {"own", works, idle}),
        ]
        await pool.drain("works")
        cluster.asked.clear()
        await pool.want({"h100": 0})
        assert cluster.asked == [("h100", 0, {"GPU": 8.0}, {"own", cpu})]

    bounded.run(all_of_it())


class Groups:
    """Placement groups that are only said to be there, by name. on: the node that each is on. actors: names."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from sloserve.fleet.pool.on_ray import placement as module

        self.there: dict[str, tuple[dict[str, float], dict[str, str]]] = {}
        self.on: dict[str, str] = {}
        self.actors: list[str] = []
        patch.setattr(module, "placement_group", self._make)
        patch.setattr(module, "get_placement_group", lambda name: name)
        patch.setattr(module, "remove_placement_group", lambda name: self.there.pop(name))
        patch.setattr(module, "placement_group_table", self._table)
        patch.setattr(module, "list_named_actors", lambda: self.actors)
        self.module = module

    def _make(self, bundles: list[dict[str, float]], **options: Any) -> None:
        assert (options["strategy"], options["lifetime"]) == ("STRICT_PACK", "detached")
        self.there[options["name"]] = bundles[0], options["bundle_label_selector"][0]

    def _table(self) -> dict[str, dict[str, Any]]:
        states = {name: "CREATED" if name in self.on else "PENDING" for name in self.there}
        return {
            name: {"name": name, "state": state, "bundles_to_node_id": {0: self.on.get(name, "")}}
            for name, state in states.items()
        } | {"old": {"name": "red-1/wanted/h100/old", "state": "REMOVED", "bundles_to_node_id": {0: ""}}}

    def rules(self) -> list[tuple[dict[str, float], dict[str, str]]]:
        return list(self.there.values())


def test_further_hosts_are_groups_that_wait_and_hosts_take_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups(monkeypatch)
    demand = groups.module.HostDemand("red-1")
    bundle, id = {"GPU": 8.0}, "ray.io/node-id"
    demand.ask("h100", 2, bundle, {"b", "a"})
    first, second = groups.there
    demand.ask("h100", 2, bundle, {"a", "b"})
    assert list(groups.there) == [first, second] and groups.rules() == [(bundle, {id: "!in(a,b)"})] * 2
    groups.on[first] = "c"
    demand.ask("h100", 2, bundle, {"a", "b", "d"})
    assert groups.rules() == [(bundle, {id: "!in(a,b)"}), (bundle, {id: "!in(a,b,d)"})], "one that waits is made anew"
    assert demand.waits("h100") and not demand.waits("cpu")
    assert demand.take("h100", "e") is None and demand.take("h100", "c") == first
    groups.actors = ["red-1/host-c/c"]
    assert demand.take("h100", "c") is None, "its agent has it"
    demand.less("h100")
    demand.less("h100")
    assert list(groups.there) == [first] and not demand.waits("h100")
    demand.withdraw()
    assert list(groups.there) == [first]


def test_groups_of_the_process_before_are_found_and_those_on_other_nodes_go(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups(monkeypatch)
    groups.module.HostDemand("red-1").ask("cpu", 3, {"CPU": 1.0}, ())
    groups.module.HostDemand("blue").ask("cpu", 1, {"CPU": 1.0}, ())
    right, wrong, waiting, other = groups.there
    groups.on |= {right: "x", wrong: "y"}
    groups.module.HostDemand("red-1").ask("cpu", 2, {"CPU": 1.0}, {"y"})
    assert right in groups.there and other in groups.there and not {wrong, waiting} & set(groups.there)
    assert len(groups.there) == 3, "one that waits has a rule that this process does not know, and is made anew"
    from sloserve.fleet.pool.on_ray.cluster import RayNode
    from sloserve.fleet.pool.pool import Offer

    placed = [groups.module.is_placed("red-1", RayNode(id, Offer(id, "cpu", 1), {})) for id in ("x", "z")]
    assert placed == [True, False], "an agent that was started in a group that waited has that one"
    groups.module.withdraw_waiting("red-1")
    assert set(groups.there) == {right, other}
