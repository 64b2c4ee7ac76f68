"""OpenAI's own client against a gateway with a store; two tenants; what goes on while the store is away."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError, StoreAway, StoreFull
from sloserve.fleet.contract.plan_in_force import PlanInForce, PlannedGroup, to_json
from sloserve.fleet.contract.reports import gateway_report
from sloserve.fleet.gateway.gateway import Gateway, batch_class, check_address
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.shared_state import GatewayDependencies
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.fleet.store.records import RequestState, Result, StoredPlan
from sloserve.fleet.store.store import Store, open_store
from sloserve.wire.keys import hash_of
from tests import bounded
from tests.bounded import until
from tests.fleet.gateway.played_agents import FLEET, PlayedAgent, Served, fleet, serving
from tests.fleet.stand_in.engine import reply

pytestmark = pytest.mark.slow  # OpenAI's client takes a second to load, and servers start and stop

CHAT = "/v1/chat/completions"
KEYS = f"""
tenants:
  a: {{keys: ['{hash_of("key-a")}'], models: [chat], metrics: true}}
  b: {{keys: ['{hash_of("key-b")}'], quota: {{lines: 3, batches: 2}}}}
"""


@contextlib.asynccontextmanager
async def whole(tmp_path: Path) -> AsyncIterator[tuple[PlayedAgent, Served, Store]]:
    (tmp_path / "keys.yaml").write_text(KEYS)
    store, door = open_store(f"sqlite:{tmp_path / 'store.sqlite'}"), PlayedAgent(tmp_path / "door.sock")
    around = GatewayDependencies(store, tmp_path / "files", tmp_path / "keys.yaml", [door.address], name="gateway-1")
    try:
        async with door.open(), serving(around) as served:
            yield door, served, store
    finally:
        store.close()


def line(custom_id: str, model: str = "chat") -> str:
    body = {"model": model, "messages": [{"role": "user", "content": custom_id}]}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body})


def test_openais_client_unchanged_over_the_whole_surface(tmp_path: Path) -> None:
    async def test() -> None:
        async with whole(tmp_path) as (_, served, store):
            client = openai.AsyncOpenAI(api_key="key-b", base_url=f"{served.url}/v1", max_retries=0)
            async with client:
                assert [m.id async for m in client.models.list()] == ["chat", "legal"]
                assert (await client.models.retrieve("chat")).model_extra == {"state": "active"}
                made = await client.completions.create(model="chat", prompt="abc", max_tokens=4)
                assert made.choices[0].text == reply("chat", "abc", 4) and made.usage is not None
                messages: Any = [{"role": "user", "content": "abc"}]
                chat = await client.chat.completions.create(model="chat", messages=messages, max_tokens=4)
                stream = await client.chat.completions.create(
                    model="chat", messages=messages, max_tokens=4, stream=True, stream_options={"include_usage": True}
                )
                parts = [part async for part in stream]
                text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
                assert text == chat.choices[0].message.content and parts[-1].usage is not None
                with pytest.raises(
                    openai.NotFoundError, match="model 'gpt' does not exist here; available: chat, legal"
                ):
                    await client.chat.completions.create(model="gpt", messages=messages)
                with pytest.raises(openai.BadRequestError, match="send the conversation along"):
                    await client.responses.create(model="chat", input="x", previous_response_id="resp_1")
                with pytest.raises(openai.AuthenticationError):
                    await client.with_options(api_key="no").models.list()
                lines = "\n".join([line("x"), line("y", "legal")]).encode()
                file = await client.files.create(file=("in.jsonl", lines), purpose="batch")
                batch = await client.batches.create(
                    input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"k": "v"}
                )
                await until(lambda: _serve_all(store) == 2 or not store.requests.sums())
                while batch.status not in ("completed", "failed"):
                    _serve_all(store)
                    await asyncio.sleep(0.02)
                    batch = await client.batches.retrieve(batch.id)
                assert batch.status == "completed" and batch.request_counts.completed == 2, batch
                rows = (await client.files.content(batch.output_file_id)).text.splitlines()
                assert {json.loads(row)["custom_id"] for row in rows} == {"x", "y"}
                assert [b.id async for b in client.batches.list(limit=1)] == [batch.id]
                assert {f.id async for f in client.files.list(limit=1)} == {file.id, batch.output_file_id}
                too_many = "\n".join(line(str(i)) for i in range(4)).encode()
                file = await client.files.create(file=("in.jsonl", too_many), purpose="batch")
                batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
                await until(lambda: store.batches.get("b", batch.id).state == "failed")  # type: ignore[union-attr]
                batch = await client.batches.retrieve(batch.id)
                assert batch.errors is not None and "and the limit is 3" in str(batch.errors.data)
                assert (await client.files.delete(file.id)).deleted
                with pytest.raises(openai.NotFoundError):
                    await client.files.retrieve(file.id)
                with pytest.raises(openai.ConflictError):
                    await client.batches.cancel(batch.id)

    bounded.run(test())


def _serve_all(store: Store) -> int:
    served = 0
    for group in {one.group for one in store.requests.sums()}:
        claim = store.requests.claim("agent", group, 100, 60.0)
        for one in claim.requests if claim is not None else ():
            served += sum(store.requests.finish([Result(one.id, one.attempt, RequestState.DONE, 200, b"{}")]))
    return served


def test_streams_go_on_while_the_store_is_away_and_batches_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with whole(tmp_path) as (_, served, store):
            headers = {"authorization": "Bearer key-a"}
            async with httpx.AsyncClient(base_url=served.url, headers=headers) as http:

                def away(*_: Any, **__: Any) -> Any:
                    raise StoreAway("the store does not answer")

                def full(*_: Any, **__: Any) -> Any:
                    raise StoreFull("the disk of the store is full; free some of it")

                store.members.lead("planner", 60.0)
                plan = PlanInForce(0.0, {"node-a/0": (PlannedGroup(-1, "chat", "interactive"),)})
                assert store.members.write_plan("planner", StoredPlan(1, 1, to_json(plan)))
                await until(lambda: served.gateway.parts.instances.plan == plan)
                assert (await http.post(CHAT, json={"model": "chat", "messages": []})).status_code == 200
                await until(lambda: _demand(store) != ())
                (demand,) = _demand(store)
                assert (demand.model, demand.slo_class, demand.held) == ("chat", "interactive", 0)
                assert demand.rate_per_s > 0.0
                with monkeypatch.context() as patch:
                    for name in ("transaction", "reading"):
                        patch.setattr(store.database, name, away)
                    await until(lambda: served.gateway.watch.store_faults.is_away)
                    assert (await http.post(CHAT, json={"model": "chat", "messages": []})).status_code == 200
                    answer = await http.get("/v1/batches")
                    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
                    assert served.gateway.parts.instances.plan == plan, "the last plan holds"
                await until(lambda: not served.gateway.watch.store_faults.is_away)
                monkeypatch.setattr(store.batches, "add", full)
                file = await http.post("/v1/files", files={"file": ("f", b"x")}, data={"purpose": "batch"})
                body = {"input_file_id": file.json()["id"], "endpoint": CHAT, "completion_window": "1h"}
                assert (await http.post("/v1/batches", json=body)).status_code == 507
        gone = open_store(f"sqlite:{tmp_path / 'store.sqlite'}")
        assert gone.members.agents() == [], "a gateway that stops says so"
        gone.close()

    bounded.run(test())


def _demand(store: Store) -> Any:
    report = gateway_report(store.members.agents()[0].state)
    return () if report is None else report.demand


def test_without_keys_a_gateway_is_for_this_machine_alone(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        check_address(host, None)
    for host in ("0.0.0.0", "::", "10.0.0.1", "gateway.example"):
        with pytest.raises(ConfigError, match="give --keys FILE"):
            check_address(host, None)
        check_address(host, tmp_path)


def test_lines_of_a_batch_are_of_the_batch_class_unless_the_key_is_held_lower() -> None:
    classes = fleet().settings.classes
    held = {None: "batch", "priority": "batch", "batch": "batch", "background": "background"}
    assert {name: batch_class(classes, Tenant("t", name)) for name in held} == held


TENANTS = ("a", "b")
ROUTER = """
router:
  models: [chat, legal]
  quality: {law: {chat: 0.4, legal: 1.0}}
  sets: {court: [legal]}
