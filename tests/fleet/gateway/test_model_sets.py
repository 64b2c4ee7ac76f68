"""Requests that ask for ``auto`` or a set of models, through a gateway on a socket."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError, InvalidRequest
from sloserve.core.slo import Targets
from sloserve.core.spans import Phase
from sloserve.fleet.contract.reports import AgentReport, InstanceReport
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.gateway.calibration import MOST, Calibration
from sloserve.fleet.gateway.gateway import Gateway
from sloserve.fleet.gateway.gateway_request import GatewayRequest, GatewayRequestReader
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.needs import needs_of
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.scheduler.admission.prediction import ArrivingRequest
from sloserve.scheduler.settings import PluginSettings
from sloserve.scheduler.virtual_queues.contract import ModelState
from sloserve.wire.headers import read_headers
from sloserve.wire.keys import hash_of
from tests.bounded import until
from tests.fleet.gateway.played_agents import FLEET
from tests.fleet.gateway.test_gateway import line, run

ROUTER = """
router:
  models: [chat, legal]
  quality: {law: {chat: 0.4, legal: 1.0}, talk: {chat: 1.0, legal: 0.8}}
  task_by_class: {interactive: talk}
  sets: {court: [legal]}
  shadow: greedy
  token_ms: 1000
"""
TEXT = FLEET + ROUTER
TWO = ("node-a/0", "node-a/1")


@pytest.mark.slow
def test_auto_is_served_by_the_best_model_for_its_task_that_is_awake(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, *TWO, text=TEXT) as to:
            to.door.instances["node-a/1"].active = "legal"
            await to.complete(model="legal")  # waits until the gateway knows
            chat = await to.complete(model="auto")
            assert (chat.headers["x-sloserve-model"], chat.json()["model"]) == ("chat;why=best", "chat")
            law = await to.complete(model="auto", headers={"x-slo-task": "law"}, stream=True)
            assert law.headers["x-sloserve-model"] == "legal;why=best" and '"model":"legal"' in law.text.replace(
                " ", ""
            )
            assert json.loads(to.door.instances["node-a/1"].bodies[-1])["model"] == "legal"
            assert (await to.complete(model="court")).headers["x-sloserve-model"] == "legal;why=only"
            assert "x-sloserve-model" not in (await to.complete(model="chat")).headers
            assert await to.metric('sloserve:gateway_auto_completion_ratio_count{model="legal"}') == 2
            slow = await to.complete(model="auto", headers={"x-slo-task": "law", "x-slo-network-ms": "86400000"})
            assert slow.headers["x-sloserve-model"].endswith("why=soonest")
            assert await to.metric('sloserve:gateway_auto_total{model="legal",why="best"}') == 1
            assert await to.metric('sloserve:gateway_auto_shadow_total{model="chat",shadow="chat"}') >= 1

    run(test)


@pytest.mark.slow
def test_a_conversation_stays_on_its_model(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, *TWO, text=TEXT) as to:
            to.door.instances["node-a/1"].active = "legal"
            await to.complete(model="legal")
            turns = [{"role": "user", "content": "is this legal?"}]

            async def say(task: str) -> str:
                body = {"model": "auto", "max_tokens": 3, "messages": turns}
                answer = await to.http.post("/v1/chat/completions", json=body, headers={"x-slo-task": task})
                return answer.headers["x-sloserve-model"]

            assert await say("law") == "legal;why=best"
            assert await say("talk") == "chat;why=best"  # another that begins alike
            assert await say("law") == "legal;why=best"
            turns += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "chat with me"}]
            assert await say("talk") == "legal;why=conversation"

    run(test)


@pytest.mark.slow
def test_what_no_model_can_serve_is_refused_with_what_each_lacks(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, text=TEXT) as to:
            image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:" + "A" * 99_000}}]}
            answer = await to.http.post("/v1/chat/completions", json={"model": "auto", "messages": [image]})
            assert answer.status_code == 400 and "chat has no images; legal has no images" in answer.text
            long = await to.complete(model="auto", max_tokens=10**6)
            assert long.status_code == 400 and "tokens, and about 100000" in long.text
            embedded = await to.http.post("/v1/embeddings", json={"model": "auto", "input": "a"})
            assert embedded.status_code == 400 and "/v1/embeddings needs its name" in embedded.text
            bad = await to.complete(model="auto", headers={"x-slo-network-ms": "-1"})
            assert bad.status_code == 400 and "a number of milliseconds from 0" in bad.text
            named = await to.complete(model="nobody")
            assert named.status_code == 404 and "available: auto, chat, court, legal" in named.text

    run(test)


@pytest.mark.slow
def test_a_key_sees_the_sets_of_its_models_alone(tmp_path: Path) -> None:
    async def test() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(f"tenants: {{a: {{keys: ['{hash_of('k')}'], models: [chat]}}}}")
        async with line(tmp_path, text=TEXT, keys=keys) as to:
            to.http.headers["authorization"] = "Bearer k"
            listed = {one["id"]: one for one in (await to.http.get("/v1/models")).json()["data"]}
            assert list(listed) == ["chat", "auto"] and listed["auto"]["models"] == ["chat"]
            assert listed["auto"]["state"] == "active"
            assert (await to.http.get("/v1/models/auto")).json() == listed["auto"]
            assert (await to.complete(model="auto")).headers["x-sloserve-model"] == "chat;why=only"
            assert (await to.complete(model="court")).status_code == 404

    run(test)


@pytest.mark.slow
def test_where_no_model_is_awake_the_request_waits_for_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path, text=TEXT) as to:
            to.first.active = None
            to.first.phase = Phase.EMPTY
            instances, clock = to.served.gateway.parts.instances, to.served.gateway.parts.clock
            await until(lambda: instances.state_of("chat", clock.monotonic_s()) == "warm")
            waited = asyncio.create_task(to.complete(model="auto"))
            await until(lambda: len(to.served.gateway.parts.hold))
            assert {wanted.model for wanted in to.served.gateway.parts.hold.held} == {"chat"}
            to.first.active, to.first.phase = "chat", Phase.SERVING
            assert (await waited).headers["x-sloserve-model"] == "chat;why=soonest"

    run(test)


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["died", "switching"])
def test_a_request_whose_engine_is_lost_may_go_to_another_model(tmp_path: Path, reason: str) -> None:
    async def test() -> None:
        async with line(tmp_path, *TWO, text=TEXT) as to:
            to.door.instances["node-a/1"].active = "legal"
            await to.complete(model="legal")
            to.door.instances["node-a/1"].refusals = [reason]
            law = await to.complete(model="auto", headers={"x-slo-task": "law"})
            assert law.headers.get_list("x-sloserve-model") == ["chat;why=only"] and law.json()["model"] == "chat"
            assert json.loads(to.first.bodies[-1])["model"] == "chat"
            parts = to.served.gateway.parts
            assert all(parts.admission(model)._backlog.is_empty for model in ("chat", "legal"))
            to.door.instances["node-a/1"].refusals = [reason]
            named = await to.complete(model="legal")  # no other may serve it: it waits
            assert named.status_code == 200 and named.json()["model"] == "legal"

    run(test)


ONE = "models: [chat]\n  quality: {a: {chat: 1}}\n "
FAULTS = {
    "models: [legl]\n  quality: {a: {legl: 1}}": "router.models.0: model 'legl' is unknown; known here: chat, legal",
    "models: [chat]\n  quality: {a: {chat: 2}}": "fleet:10:17: router.quality.a.chat: 2",
    f"{ONE} sets: {{legal: [chat]}}": "router.sets.legal: 'legal' is a model of the fleet",
    f"{ONE} weights: {{urgent: 2}}": "router.weights.urgent: class 'urgent' is unknown",
    "models: [chat]\n  quality: {a: {}}": "router.quality.a: no quality of chat",
}


@pytest.mark.parametrize("section", FAULTS)
def test_a_fault_of_the_router_is_named(section: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_fleet(f"{FLEET}router:\n  {section}\n")
    assert FAULTS[section] in str(raised.value)


def test_the_router_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "router.yaml").write_text("models: [chat]\nquality: {a: {chat: 1}}\npolicy: mine.safetensors\n")
    fleet = parse_fleet(f"{FLEET}router: router.yaml\n", str(tmp_path / "fleet.yaml"))
    assert fleet.router is not None and fleet.router.sets == {"auto": ("chat",)}
    with pytest.raises(ConfigError, match=r"router: .*mine\.safetensors"):
        Gateway(fleet, GatewayDependencies())
    (tmp_path / "router.yaml").write_text("models: [chat]\nquality: {a: {chat: 1}}\nweights: {urgent: 2}\n")
    with pytest.raises(ConfigError, match=r"router\.yaml:3:11: weights\.urgent: class 'urgent' is unknown"):
        parse_fleet(f"{FLEET}router: router.yaml\n", str(tmp_path / "fleet.yaml"))
    (tmp_path / "router.yaml").write_text("models: [chat]\nqualities: {}\n")
    with pytest.raises(ConfigError, match=r"router\.yaml:2:1: qualities: is unknown"):
        parse_fleet(f"{FLEET}router: router.yaml\n", str(tmp_path / "fleet.yaml"))


SAY = [{"role": "user", "content": "hi"}]
NEEDS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nothing": ({"messages": SAY, "tools": [], "response_format": {"type": "text"}}, set()),
    "tools": ({"messages": SAY, "tools": [{}]}, {"tools"}),
    "tools it does not use": ({"messages": SAY, "tools": [{}], "tool_choice": "none"}, set()),
    "a schema": ({"messages": SAY, "response_format": {"type": "json_schema"}}, {"grammar"}),
    "a regex": ({"messages": SAY, "structured_outputs": {"regex": "a"}}, {"grammar"}),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, {"images"}),
    "an image without a type": ({"messages": [{"role": "user", "content": [{"image_url": "a"}]}]}, {"images"}),
    "speech": ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, {"audio"}),
    "a film": ({"messages": [{"role": "user", "content": [{"type": "video_url"}]}]}, {"video"}),
    "a reply's schema": ({"input": "hi", "text": {"format": {"type": "json_schema"}}}, {"grammar"}),
    "a reply's text": ({"input": "hi", "text": {"format": {"type": "text"}, "verbosity": "low"}}, set()),
    "an image to reply to": ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, {"images"}),
    "a message's schema": ({"messages": SAY, "output_config": {"format": {"type": "json_schema"}}}, {"grammar"}),
    "a message's image": ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, {"images"}),
    "a message's unused tools": ({"messages": SAY, "tools": [{}], "tool_choice": {"type": "none"}}, set()),
    "nonsense": ({"messages": [1, None, [{}], {"role": ["user"]}], "response_format": "json"}, set()),
}


def asked(body: dict[str, Any], **headers: str) -> GatewayRequest:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    text = json.dumps({"model": "auto", **body}).encode()
    return GatewayRequestReader(PluginSettings()).read(raw, text, Tenant("a"), "id", "/v1/chat/completions")


@pytest.mark.parametrize("what", NEEDS)
def test_what_a_request_needs_is_in_its_body(what: str) -> None:
    body, needed = NEEDS[what]
    assert needs_of(asked(body)).features == needed


def test_each_of_several_prompts_has_a_context_of_its_own() -> None:
    needs = needs_of(asked({"prompt": ["a" * 4000, "b" * 40_000, "c" * 4000]}))
    assert needs.prompt_tokens == pytest.approx(12_000, rel=0.01)
    assert needs.longest_tokens == pytest.approx(10_000, rel=0.01)
    ids = needs_of(asked({"prompt": [65] * 1000}))
    assert ids.longest_tokens == ids.prompt_tokens


def told(gateway: Gateway, *instances: InstanceReport) -> None:
    now_s = gateway.parts.clock.monotonic_s()
    gateway.parts.instances.reported(AgentReport("node-a", "unix:a", instances), "unix:a", {}, now_s)


def chosen(gateway: Gateway, body: dict[str, Any] | None = None, **headers: str) -> str:
    chooser, now_s = gateway.parts.chooser, gateway.parts.clock.monotonic_s()
    assert chooser is not None
    request = asked(body or {"messages": SAY, "max_tokens": 5}, **headers)
    request.arrival_s = now_s
    return chooser.choose(request, ("chat", "legal")).model


def test_a_model_that_no_instance_can_bring_is_not_waited_for() -> None:
    """Of equals the first, it was: the request waited until its time was over."""
    gateway = Gateway(parse_fleet(TEXT), GatewayDependencies())
    told(gateway, InstanceReport("node-a/0", "h100", Phase.EMPTY, {"legal": ModelState.COLD}))
    assert chosen(gateway) == "legal"
    told(gateway, InstanceReport("node-a/1", "h100", Phase.EMPTY, {"chat": ModelState.WARM}))
    assert chosen(gateway) == "chat"


def test_a_full_queue_of_a_class_sends_its_requests_to_another_model() -> None:
    caps = "settings: {policy: edf, admission: {mode: cap, max_waiting: {interactive: 1}}}"
    gateway = Gateway(parse_fleet(TEXT.replace("settings: {policy: edf}", caps)), GatewayDependencies())
    both = {"chat": ModelState.ACTIVE, "legal": ModelState.WARM}, {"chat": ModelState.WARM, "legal": ModelState.ACTIVE}
    told(gateway, *(InstanceReport(f"node-a/{i}", "h100", Phase.SERVING, of, room=9) for i, of in enumerate(both)))
    parts, now_s = gateway.parts, gateway.parts.clock.monotonic_s()
    law = {"x_slo_task": "law", "x_slo_class": "interactive"}
    assert chosen(gateway, **law) == "legal"
    new = ArrivingRequest(PluginSettings().classes.slo("interactive", Targets()), now_s, 5, 5, None, 1, True)
    admission = parts.admission("legal")
    admission.admit(new, admission.forecast(new, now_s), Waits(), now_s)
    assert chosen(gateway, **law) == "chat"
    assert chosen(gateway, **law | {"x_slo_class": "batch"}) == "legal"


def test_a_queue_is_full_for_the_tenant_that_fills_it_alone() -> None:
    settings = "settings: {policy: edf, tenant_shares: {}, admission: {mode: cap, max_waiting: {interactive: 2}}}"
    gateway = Gateway(parse_fleet(TEXT.replace("settings: {policy: edf}", settings)), GatewayDependencies())
    both = {"chat": ModelState.ACTIVE, "legal": ModelState.WARM}, {"chat": ModelState.WARM, "legal": ModelState.ACTIVE}
    told(gateway, *(InstanceReport(f"node-a/{i}", "h100", Phase.SERVING, of, room=9) for i, of in enumerate(both)))
    law = {"x_slo_task": "law", "x_slo_class": "interactive"}
    for tenant, is_sent_to in (("other", "legal"), ("other", "legal"), ("a", "chat")):
        slo = PluginSettings().classes.slo("interactive", Targets())
        now_s, admission = gateway.parts.clock.monotonic_s(), gateway.parts.admission("legal")
        new = ArrivingRequest(slo, now_s, 5, 5, None, 1, True, tenant=tenant)
        admission.admit(new, admission.forecast(new, now_s), Waits(), now_s)
        assert chosen(gateway, **law) == is_sent_to


class Waits:
    begun = False


def test_a_task_that_is_said_twice_is_refused_if_it_is_not_the_same() -> None:
    same = [(b"x-slo-task", b"law"), (b"x-slo-task", b"law"), (b"x-slo-network-ms", b"5")]
    assert read_headers(same).task == "law"
    for more in ((b"x-slo-task", b"talk"), (b"x-slo-network-ms", b"6")):
        with pytest.raises(InvalidRequest, match="give it once"):
            read_headers([*same, more])


def test_an_engine_that_is_slower_than_its_profile_is_not_believed_for_long() -> None:
    """Every request went to the larger model and was late, for as long as the profile was wrong."""
    clock = ManualClock(0.0)
    gateway = Gateway(parse_fleet(TEXT.replace("token_ms: 1000", "token_ms: 10")), GatewayDependencies(), clock)
    both = {"chat": ModelState.ACTIVE, "legal": ModelState.WARM}, {"chat": ModelState.WARM, "legal": ModelState.ACTIVE}
    chooser, went = gateway.parts.chooser, []
    assert chooser is not None
    request = asked({"messages": SAY, "max_tokens": 100}, x_slo_task="law")
    for _ in range(60):
        told(gateway, *(InstanceReport(f"node-a/{i}", "h100", Phase.SERVING, of, room=9) for i, of in enumerate(both)))
        request.arrival_s = clock.monotonic_s()
        found = chooser.choose(request, ("chat", "legal"))
        assert found.foreseen is not None
        went.append(found.model)
        took_s = {"chat": 0.7, "legal": 1.5}[found.model]
        chooser.ended(found.model, found.foreseen, took_s / found.foreseen.completion_s(100))
        clock.advance_to(clock.now_s() + 1.0)
    assert went[:5] == ["legal"] * 5 and went[-40:].count("chat") >= 38
    clock.advance_to(clock.now_s() + 10_800.0)
    told(gateway, *(InstanceReport(f"node-a/{i}", "h100", Phase.SERVING, of, room=9) for i, of in enumerate(both)))
    assert chosen(gateway, x_slo_task="law") == "legal"  # it may be faster by now


def test_what_was_on_its_way_before_more_was_known_moves_it_no_further() -> None:
    """Steps of 3 % for each of those that were chosen before the first of them ended: 1.2 became 1.6, and then 0.8."""
    slower = Calibration()
    for i in range(200):
        slower.ended(1.2, float(i) / 10)
    assert slower.factor(20.0) == pytest.approx(1.2, rel=0.03)


def test_one_client_that_reads_slowly_says_little() -> None:
    slower = Calibration()
    for i in range(200):
        slower.ended(1e6 if i % 3 == 0 else 1.0 - 1e-3, float(i))
    assert slower.factor(200.0) < 1.1
    for _ in range(1000):
        slower.ended(float("inf"), 200.0)
    assert slower.factor(200.0) == pytest.approx(MOST)
