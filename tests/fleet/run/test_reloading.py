"""A process follows its fleet's file: gateway and planner here, with stand-in engines behind a played agent."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest

from sloserve.core.errors import ConfigError
from sloserve.fleet.commands import _read
from sloserve.fleet.contract.reports import AgentReport, to_json
from sloserve.fleet.run.file_watch import FileWatch, digest_of, watch_file
from sloserve.fleet.run.gateway_process import GatewayServer, stop
from sloserve.fleet.run.live import place_of
from sloserve.fleet.run.planner_process import PlannerTask
from sloserve.fleet.run.reloading import RESULT, RUNNING, FileInForce, FleetSource, Reloading
from sloserve.fleet.run.signals import HangUps, hang_up_self
from sloserve.fleet.store.store import Store, open_store
from tests import bounded
from tests.bounded import until
from tests.fleet.gateway.played_agents import PlayedAgent
from tests.fleet.gateway.test_take_over import text_of
from tests.fleet.stand_in.engine import reply

FLEET = """
models:
  chat: {model: m, profile: h100-llama3-8b}
  legal: {model: m, profile: h100-llama3-8b}
hosts:
  node-a: {device: h100, devices: 2, host_memory_gib: 64}
settings: {policy: edf}
gateway: {port: 0}
"""
GOLD = FLEET.replace("{policy: edf}", "{policy: edf, classes: {gold: {rank: 0, ttft_ms: 700, aged_after_s: 60}}}")


@dataclass
class Line:
    """A gateway's server that follows its file, and a client."""

    file: Path
    store: Store
    agent: PlayedAgent
    server: GatewayServer
    in_force: FileInForce
    hang_ups: HangUps
    http: httpx.AsyncClient = field(default_factory=httpx.AsyncClient)

    async def complete(self, slo_class: str, stream: bool = False, max_tokens: int = 5) -> httpx.Response:
        body = {"model": "chat", "prompt": "a", "max_tokens": max_tokens, "stream": stream}
        return await self.http.post("/v1/completions", json=body, headers={"x-slo-class": slo_class})

    async def hang_up(self, text: str) -> None:
        """Change the file, and return once the process has read it."""
        self.file.write_text(text)
        number = sum(self.results())
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: sum(self.results()) > number)

    def results(self) -> tuple[int, int]:
        (family, *_) = self.in_force.collect()
        applied, refused = (int(one.value) for one in family.samples)
        return applied, refused


@contextlib.asynccontextmanager
async def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str = FLEET) -> AsyncIterator[Line]:
    monkeypatch.setenv("SLOSERVE_ADMIN_KEY", "admin")
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
    fleet, agent = _read(file), PlayedAgent(tmp_path / "agent.sock")
    place = place_of(fleet, environ={})
    store = open_store(place.store)
    store.members.beat("agent", to_json(AgentReport("node-a", agent.address, ())))
    in_force, hang_ups = FileInForce(fleet, folder=place.folder), HangUps()
    server = GatewayServer(fleet, place, store, 5.0, in_force)
    reloading = Reloading(FleetSource(file, partial(_read, file)), in_force, server.apply, lambda line: None)
    to = Line(file, store, agent, server, in_force, hang_ups)
    following = asyncio.create_task(reloading.run(hang_ups))
    try:
        async with agent.open(), httpx.AsyncClient(base_url=server.address, timeout=60.0) as to.http:
            await server.start()
            await until(lambda: server._gateway.watch.answered)
            yield to
            await server.stop()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, before)
        store.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    bounded.run(test())  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_changed_file_is_applied_to_new_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with line(tmp_path, monkeypatch) as to:
            instance = to.agent.instances["node-a/0"]
            assert (await to.complete("gold")).status_code == 400
            instance.engines["chat"].faults.step_s = 0.02
            streams = [asyncio.create_task(to.complete("interactive", True, 50)) for _ in range(6)]
            await until(lambda: instance.in_flight == 6)
            await to.hang_up(GOLD)
            assert (await to.complete("gold")).status_code == 200 and to.results() == (1, 0)
            await to.hang_up(GOLD.replace("  legal:", "  code: {model: m, profile: h100-llama3-8b}\n  legal:"))
            assert "code" in [one["id"] for one in (await to.http.get("/v1/models")).json()["data"]]
            instance.engines["chat"].faults.step_s = 0.0
            assert {text_of(one) for one in await asyncio.gather(*streams)} == {reply("chat", "a", 50)}
            page = (await to.http.get("/metrics")).text
            assert 'sloserve:fleet_file_reloads_total{result="applied"} 2.0' in page
            assert "sloserve:fleet_file_refused 0.0" in page
            assert (await _state(to))["changes"] == ["model code is added"]

    run(test)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (GOLD.replace("rank: 0, ttft_ms: 700", "rank: -1, ttft_ms: x"), ["classes.gold.rank", "classes.gold.ttft_ms"]),
        (
            GOLD.replace("port: 0", "port: 0, host: '::1'"),
            ["gateway.host", "cannot change while the fleet runs; restart"],
        ),
        (GOLD.replace("port: 0", "port: 0, keys: missing.yaml"), ["missing.yaml"]),
        (GOLD.replace("settings", "router: {models: {no: {}}}\nsettings"), ["router"]),
    ],
)
def test_a_file_with_a_fault_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, says: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with line(tmp_path, monkeypatch) as to:
            before = to.server._gateway
            await to.hang_up(changed)
            assert to.results() == (0, 1) and to.server._gateway is before and before.is_running
            assert (await to.complete("gold")).status_code == 400
            assert (await to.complete("interactive")).status_code == 200
            fault = (await _state(to))["fault"]
            assert all(text in fault for text in says)
            assert "sloserve:fleet_file_refused 1.0" in (await to.http.get("/metrics")).text
            said = [one.getMessage() for one in caplog.records if "nothing changes" in one.getMessage()]
            assert len(said) == 1 and fault in said[0]
            folder = to.file.with_suffix(".state")
            assert (folder / RUNNING).read_text() == FLEET and '"number": 1' in (folder / RESULT).read_text()
            await to.hang_up(GOLD)
            assert (await _state(to))["fault"] is None and (folder / RUNNING).read_text() == GOLD
            assert (await to.complete("gold")).status_code == 200

    run(test)