"""
KNOWN: dict[str, dict[str, set[str]]] = {
    "a": {"chat": set(), "auto": {"chat"}},
    "b": {"chat": set(), "legal": set(), "auto": {"chat", "legal"}, "court": {"legal"}},
}
"""What a tenant may ask for, and of sets among which models."""


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["upload", "create", "get", "content", "batch", "cancel", "delete", "files", "batches"]
                + ["models", "ask", "responses", "http3", "metrics", "new key"]
            ),
            st.sampled_from(TENANTS),
            st.integers(0, 7),
            st.integers(1, 3),
        ),
        min_size=4,
        max_size=24,
    )
)
def test_no_tenant_sees_or_changes_anything_of_another(steps: list[tuple[str, str, int, int]]) -> None:
    """Every route, list and cursor: the other's ids, used anywhere, are answered like ids of nothing."""
    with tempfile.TemporaryDirectory() as folder:
        _two_tenants(Path(folder), steps)


def _two_tenants(folder: Path, steps: list[tuple[str, str, int, int]]) -> None:
    shown = {tenant: f"key-{tenant}" for tenant in TENANTS}
    _write_keys(folder, shown)
    store, clock = open_store(f"sqlite:{folder / 'store.sqlite'}"), ManualClock()
    limits = GatewaySettings(hold_max_s=0.001)
    around = GatewayDependencies(store, folder / "files", folder / "keys.yaml", limits=limits)
    gateway = Gateway(fleet(FLEET + ROUTER), around, clock)
    owned: dict[str, dict[str, str]] = {"files": {}, "batches": {}}

    async def nothing() -> None: ...

    gateway.app._start = gateway.app._stop = nothing  # no agent is asked, and no batch moves by itself
    with TestClient(gateway.app, base_url="http://testserver") as http:
        for action, tenant, which, limit in steps:
            key = {"authorization": f"Bearer {shown[tenant]}"}
            files, batches = list(owned["files"]), list(owned["batches"])
            file = files[which % len(files)] if files else "file-" + "0" * 32
            batch = batches[which % len(batches)] if batches else "batch_" + "0" * 32
            of_file, of_batch = owned["files"].get(file) == tenant, owned["batches"].get(batch) == tenant
            if action == "upload":
                upload = {"file": ("in", line("x").encode())}
                answer = http.post("/v1/files", files=upload, data={"purpose": "batch"}, headers=key)
                owned["files"][answer.json()["id"]] = tenant
            elif action == "create":
                body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "1h"}
                answer = http.post("/v1/batches", json=body, headers=key)
                assert of_file or answer.status_code == 400
                if answer.status_code == 200:
                    owned["batches"][answer.json()["id"]] = tenant
            elif action == "new key":  # the old one is nobody's from the next look at the file on
                shown[tenant] += "+"
                _write_keys(folder, shown)
                clock.advance_to(clock.now_s() + 1.1)
                for path in ("/v1/files", "/v1/models", "/metrics"):
                    answer = http.get(path, headers=key)
                    assert answer.status_code == 401
                assert gateway.classify([(b"authorization", key["authorization"].encode())])[1] is None
            elif action == "models":
                answer = http.get("/v1/models", headers=key)
                assert {one["id"]: set(one.get("models", ())) for one in answer.json()["data"]} == KNOWN[tenant]
            elif action in ("ask", "responses"):
                name = (*KNOWN["b"], "gpt")[which % 5]
                body = {"model": name, "messages": [], "input": "x"}
                path = CHAT if action == "ask" else "/v1/responses"
                answer = http.post(path, json=body, headers=key)
                never = http.post(path, json={**body, "model": "none"}, headers=key)
                if name in KNOWN[tenant]:
                    assert answer.status_code == 429, "there is no agent"
                    assert tenant == "b" or "legal" not in str(answer.headers) + answer.text
                else:
                    assert answer.status_code == never.status_code and _shape(answer) == _shape(never)
            elif action == "http3":
                other = TENANTS[tenant == "a"]
                stated = [(b"authorization", key["authorization"].encode()), (b"x-tenant-id", other.encode())]
                assert gateway.classify(stated)[1] == tenant
            elif action == "metrics":
                answer = http.get("/metrics", headers=key)
                assert answer.status_code == (200 if tenant == "a" else 404)
                assert not any(f'"{name}"' in answer.text for name in TENANTS)
            elif action in ("files", "batches"):
                after = (batch, file)[action == "files"]
                whose = (of_batch, of_file)[action == "files"]
                for query in ({"limit": limit}, {"limit": limit, "after": after}):
                    answer = http.get(f"/v1/{action}", params=query, headers=key)
                    data = answer.json()["data"]
                    assert all(owned[action][one["id"]] == tenant for one in data) and len(data) <= limit
                assert whose or data == [], "a cursor of another's shows nothing"
            else:
                path, method, mine = {
                    "get": (f"/v1/files/{file}", "GET", of_file),
                    "content": (f"/v1/files/{file}/content", "GET", of_file),
                    "delete": (f"/v1/files/{file}", "DELETE", of_file),
                    "batch": (f"/v1/batches/{batch}", "GET", of_batch),
                    "cancel": (f"/v1/batches/{batch}/cancel", "POST", of_batch),
                }[action]
                answer = http.request(method, path, headers=key)
                unknown = path.replace(file, "file-" + "f" * 32).replace(batch, "batch_" + "f" * 32)
                if not mine:
                    never = http.request(method, unknown, headers=key)
                    assert answer.status_code == never.status_code == 404
                    assert _shape(answer) == _shape(never)
                else:
                    assert answer.status_code == 200
                    if action == "delete":
                        del owned["files"][file]
            key = {"authorization": f"Bearer {shown[tenant]}"}
            for name in KNOWN["b"]:
                known = http.get(f"/v1/models/{name}", headers=key)
                assert known.status_code == (200 if name in KNOWN[tenant] else 404)
            assert action in ("metrics", "new key", "http3") or answer.status_code < 500
        for tenant in TENANTS:
            key = {"authorization": f"Bearer {shown[tenant]}"}
            for kind, owners in owned.items():
                listed = http.get(f"/v1/{kind}", headers=key).json()["data"]
                assert {one["id"] for one in listed} == {id for id, owner in owners.items() if owner == tenant}
                for foreign in (id for id, owner in owners.items() if owner != tenant):
                    assert http.get(f"/v1/{kind}", params={"after": foreign}, headers=key).json()["data"] == []
    store.close()


def _write_keys(folder: Path, shown: dict[str, str]) -> None:
    text = KEYS
    for tenant, key in shown.items():
        text = text.replace(hash_of(f"key-{tenant}"), hash_of(key))
    (folder / "keys.yaml").write_text(text)


def _shape(answer: httpx.Response) -> Any:
    """Headers that a client can tell answers apart by, and the body without the id."""
    body = json.loads(answer.content)
    body["error"]["message"] = body["error"]["message"].split("'")[0]
    return sorted(set(answer.headers) - {"x-request-id"}), body
