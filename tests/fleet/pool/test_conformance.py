"""What every pool does: the fake one that other tests use, and those that fleets are run with."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError
from sloserve.core.spans import Phase
from sloserve.fleet.contract.reports import AgentReport, InstanceReport, to_json
from sloserve.fleet.pool.embedded import EmbeddedPool
from sloserve.fleet.pool.pool import Gone, Offer, Pool
from sloserve.fleet.pool.registered import RegisteredPool
from sloserve.fleet.store.store import open_store
from tests import bounded
from tests.fleet.pool.fake_pool import FakePool
from tests.fleet.pool.ray_fleet import SECONDS, RayCluster, ray_cluster

OFFERS = (Offer("a", "cpu", 1, 2**30), Offer("b", "cpu", 1))
STUB = "tests.fleet.pool.agent_stub"


class Stage(Protocol):
    """A pool with two hosts, and a hand in what happens to its agents."""

    pool: Pool

    def agent(self, host: str) -> int | None:
        """Which agent runs there, by a number that no other has."""
        ...

    async def kill(self, host: str) -> None: ...


class FakeStage:
    def __init__(self) -> None:
        self.pool = FakePool(*OFFERS)

    def agent(self, host: str) -> int | None:
        return self.pool.agents.get(host)

    async def kill(self, host: str) -> None:
        self.pool.lose(host)


class EmbeddedStage:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self.pool = EmbeddedPool(OFFERS, lambda host: [STUB, *(arguments or ["stay"])], folder, {})

    def agent(self, host: str) -> int | None:
        child = self.pool._running.get(host)
        return None if child is None or child[0]._process is None else child[0]._process.pid

    async def kill(self, host: str) -> None:
        pid = self.agent(host)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


class RayStage:
    """Two nodes on this machine, and agents that are found by the arguments that they were started with."""

    def __init__(self, folder: Path, cluster: RayCluster) -> None:
        from sloserve.fleet.pool.on_ray.agents import FleetAgents
        from sloserve.fleet.pool.on_ray.pool import RayPool

        self._mark = str(folder)
        agents = FleetAgents("test", {}, lambda offer: [STUB, "stay", self._mark, offer.host], {}, drain_s=20.0)
        self.pool = RayPool(cluster.address, {"cpu": 1}, agents)

    def agent(self, host: str) -> int | None:
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if entry.read_bytes().endswith(f"\0stay\0{self._mark}\0{host}\0".encode()):
                    return int(entry.parent.name)
        return None

    async def kill(self, host: str) -> None:
        os.kill(await runs(self, host), signal.SIGKILL)


async def runs(on: Stage, host: str) -> int:
    """Which agent runs there, once one does."""
    async with asyncio.timeout(SECONDS):
        while (found := on.agent(host)) is None:
            await asyncio.sleep(0.1)
        return found


async def ended(on: Stage, host: str) -> None:
    """Waits until no agent runs there."""
    async with asyncio.timeout(SECONDS):
        while on.agent(host) is not None:
            await asyncio.sleep(0.1)


class RegisteredStage:
    """Agents that others start: here by hand, as soon as the fleet asks for them."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.store = open_store(f"sqlite:{folder}/store", self.clock)
        self.agents = dict[str, int]()
        self.pool = RegisteredPool(self.store, {"own"}, lambda device: 1)
        for host in ("own", "b", "a"):
            self.store.members.take_host(f"agent:{host}", host, host, 5.0)
            self.beat(host)

    def beat(self, host: str) -> None:
        instance = InstanceReport(f"{host}/0", "cpu", Phase.EMPTY, {})
        report = to_json(AgentReport(host, "http://10.0.0.7:4000", (instance,)))
        if self.store.members.renew_host(f"agent:{host}", host, report, 5.0).must_end:
            self.store.members.leave(f"agent:{host}", host)


def test_agents_that_others_start_are_known_by_their_signs_of_life(tmp_path: Path) -> None:
    async def all_of_it() -> None:
        on = RegisteredStage(tmp_path)
        offers = await on.pool.offers()
        assert offers == {host: Offer(host, "cpu", 1, 0, "http://10.0.0.7:4000") for host in ("a", "b")}
        await on.pool.ensure(offers["a"])
        await on.pool.want({"cpu": 5})
        on.clock.advance_to(on.clock.now_s() + 6.0)
        on.beat("b")
        gone = await on.pool.gone()
        assert (gone.host, gone.what, gone.certain) == ("a", "has given no sign of life for 6 s", False)
        on.beat("a")
        assert list(await on.pool.offers()) == ["a", "b"]
        await on.pool.drain("b")
        on.beat("b")
        assert list(await on.pool.offers()) == ["a"]
        await on.pool.close()
        assert list(await on.pool.offers()) == ["a"], "they go on without the process that only hears of them"
        with pytest.raises(TimeoutError):  # one that was told to end is not told of
            await asyncio.wait_for(on.pool.gone(), 0.01)
        on.store.close()

    bounded.run(all_of_it(), 4 * SECONDS)


