"""The admin routes: who may use them, what they change, and that no request makes them fail."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.datastructures import State
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from sloserve.api.admin import MAX_BODY_BYTES, PREFIX, AdminApp
from sloserve.core.clock import ManualClock
from sloserve.core.errors import ConfigError, EngineError, EngineNotReady
from sloserve.core.tenants import MOST_TENANTS
from sloserve.engine.metrics.process_page import Board, Boards
from sloserve.vllm_plugin.server import engine_control, parking, reloading
from sloserve.vllm_plugin.server.live_settings import LiveSettings
from tests import bounded

KEY = "secret"
BEARER = {"Authorization": f"Bearer {KEY}"}


class Ranks:
    """Stands for the engines: two ranks that follow the policies they are told, and know two of them."""

    def __init__(self) -> None:
        self.policy = "fcfs"
        self.shadow_policy: str | None = None
        self.fails: Exception | None = None
        self.parked_at: int | None = None
        self.elsewhere_s: dict[str, float] | None = None
        self.asked: list[tuple[str, str | None]] = []

    async def set_elsewhere(self, engine: Any, service_s: dict[str, float]) -> list[dict[str, Any]]:
        self.elsewhere_s = service_s
        return await self.status(engine)

    async def status(self, engine: Any) -> list[dict[str, Any]]:
        assert engine is self
        if self.fails is not None:
            raise self.fails
        return [{"rank": r, "policy": self.policy, "shadow_policy": self.shadow_policy} for r in range(2)]

    async def set_policies(
        self, engine: Any, policy: str | None, shadow_policy: str | None, *, by: str, undoes: str | None
    ) -> None:
        self.asked.append((by, undoes))
        if policy is not None and policy not in ("edf", "fcfs"):
            raise ConfigError(f"unknown policy {policy!r}; installed: edf, fcfs")
        self.policy = self.policy if policy is None else policy
        self.shadow_policy = self.shadow_policy if shadow_policy is None else shadow_policy or None

    async def park(self, engine: Any, level: int) -> list[dict[str, int]]:
        self.parked_at = level
        return [{"requests": 3, "kept": 2}] * 2

    async def unpark(self, engine: Any) -> None:
        self.parked_at = None

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module, names in (
            (engine_control, ("status", "set_policies", "set_elsewhere")),
            (parking, ("park", "unpark")),
        ):
            for name in names:
                monkeypatch.setattr(module, name, getattr(self, name))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    ranks = Ranks()
    ranks.stand_in(monkeypatch)
    return ranks


class ServerApp:
    """Stands for vLLM's app, around the routes. engine_client: its engine."""

    def __init__(self, engine_client: Any) -> None:
        self.state = State({"engine_client": engine_client})
        self._admin = AdminApp(KEY)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._admin({**scope, "app": self}, receive, send)


@pytest.fixture
def client(ranks: Ranks) -> Iterator[TestClient]:
    yield TestClient(ServerApp(ranks), headers=BEARER)