async def _state(to: Line) -> dict[str, object]:
    assert (await to.http.get("/sloserve/file")).status_code == 401
    answer = await to.http.get("/sloserve/file", headers={"authorization": "Bearer admin"})
    found: dict[str, object] = answer.json()
    return found


@pytest.mark.slow
def test_a_gateway_that_ends_is_unhealthy_while_it_still_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with line(tmp_path, monkeypatch) as to:
            await to.hang_up(FLEET.replace("port: 0", "port: 0, leave_s: 3600"))
            assert (await to.http.get("/health")).status_code == 200
            hurried = asyncio.Event()
            stopping = asyncio.create_task(stop(to.server, asyncio.create_task(hurried.wait())))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            for path in ("/health", "/ready"):
                answer = await to.http.get(path)
                assert answer.status_code == 503 and answer.json() == {"status": "the gateway is about to end"}
            assert (await to.complete("interactive")).status_code == 200
            hurried.set()
            await stopping
            with pytest.raises(httpx.ConnectError):
                await to.http.get("/health")

    run(test)


@pytest.mark.slow
def test_gateways_share_a_port_where_the_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        shared = FLEET.replace("port: 0", "port: 0, reuse_port: true")
        async with line(tmp_path, monkeypatch, shared) as to:
            fleet = _read(to.file, {"port": int(to.server.address.rpartition(":")[2])})
            second = GatewayServer(fleet, place_of(fleet, environ={}), to.store, 1.0)
            await second.start()
            await to.server.stop()
            async with httpx.AsyncClient(base_url=second.address, timeout=30.0) as http:
                assert (await http.get("/health")).status_code == 200
            with pytest.raises(ConfigError, match="cannot listen"):
                alone = _read(to.file, {"port": fleet.gateway.port, "reuse_port": False})
                GatewayServer(alone, place_of(alone, environ={}), to.store, 1.0)
            with pytest.raises(ConfigError, match=r"gateway\.reuse_port: packets of one HTTP/3"):
                quic = _read(to.file, {"http3": {"enabled": True}})
                GatewayServer(quic, place_of(quic, environ={}), to.store, 1.0)
            await second.stop()

    run(test)


@pytest.mark.slow
def test_a_planner_that_leads_goes_on_to_lead_by_the_changed_file(tmp_path: Path) -> None:
    async def test() -> None:
        file = tmp_path / "fleet.yaml"
        file.write_text(FLEET)
        place = place_of(_read(file), environ={})
        store = open_store(place.store)
        report = PlayedAgent(tmp_path / "agent.sock", "node-a/0", "node-a/1")
        with ThreadPoolExecutor(1) as executor:
            planner = PlannerTask(_read(file), store, executor, lease_s=60.0)
            planning = asyncio.create_task(planner.run())
            try:
                store.members.beat("agent", to_json(_report(report)))
                await until(lambda: store.members.plan())
                first = store.members.plan()
                assert first is not None
                file.write_text(GOLD)
                await planner.apply(_read(file))
                await until(lambda: (now := store.members.plan()) is not None and now.version > first.version)
                now = store.members.plan()
                assert now is not None and now.term == first.term
            finally:
                planning.cancel()
                await asyncio.gather(planning, return_exceptions=True)
                store.close()

    run(test)


def _report(agent: PlayedAgent) -> AgentReport:
    return AgentReport("node-a", agent.address, tuple(one.report() for one in agent.instances.values()))


def test_a_watched_file_has_changed_once_it_is_the_same_at_two_looks(tmp_path: Path) -> None:
    watch = FileWatch(b"a")
    looks = [b"a", b"half", b"b", b"b", b"b", None, None, b"a", b"b", b"c", b"c"]
    assert [watch.look(digest) for digest in looks] == [False] * 3 + [True] + [False] * 6 + [True]
    assert digest_of(tmp_path / "missing") is None


def test_a_changed_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        contents, changed = [b"a"], asyncio.Event()
        looks: list[bytes] = []

        def digest(path: Path) -> bytes:
            looks.append(contents[0])
            return contents[0]

        monkeypatch.setattr("sloserve.fleet.run.file_watch.digest_of", digest)
        watching = asyncio.create_task(watch_file(tmp_path, changed.set, every_s=0.001))
        await until(lambda: len(looks) > 2)
        assert not changed.is_set()
        contents[0] = b"b"
        await changed.wait()
        watching.cancel()

    bounded.run(test())


def test_a_process_that_takes_no_signal_is_not_ended_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    hang_up_self()
    monkeypatch.setattr(signal, "getsignal", lambda number: lambda: None)
    hang_up_self()
    assert sent == [signal.SIGHUP]


def test_a_process_ends_once_its_terminal_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        terminals, sent = [True, True, False], list[int]()
        monkeypatch.setattr("sloserve.fleet.run.signals._has_terminal", lambda: terminals.pop(0))
        monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
        hang_ups = HangUps()
        hang_ups._come()
        await hang_ups.next()
        hang_ups._come()
        assert sent == [signal.SIGTERM]
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    bounded.run(test())