Staged = Callable[[], AbstractAsyncContextManager[Stage]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    if "SLOSERVE_RAY" not in os.environ:
        pytest.skip("make ray runs it")
    with ray_cluster(tmp_path_factory.mktemp("ray")) as started:
        for name in ("a", "b"):
            started.call("add", name)
        yield started


RAY = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(params=["fake", pytest.param("embedded", marks=pytest.mark.slow), pytest.param("ray", marks=RAY)])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Staged:
    cluster = request.getfixturevalue("cluster") if request.param == "ray" else None

    @asynccontextmanager
    async def staged() -> AsyncIterator[Stage]:
        made: Stage = FakeStage()
        if request.param == "embedded":
            made = EmbeddedStage(tmp_path)
        elif cluster is not None:
            made = RayStage(tmp_path, cluster)
        try:
            yield made
        finally:
            await made.pool.close(at_once=True)
            if cluster is not None:
                sys.modules["ray"].shutdown()

    return staged


def test_an_agent_runs_once_on_each_host_that_is_offered(stage: Staged) -> None:
    async def all_of_it() -> None:
        async with stage() as on:
            offers = await on.pool.offers()
            assert list(offers) == ["a", "b"] and all(name == one.host for name, one in offers.items())
            assert on.agent("a") is None
            await on.pool.ensure(offers["a"])
            first = await runs(on, "a")
            for offer in offers.values():
                await on.pool.ensure(offer)
            assert await runs(on, "b") != first == on.agent("a")

    bounded.run(all_of_it(), 4 * SECONDS)


def test_an_agent_that_dies_is_told_of_and_can_be_started_again(stage: Staged) -> None:
    async def all_of_it() -> None:
        async with stage() as on:
            offers = await on.pool.offers()
            await on.pool.ensure(offers["a"])
            first = await runs(on, "a")
            await on.kill("a")
            gone = await asyncio.wait_for(on.pool.gone(), SECONDS)
            assert (gone.host, gone.certain, gone.what.startswith("has ended")) == ("a", True, True)
            assert on.agent("a") is None
            await on.pool.ensure(offers["a"])
            assert await runs(on, "a") != first

    bounded.run(all_of_it(), 4 * SECONDS)


@pytest.mark.parametrize("at_once", [False, True])
def test_one_that_is_told_to_end_is_not_told_of(stage: Staged, at_once: bool) -> None:
    async def all_of_it() -> None:
        async with stage() as on:
            for offer in (await on.pool.offers()).values():
                await on.pool.ensure(offer)
            await runs(on, "a")
            await on.pool.drain("a", at_once=at_once)
            await on.pool.drain("nobody")
            await ended(on, "a")
            assert await runs(on, "b")
            await on.kill("b")
            assert (await asyncio.wait_for(on.pool.gone(), SECONDS)).host == "b"

    bounded.run(all_of_it(), 4 * SECONDS)


def test_a_closed_pool_starts_nothing(stage: Staged) -> None:
    async def all_of_it() -> None:
        async with stage() as on:
            offers = await on.pool.offers()
            await on.pool.ensure(offers["a"])
            await on.pool.want({"cpu": 5})
            await runs(on, "a")
            await on.pool.close()
            await on.pool.ensure(offers["b"])
            await ended(on, "a")
            assert on.agent("b") is None

    bounded.run(all_of_it(), 4 * SECONDS)


@pytest.mark.slow
def test_what_an_agent_says_is_set_wrongly_counts_at_its_first_start_alone(tmp_path: Path) -> None:
    """One that was started again while its store was away ended the gateway too."""

    async def all_of_it() -> Gone:
        pool = EmbeddedStage(tmp_path, "2").pool
        await pool.ensure(OFFERS[0])
        with pytest.raises(ConfigError, match="(?s)agent a does not start; .*wrong: the agent's settings"):
            await asyncio.wait_for(pool.gone(), 30)
        await pool.ensure(OFFERS[0])
        return await asyncio.wait_for(pool.gone(), 30)

    gone = bounded.run(all_of_it(), 4 * SECONDS)
    assert gone.certain and gone.what.startswith("has ended with status 2; its log is ")


@pytest.mark.slow
def test_a_process_that_must_not_be_killed_is_ordered_twice_to_end_at_once(tmp_path: Path) -> None:
    """A pool on Ray that was killed would leave its agents running."""

    async def all_of_it() -> None:
        pool = EmbeddedPool(OFFERS, lambda host: [STUB, "twice"], tmp_path, {})
        await pool.ensure(OFFERS[0])
        log = tmp_path / "agent-a.log"
        while not log.exists() or "pid" not in log.read_text():
            await asyncio.sleep(0.05)
        await pool.drain("a", at_once=True)
        assert log.read_text().count("ordered to end") == 2

    bounded.run(all_of_it(), 4 * SECONDS)