def says(answer: httpx.Response, status: int) -> str:
    """The message of an error in OpenAI's format, which this one must be."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, status)
    assert error.keys() == {"message", "type", "param", "code"}
    return str(error["message"])


@pytest.mark.slow
def test_status_and_change(client: httpx.Client, ranks: Ranks) -> None:
    assert [rank["policy"] for rank in client.get(PREFIX + "status").json()] == ["fcfs", "fcfs"]
    changed = client.put(PREFIX + "policy", json={"policy": "edf", "shadow_policy": "sjf"})
    assert changed.status_code == 200
    assert changed.json()[1] == {"rank": 1, "policy": "edf", "shadow_policy": "sjf"}
    assert client.put(PREFIX + "policy", json={"shadow_policy": ""}).json()[0]["shadow_policy"] is None
    assert client.put(f"/behind{PREFIX}policy", json={}).status_code == 200
    assert ranks.policy == "edf"
    assert ranks.asked[-1] == ("from testclient", None)
    assert client.put(PREFIX + "policy", json={"undo": "ab12", "by": "anna"}).status_code == 200
    assert ranks.asked[-1] == ("anna from testclient", "ab12")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"policy": "nope"}', "unknown policy 'nope'; installed: edf, fcfs"),
        (
            b'{"polciy": "edf"}',
            "polciy: is unknown; known here: policy, shadow_policy, by, undo; did you mean 'policy",
        ),
        (b'{"policy": "%s"}' % (b"x" * 2000), "is not the text of a policy, as for --policy, of at most 500 char"),
        (b'{"policy": 5, "shadow_policy": []}', "policy: 5 is not the text of a policy, as for --policy, of at most "),
        (b'"edf"', "request body: is not an object with policy, shadow_policy, by, undo"),
        (b'{"policy": "edf", "undo": "ab12"}', "undo: excludes policy, since it brings the earlier policy back"),
        (b'{"policy": "edf", "by": "%s"}' % (b"x" * 61), "is not text of 1 to 60 characters"),
        (b"", "request body: is not JSON: "),
        (b"[" * 8000, "request body: is not JSON: "),
        (b"1" * 8000, "request body: "),
        (b'{"\\ud800": 1}', "\\ud800"),
    ],
)
def test_what_is_no_policy_changes_nothing(client: httpx.Client, ranks: Ranks, body: bytes, message: str) -> None:
    text = says(client.put(PREFIX + "policy", content=body), 400)
    assert message in text and len(text) < 600
    assert ranks.policy == "fcfs"


def test_a_server_that_records_nothing_says_how_it_would_explain(client: httpx.Client) -> None:
    assert "start it with --record-mib 64" in says(client.get(PREFIX + "explain?request=0-1"), 400)
    assert client.get(PREFIX + "explain", headers={"Authorization": "Bearer no"}).status_code == 401
    assert client.post(PREFIX + "explain").status_code == 405


def test_other_routes_methods_and_failures_are_told_in_the_same_format(client: httpx.Client, ranks: Ranks) -> None:
    routes = (
        "GET /sloserve/status, GET /sloserve/events, PUT /sloserve/policy, GET /sloserve/settings, "
        "PUT /sloserve/settings, GET /sloserve/explain, PUT /sloserve/tenants, POST /sloserve/park"
    )
    routes += ", POST /sloserve/unpark, POST /sloserve/reload"
    known = f"no such admin route; there are {routes}"
    assert says(client.get(PREFIX + "polcy"), 404) == says(client.post(PREFIX), 404) == known
    assert client.get(PREFIX).headers["content-type"].startswith("text/html")  # the page
    wrong = client.post(PREFIX + "policy", json={})
    assert says(wrong, 405) == "/sloserve/policy: the method is PUT" and wrong.headers["allow"] == "PUT"
    ranks.fails = EngineError("no status from the engine: rank 0: dead")
    assert "rank 0: dead" in says(client.get(PREFIX + "status"), 500)
    ranks.fails = RuntimeError("private")
    assert "private" not in says(client.get(PREFIX + "status"), 500)
    assert "no engine" in says(TestClient(ServerApp(None), headers=BEARER).get(PREFIX + "status"), 500)


def test_service_elsewhere_is_set_for_as_many_tenants_as_a_table_has(client: httpx.Client, ranks: Ranks) -> None:
    wanted = {f"tenant-{i}-{'x' * 180}": i / 7 for i in range(MOST_TENANTS)}
    answer = client.put(PREFIX + "tenants", json={"elsewhere_s": wanted})
    assert answer.status_code == 200 and ranks.elsewhere_s == wanted
    assert client.put(PREFIX + "tenants", json={"elsewhere_s": {}}).status_code == 200 and ranks.elsewhere_s == {}


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"elsewhere_s": []}', b'{"elsewhere_s": {"a": -1}}', b'{"elsewhere_s": {"a": "1"}}']
    + [b'{"elsewhere_s": {"a": 1e999}}', b'{"elsewhere_s": {"a": true}}', b'{"elsewhere_s": {"a": 1}, "b": 1}']
    + [json.dumps({"elsewhere_s": dict.fromkeys(map(str, range(MOST_TENANTS + 1)), 1.0)}).encode()],
)
def test_what_is_no_service_of_tenants_changes_nothing(client: httpx.Client, ranks: Ranks, body: bytes) -> None:
    assert len(says(client.put(PREFIX + "tenants", content=body), 400)) < 600
    assert ranks.elsewhere_s is None


@pytest.mark.slow
def test_park_and_unpark(client: httpx.Client, ranks: Ranks) -> None:
    assert client.post(PREFIX + "park").json() == [{"requests": 3, "kept": 2}] * 2
    assert ranks.parked_at == 1
    assert client.post(PREFIX + "unpark").json()[1]["rank"] == 1 and ranks.parked_at is None
    assert client.post(PREFIX + "park", json={"level": 0}).status_code == 200 and ranks.parked_at == 0
    for body, said in (({"level": 2}, "level: 2 is not 0 or 1"), ({"levl": 1}, "levl: is unknown; known here: level")):
        assert said in says(client.post(PREFIX + "park", json=body), 400)


def test_reload_knows_how_many_processes_hold_names(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    controls: list[str] = []

    @contextmanager
    def controlling() -> Iterator[None]:
        controls.append("begun")
        yield

    async def reload(*args: Any) -> None:
        given.extend(args)
        assert controls == ["begun"], "what reads weights for minutes does not hang"
        raise EngineNotReady("parked; unpark it")

    monkeypatch.setattr(reloading, "reload", reload)
    core_check = SimpleNamespace(controlling=controlling)
    engine = SimpleNamespace(sloserve_front_end=SimpleNamespace(processes=3, core_check=core_check, live=None))
    answer = TestClient(ServerApp(engine), headers=BEARER).post(
        PREFIX + "reload", json={"weights_path": "/models/b", "model": "b"}
    )
    assert says(answer, 409) == "parked; unpark it" and given == [engine, None, "/models/b", "b", 3]


@pytest.mark.slow
def test_settings_are_shown_and_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    sections: list[dict[str, Any]] = []

    async def set_settings(engine: Any, section: dict[str, Any]) -> str:
        sections.append(section)
        return "change"

    monkeypatch.setattr(engine_control, "set_settings", set_settings)
    clock = ManualClock()
    live = LiveSettings({"sloserve": {"tenants": {"acme": "batch"}}}, 1, Boards(Board(4, 1), clock), clock)
    engine = SimpleNamespace(sloserve_front_end=SimpleNamespace(processes=1, live=live))
    client = TestClient(ServerApp(engine), headers=BEARER)
    shown = client.get(PREFIX + "settings").json()
    assert (shown["version"], shown["changed_by"], shown["settings"]["tenants"]) == (0, None, {"acme": "batch"})
    changed = client.put(PREFIX + "settings", json={"tenants": {"beta": "background"}})
    assert changed.status_code == 200 and changed.json()["changed"] == {"tenants.beta": [None, "background"]}
    assert changed.json()["changed_by"].startswith("PUT /sloserve/settings from ")
    assert sections == [{"tenants": {"acme": "batch", "beta": "background"}}]
    assert client.get(PREFIX + "settings").json()["version"] == 1
    for body, message in (
        (b'{"policy": "edf"}', "policy: is not one of the settings that can change"),
        (b'{"tenants": {"acme": "nope"}}', "tenants.acme"),
        (b'["tenants"]', "request body: is not an object with settings"),
        (b'{"objectives": {"a": "b' + b"x" * (1 << 18), "more than 262144 bytes"),
        (b'{"tenants": {"a\\ud800": "batch"}}', r"half of a surrogate pair, '\ud800', which is no character"),
        *((b'{"tenants": ' + b"[" * n + b"]" * n + b"}", "") for n in range(700, 1000, 10)),
    ):
        refused = client.put(PREFIX + "settings", content=body)
        assert refused.status_code in (400, 413) and message in refused.json()["error"]["message"], body[:40]
    assert len(sections) == 1
    assert "the method is GET or PUT" in says(client.post(PREFIX + "settings"), 405)


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer ", f"Basic {KEY}", KEY, "Bearer secr\xe9t"])
@pytest.mark.parametrize(("method", "route"), [("GET", "status"), ("PUT", "policy"), ("POST", "park"), ("POST", "no")])
def test_the_key_is_needed(ranks: Ranks, method: str, route: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    answer = TestClient(ServerApp(ranks)).request(method, PREFIX + route, json={"policy": "edf"}, headers=headers)
    assert says(answer, 401) == "the admin key is needed: Authorization: Bearer KEY"
    assert answer.headers["www-authenticate"] == "Bearer" and (ranks.policy, ranks.parked_at) == ("fcfs", None)


def test_a_websocket_is_refused(client: TestClient) -> None:
    with pytest.raises(WebSocketDisconnect), client.websocket_connect(PREFIX + "status", headers=BEARER):
        pass


def exchange(headers: dict[str, str], part: bytes) -> tuple[int, int]:
    """A change of policy whose body never ends, in such parts: status of the answer, and bytes read for it."""
    read = 0
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += len(part)
        return {"type": "http.request", "body": part, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "PUT", "path": PREFIX + "policy", "headers": raw}
    bounded.run(ServerApp(object())(scope, receive, send))
    assert (b"connection", b"close") in sent[0]["headers"]
    return sent[0]["status"], read


def test_no_byte_is_read_without_the_key_and_few_with_it() -> None:
    assert exchange({}, b"x" * 1000) == (401, 0)
    assert exchange({"Content-Length": "5"}, b"x" * 5) == (401, 0)
    assert exchange(BEARER | {"Content-Length": str(10**9)}, b"x" * 1000) == (413, 0)
    status, read = exchange(BEARER, b"x" * 1000)
    assert status == 413 and MAX_BODY_BYTES < read <= MAX_BODY_BYTES + 1000
