"""A gateway for another version of the fleet's file takes over while requests run in the one before."""

import asyncio
import contextlib
import gc
import json
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from sloserve.core.errors import ConfigError
from sloserve.fleet.contract.plan_in_force import PlanInForce, PlannedGroup
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.gateway.gateway import Gateway
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.fleet.store.store import open_store
from sloserve.wire.asgi import Receive, Scope, Send
from sloserve.wire.keys import hash_of
from tests import bounded
from tests.bounded import until
from tests.fleet.gateway.played_agents import FLEET, Played, PlayedAgent, running
from tests.fleet.stand_in.engine import reply

pytestmark = pytest.mark.slow  # servers start and stop

COMPLETIONS = "/v1/completions"
GOLD = "settings: {policy: edf, classes: {gold: {rank: 0, ttft_ms: 700, aged_after_s: 60}}}"
OTHER = FLEET.replace("settings: {policy: edf}", GOLD)
KEYS = "tenants:\n  a: {keys: ['%s'], metrics: true, quota: %s}\n"


@dataclass
class Line:
    """A gateway that others follow, one agent, and a client."""

    agent: PlayedAgent
    around: GatewayDependencies
    now: Gateway
    http: httpx.AsyncClient = field(default_factory=httpx.AsyncClient)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.now.app(scope, receive, send)

    @property
    def first(self) -> Played:
        return next(iter(self.agent.instances.values()))

    async def follow(self, text: str, around: GatewayDependencies | None = None) -> Gateway:
        before = self.now
        after = Gateway(parse_fleet(text), around or self.around, before=before)
        await after.take_over()
        self.now = after
        return before

    async def complete(self, prompt: str = "a", **given: Any) -> httpx.Response:
        headers = given.pop("headers", {})
        body = {"model": "chat", "prompt": prompt, "max_tokens": 5, **given}
        return await self.http.post(COMPLETIONS, json=body, headers=headers)

    async def counted(self, name: str = "sloserve:gateway_requests_total") -> float:
        page = (await self.http.get("/metrics")).text
        return sum(float(row.rpartition(" ")[2]) for row in page.splitlines() if row.startswith(name + "{"))


@contextlib.asynccontextmanager
async def line(tmp_path: Path, text: str = FLEET, **given: Any) -> AsyncIterator[Line]:
    agent = PlayedAgent(tmp_path / "agent.sock")
    around = GatewayDependencies(endpoints=[agent.address], **given)
    to = Line(agent, around, Gateway(parse_fleet(text), around))
    config = uvicorn.Config(to, lifespan="on", ws="none", log_level="critical", timeout_graceful_shutdown=1)
    async with agent.open(), running(config):
        try:
            await until(lambda: to.now.watch.answered)
            shown = {"authorization": "Bearer k"}
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{config.port}", timeout=60.0, headers=shown
            ) as to.http:
                yield to
        finally:
            await to.now.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    bounded.run(test())  # type: ignore[arg-type]


def text_of(answer: httpx.Response) -> str:
    events = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-2]]
    return "".join(event["choices"][0]["text"] for event in events)


