"""Watching a real server: the feed shows its requests while they are served, and nothing that they or keys say."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from sloserve.client.watching import watch
from sloserve.core.errors import ConfigError
from sloserve.engine.metrics import page_folder
from tests import bounded
from tests.vllm.server import ADMIN_KEY, MODEL, Server

pytestmark = pytest.mark.vllm

CANARIES = 1000
BEARER = {"Authorization": f"Bearer {ADMIN_KEY}"}


@dataclass(frozen=True)
class Load:
    """Requests that are sent. said: their canaries. answered: those whose reply was read."""

    said: list[str]
    answered: list[str] = field(default_factory=list)


@pytest.fixture
def load(http: httpx.Client) -> Iterator[Load]:
    """Requests at work, whose prompts, ids, tenants and users are canaries."""
    said = [f"canary{i:03d}qzx" for i in range(CANARIES)]
    sent, stop = Load(said), threading.Event()

    def send(part: list[str]) -> None:
        for one in part:
            if stop.is_set():
                return
            body = {"model": MODEL, "prompt": f"{one} tell me", "max_tokens": 8, "ignore_eos": True, "user": one}
            headers = {"X-Request-Id": f"id-{one}", "x-slo-class": "batch", "x-slo-e2e-ms": "60000"}
            answer = http.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code in (200, 429), answer.text
            sent.answered.append(one)

    threads = [threading.Thread(target=send, args=(said[i::10],)) for i in range(10)]
    for thread in threads:
        thread.start()
    yield sent
    stop.set()
    with bounded.within("the last requests of the load", 120.0):
        for thread in threads:
            thread.join()


def test_the_feed_shows_requests_and_nothing_that_they_say(server: Server, load: Load) -> None:
    text = b""
    with (
        bounded.within("the requests of the load in the feed", 240.0),
        httpx.stream("GET", server.url + "/sloserve/events", headers=BEARER, timeout=30) as answer,
    ):
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        for part in answer.iter_bytes():
            text += part
            if len(load.answered) == CANARIES and text.count(b"\n\n") >= 8:
                break
    kinds = [line for line in text.decode().splitlines() if line.startswith("event: ")]
    assert kinds[:2] == ["event: snapshot", "event: change"]
    for secret in (*load.said, ADMIN_KEY, "tell me", "cmpl-", "id-"):
        assert secret.encode() not in text, secret
    assert text.count(b'"rows":{"0-') >= 8, "requests are shown while they are served"
    sizes = [len(event) for event in text.split(b"\n\n")]
    assert max(sizes) < 64 * 1024


def test_top_and_status_see_the_requests_of_each_class(server: Server, load: Load) -> None:
    # Tests share the server, and others may have changed its policies.
    policies = {"policy": "edf", "shadow_policy": "sjf"}
    httpx.put(server.url + "/sloserve/policy", json=policies, headers=BEARER, timeout=60).raise_for_status()
    seen: dict[str, Any] = {}
    views = watch(server.url, ADMIN_KEY)
    next(views)  # may have been read half a second ago, for a watcher of another test
    with bounded.within("a view with requests and those that met their target", 120.0):
        for view in views:
            batch = view["by_class"]["batch"]
            if view["rows"] and batch["attained"][1][1]:
                seen = view
                break
    (engine,) = seen["engines"]
    told = (seen["model"], engine["policy"], engine["shadow_policy"])
    assert told == (MODEL, policies["policy"], policies["shadow_policy"])
    assert engine["kv"]["total"] > 0 and engine["live"] >= engine["drawn"] > 0
    row = dict(zip(seen["columns"], next(iter(seen["rows"].values())), strict=True))
    assert seen["classes"][row["class_id"]] == "batch" and row["arrival_s"] <= seen["at_s"]
    assert row["due_s"] - row["arrival_s"] == pytest.approx(60.0, abs=0.01)
    assert batch["attained"][1][0] > 0.0


def test_an_engine_that_has_served_all_shows_none(server: Server, http: httpx.Client) -> None:
    views = watch(server.url, ADMIN_KEY)
    next(views)
    http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 40, "ignore_eos": True})
    with bounded.within("a view without requests"):
        for view in views:
            if view["engines"][0]["frame_s"] is not None and not view["rows"]:
                break
    assert view["engines"][0]["live"] == 0


@pytest.mark.parametrize("key", ["user-secret", ADMIN_KEY[:-1]])
def test_no_other_key_opens_the_feed(server: Server, key: str) -> None:
    with pytest.raises(ConfigError, match="refuses the key"):
        next(watch(server.url, key))


def test_no_page_is_written_once_watchers_have_left(server: Server, http: httpx.Client) -> None:
    (page,) = page_folder.page_folder().glob(f"{server.engine_pids()[0]}-*.live")
    next(watch(server.url, ADMIN_KEY))
    time.sleep(2.5)
    before = page.read_bytes()
    http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 8, "ignore_eos": True})
    assert page.read_bytes() == before


def test_status_on_the_feed_is_json(server: Server) -> None:
    json.dumps(next(watch(server.url, ADMIN_KEY)), allow_nan=False)
