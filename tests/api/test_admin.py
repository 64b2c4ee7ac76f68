"""The admin routes: who may use them, what they change, and that no request makes them fail."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from sloserve.api.admin import ENGINE, PREFIX, admin_app
from sloserve.core.errors import ConfigError, EngineError
from sloserve.vllm_plugin import engine_control

KEY = "secret"
BEARER = {"Authorization": f"Bearer {KEY}"}


class Ranks:
    """Stands for the engines: two ranks that follow the policies they are told, and know two of them."""

    def __init__(self) -> None:
        self.policy = "fcfs"
        self.shadow_policy: str | None = None
        self.dead = False

    async def status(self, engine: Any) -> list[dict[str, Any]]:
        assert engine is self
        if self.dead:
            raise EngineError("the engine did not carry out sloserve_status: dead")
        return [{"rank": r, "policy": self.policy, "shadow_policy": self.shadow_policy} for r in range(2)]

    async def set_policy(self, engine: Any, text: str) -> None:
        if text not in ("edf", "fcfs"):
            raise ConfigError(f"unknown policy {text!r}; installed: edf, fcfs")
        self.policy = text

    async def set_shadow_policy(self, engine: Any, text: str | None) -> None:
        self.shadow_policy = text


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    ranks = Ranks()
    for name in ("status", "set_policy", "set_shadow_policy"):
        monkeypatch.setattr(engine_control, name, getattr(ranks, name))
    return ranks


def served(ranks: Ranks | None) -> Any:
    """The routes as the middleware serves them, with the engine in the scope."""
    app = admin_app(KEY)

    async def with_engine(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, ENGINE: ranks}, receive, send)

    return with_engine


@pytest.fixture
def client(ranks: Ranks) -> Iterator[httpx.Client]:
    yield TestClient(served(ranks), headers=BEARER, raise_server_exceptions=True)


def test_status_and_change(client: httpx.Client, ranks: Ranks) -> None:
    assert [rank["policy"] for rank in client.get(PREFIX + "status").json()] == ["fcfs", "fcfs"]
    changed = client.put(PREFIX + "policy", json={"policy": "edf", "shadow_policy": "sjf"})
    assert changed.status_code == 200
    assert changed.json()[1] == {"rank": 1, "policy": "edf", "shadow_policy": "sjf"}
    assert client.put(PREFIX + "policy", json={"shadow_policy": ""}).json()[0]["shadow_policy"] is None
    assert ranks.policy == "edf"


def test_what_is_no_policy_changes_nothing(client: httpx.Client, ranks: Ranks) -> None:
    refused = client.put(PREFIX + "policy", json={"policy": "nope"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "unknown policy 'nope'; installed: edf, fcfs"
    assert client.put(PREFIX + "policy", json={"polciy": "edf"}).status_code == 422
    assert client.put(PREFIX + "policy", json={"policy": "x" * 2000}).status_code == 422
    assert ranks.policy == "fcfs"


def test_an_engine_that_does_not_answer_is_a_500(client: httpx.Client, ranks: Ranks) -> None:
    ranks.dead = True
    answer = client.get(PREFIX + "status")
    assert answer.status_code == 500 and "dead" in answer.json()["error"]["message"]
    nobody = TestClient(served(None), headers=BEARER).get(PREFIX + "status")
    assert nobody.status_code == 500 and "no engine" in nobody.json()["error"]["message"]


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer ", f"Basic {KEY}", KEY, "Bearer secr\xe9t"])
@pytest.mark.parametrize(("method", "route"), [("GET", "status"), ("PUT", "policy")])
def test_the_key_is_needed(ranks: Ranks, method: str, route: str, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    answer = TestClient(served(ranks)).request(method, PREFIX + route, json={"policy": "edf"}, headers=headers)
    assert answer.status_code == 401 and ranks.policy == "fcfs"