def test_streams_go_on_and_new_requests_find_the_new_class(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            assert (await to.complete(headers={"x-slo-class": "gold"})).status_code == 400
            to.first.engines["chat"].faults.step_s = 0.02
            streams = [asyncio.create_task(to.complete(f"s{i}", stream=True, max_tokens=40)) for i in range(8)]
            await until(lambda: to.first.in_flight == 8)
            counted, asking = await to.counted(), to.agent.asked
            gone = []
            for text in (OTHER, FLEET, OTHER):
                before = await to.follow(text)
                assert not before.is_running and await to.counted() >= counted, "counters only rise"
                gone.append(weakref.ref(before))
                del before
            assert to.now.is_running and to.first.in_flight == 8
            to.first.engines["chat"].faults.step_s = 0.0
            assert (await to.complete(headers={"x-slo-class": "gold"})).status_code == 200
            assert to.first.came[-1]["x-slo-class"] == "gold"
            for i, stream in enumerate(await asyncio.gather(*streams)):
                assert stream.status_code == 200 and text_of(stream) == reply("chat", f"s{i}", 40)
            assert await to.counted() == counted + 9
            await until(lambda: not to.now.parts.places.requests)
            await until(lambda: to.agent.asked > asking + 2)  # its agent is still asked
            assert not to.first.in_flight and not to.now.parts.passing_on
            gc.collect()
            assert [one() is None for one in gone[1:]] == [True, True], "the server keeps the first one's app"

    run(test)


def test_held_requests_wait_on_in_the_order_of_their_deadlines(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            to.first.room = 1
            to.first.engines["chat"].faults.step_s = 0.05
            running_one = asyncio.create_task(to.complete("running", max_tokens=20))
            await until(lambda: to.first.in_flight)
            late = asyncio.create_task(to.complete("late", headers={"x-slo-e2e-ms": "50000"}))
            await until(lambda: len(to.now.parts.hold) == 1)
            shares = "settings: {policy: edf, tenant_shares: {weights: {local: 2}}}"
            await to.follow(FLEET.replace("settings: {policy: edf}", shares))
            soon = asyncio.create_task(to.complete("soon", headers={"x-slo-e2e-ms": "20000"}))
            await until(lambda: len(to.now.parts.hold) == 2)
            await to.follow(FLEET)
            assert len(to.now.parts.hold) == 2
            to.first.engines["chat"].faults.step_s = 0.0
            answers = await asyncio.gather(running_one, late, soon)
            assert [one.status_code for one in answers] == [200] * 3
            assert [json.loads(body)["prompt"] for body in to.first.bodies] == ["running", "soon", "late"]

    run(test)


def test_a_client_finds_its_limits_as_it_left_them(tmp_path: Path) -> None:
    async def test() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(KEYS % (hash_of("k"), "{requests_per_minute: 3, requests: 1}"))
        async with line(tmp_path, keys=keys) as to:
            assert [(await to.complete()).status_code for _ in range(2)] == [200, 200]
            to.first.engines["chat"].faults.step_s = 0.05
            streaming = asyncio.create_task(to.complete(stream=True, max_tokens=20))
            await until(lambda: to.first.in_flight)
            await to.follow(OTHER)
            refused = await to.complete()
            assert refused.status_code == 429 and "1 of 1 requests of yours" in refused.text
            to.first.engines["chat"].faults.step_s = 0.0
            await streaming
            refused = await to.complete()
            assert refused.status_code == 429 and "requests per minute are used" in refused.text
            keys.write_text(KEYS % (hash_of("k"), "{requests: 9}") + f"  b: {{keys: ['{hash_of('l')}']}}\n")
            await to.follow(OTHER)
            assert (await to.complete()).status_code == 200
            assert (await to.complete(headers={"authorization": "Bearer l"})).status_code == 200, "a new tenant"

    run(test)


def test_a_model_comes_and_goes(tmp_path: Path) -> None:
    """The agent has the file of before, or the one of after: what only one of them knows is not served."""

    async def test() -> None:
        added = FLEET.replace("  legal:", "  code: {profile: h100-llama3-8b}\n  legal:")
        removed = FLEET.replace("  legal: {profile: h100-llama3-8b}\n", "")
        async with line(tmp_path) as to:
            to.first.active = "legal"
            await until(lambda: to.now.parts.instances.serving("legal", to.now.parts.clock.monotonic_s()))
            to.first.engines["legal"].faults.step_s = 0.05
            streaming = asyncio.create_task(to.complete(model="legal", stream=True, max_tokens=20))
            await until(lambda: to.first.in_flight)
            await to.follow(removed)
            gone = await to.complete(model="legal")
            assert gone.status_code == 404 and "legal" in gone.text
            await to.follow(added)
            new = (PlannedGroup(-1, "newer", "gold"), PlannedGroup(-2, "legal", "interactive"))
            to.now.parts.instances.plan = PlanInForce(
                0.0, {"node-z/0": new, "node-a/0": new}
            )  # of a planner with a newer file
            assert (await to.complete(model="legal", max_tokens=1)).status_code == 200
            models = {one["id"]: one["state"] for one in (await to.http.get("/v1/models")).json()["data"]}
            assert models == {"chat": "warm", "code": "unavailable", "legal": "active"}
            assert text_of(await streaming) == reply("legal", "a", 20)

    run(test)


def test_what_a_faulty_file_of_keys_would_change_stays_as_it_is(tmp_path: Path) -> None:
    async def test() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(KEYS % (hash_of("k"), "{}"))
        async with line(tmp_path, keys=keys) as to:
            keys.write_text("tenants: {a: {keys: [wrong]}}")
            before = to.now
            with pytest.raises(ConfigError, match=r"keys\.yaml"):
                await to.follow(OTHER)
            assert to.now is before and before.is_running and (await to.complete()).status_code == 200
            assert to.now.parts.demand.report((), 0.0) is not None and "gold" not in to.now.parts.settings.classes

    run(test)


def test_limits_of_the_file_hold_from_then_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, limits=GatewaySettings(max_sessions=8)) as to:
            sessions = to.now.parts.sessions
            for i in range(4):
                await to.complete(headers={"x-session-id": f"s{i}"})
            assert len(sessions) == 4
            limits = GatewaySettings(max_sessions=2, max_requests=1, max_held=1, silent_max_s=5.0, affinity=False)
            await to.follow(FLEET, GatewayDependencies(endpoints=[to.agent.address], limits=limits))
            assert to.now.parts.sessions is sessions and len(sessions) == 2
            assert not to.now.parts.instances.affinity
            to.first.engines["chat"].faults.step_s = 0.05
            streaming = asyncio.create_task(to.complete(stream=True, max_tokens=20))
            await until(lambda: to.first.in_flight)
            assert "all 1 requests of this gateway" in (await to.complete()).text
            assert (await streaming).status_code == 200

    run(test)


def test_one_runner_of_batches_follows_another(tmp_path: Path) -> None:
    async def test() -> None:
        store = open_store(f"sqlite:{tmp_path}/store.sqlite")
        try:
            async with line(tmp_path, store=store, files=tmp_path / "files", name="gateway-1") as to:
                file = await to.http.post(
                    "/v1/files",
                    data={"purpose": "batch"},
                    files={"file": ("in.jsonl", _lines("chat", "code"), "application/jsonl")},
                )
                asked = {"input_file_id": file.json()["id"], "endpoint": COMPLETIONS, "completion_window": "1h"}
                failed = (await to.http.post("/v1/batches", json=asked)).json()["id"]
                await until(lambda: store.batches.get("local", failed).state == "failed")  # code is no model yet
                members = [row.id for row in store.members.agents()]
                before = await to.follow(FLEET.replace("  legal:", "  code: {profile: h100-llama3-8b}\n  legal:"))
                assert before.shared is to.now.shared
                taken = (await to.http.post("/v1/batches", json=asked)).json()["id"]
                await until(lambda: store.batches.get("local", taken).state == "in_progress")
                assert members == [row.id for row in store.members.agents()] == ["gateway-1"]
        finally:
            store.close()

    run(test)


def _lines(*models: str) -> str:
    bodies = [{"model": model, "prompt": "a", "max_tokens": 2} for model in models]
    lines = [{"custom_id": str(i), "method": "POST", "url": COMPLETIONS, "body": body} for i, body in enumerate(bodies)]
    return "\n".join(map(json.dumps, lines))
