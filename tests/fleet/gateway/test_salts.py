"""Prompts of tenants share nothing in prefix caches, so that times of responses tell tenants nothing of each other."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from sloserve.fleet.agent.line_output import LineOutput
from sloserve.fleet.client_routes import COMPLETIONS, FORWARDED, SALTED
from sloserve.fleet.gateway.body_changes import appended
from sloserve.fleet.gateway.gateway_request import GatewayRequestReader
from sloserve.fleet.gateway.keys import Tenant
from sloserve.fleet.gateway.salts import FleetSecret
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.fleet.store.records import Claimed
from sloserve.scheduler.settings import PluginSettings
from tests import bounded
from tests.bounded import until
from tests.fleet.gateway.test_gateway import KEYS, line, run
from tests.fleet.gateway.test_whole_surface import CHAT, whole
from tests.fleet.gateway.test_whole_surface import line as batch_line

SECRET = FleetSecret("a" * 32)


def read(body: bytes, tenant: str = "t", route: str = COMPLETIONS) -> Any:
    return GatewayRequestReader(PluginSettings(), SECRET.salt).read([], body, Tenant(tenant), "id", route)


@pytest.mark.parametrize(
    ("body", "own"),
    [
        (b'{"model": "m", "prompt": "a"}', None),
        (b' {"model": "m", "prompt": "a"} \n', None),
        (b'{"model": "m", "prompt": "a", "cache_salt": null}', None),
        (b'{"model": "m", "prompt": "a", "cache_salt": "mine"}', "mine"),
        (b'{"model": "m", "prompt": "a", "cache\\u005fsalt": "mine"}', "mine"),
        (b'{"cache_salt": "x", "model": "m", "prompt": "a", "cache_salt": "mine"}', "mine"),
        (b'{"model": "m", "prompt": "a", "temperature": NaN}', None),
        ('{"model": "m", "prompt": "a"}'.encode("utf-16"), None),
        (b'{"model": "m", "prompt": "a", "cache_salt": ""}', None),
        (b'{"model": "m", "prompt": "a", "cache_salt": 5}', None),
    ],
)
def test_a_body_has_the_salt_of_its_tenant_however_it_is_written(body: bytes, own: str | None) -> None:
    request = read(body)
    seen = json.loads(request.body)
    assert seen["cache_salt"] == SECRET.salt("t", own) == request.salt
    assert (seen["model"], seen["prompt"]) == ("m", "a") and seen.keys() <= {
        "model",
        "prompt",
        "temperature",
        "cache_salt",
    }
    other = read(body, "u")
    assert other.salt != request.salt
    assert {one.digest for one in other.beginnings("m")}.isdisjoint(one.digest for one in request.beginnings("m"))
    assert read(body).beginnings("m") == request.beginnings("m")


def test_a_salt_is_what_engines_accept() -> None:
    """vLLM takes at most 128 characters, and refuses @, slashes and NUL."""
    for tenant, own in (("a@b/c", "@/\\\0"), ("t", "x" * 10_000), ("t", "\ud800")):
        assert SECRET.salt(tenant, own).isalnum() and len(SECRET.salt(tenant, own)) == 32
    assert appended(b'{"a":1}', "b", "c") == b'{"a":1,"b":"c"}'


def test_only_routes_with_a_prefix_cache_get_one() -> None:
    for route in FORWARDED:
        if not route.startswith("/v1/audio"):
            assert ("cache_salt" in json.loads(read(b'{"model": "m"}', route=route).body)) == (route in SALTED)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["tenant", "fleet"])
def test_tenants_share_prefixes_only_if_the_file_says_so(tmp_path: Path, sharing: Any) -> None:
    async def test() -> None:
        keys = tmp_path / "keys.yaml"
        keys.write_text(KEYS)
        async with line(tmp_path, keys=keys, limits=GatewaySettings(prefix_sharing=sharing)) as to:
            for key in ("a", "b", "b"):
                answer = await to.complete("the same prompt", headers={"authorization": f"Bearer key-{key}"})
                assert answer.status_code == 200
            salts = [json.loads(body).get("cache_salt") for body in to.first.bodies]
            prefixes = [came["x-sloserve-prefix"] for came in to.first.came]
            if sharing == "fleet":
                assert salts == [None] * 3 and len(set(prefixes)) == 1
            else:
                assert salts[0] != salts[1] == salts[2] and None not in salts
                assert prefixes[0] != prefixes[1] == prefixes[2]
            await to.complete("the same prompt", cache_salt="mine", headers={"authorization": "Bearer key-b"})
            own = json.loads(to.first.bodies[-1])["cache_salt"]
            assert (own == "mine") == (sharing == "fleet") and own not in salts
            assert to.first.came[-1]["x-sloserve-prefix"] not in prefixes

    run(test)


@pytest.mark.slow
def test_without_keys_there_is_nobody_to_keep_apart(tmp_path: Path) -> None:
    async def test() -> None:
        async with line(tmp_path) as to:
            await to.complete("a")
            assert "cache_salt" not in json.loads(to.first.bodies[-1])

    run(test)


@pytest.mark.slow
def test_lines_of_a_batch_and_streams_of_every_gateway_have_one_salt(tmp_path: Path) -> None:
    async def asked(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, headers={"x-api-key": "key-b"}) as http:
            body = {"model": "chat", "messages": [{"role": "user", "content": "x"}]}
            assert (await http.post(CHAT, json=body)).status_code == 200

    async def test() -> None:
        async with whole(tmp_path) as (door, served, store):
            await asked(served.url)
            async with httpx.AsyncClient(base_url=served.url, headers={"x-api-key": "key-b"}) as http:
                file = await http.post(
                    "/v1/files", files={"file": ("in", batch_line("x").encode())}, data={"purpose": "batch"}
                )
                body = {"input_file_id": file.json()["id"], "endpoint": CHAT, "completion_window": "1h"}
                assert (await http.post("/v1/batches", json=body)).status_code == 200
            await until(lambda: bool(store.requests.sums()))
            claim = store.requests.claim("agent", store.requests.sums()[0].group, 1, 60.0)
            assert claim is not None
            of_line = json.loads(claim.requests[0].body)["cache_salt"]
        async with whole(tmp_path) as (door_of_another, served, _):
            await asked(served.url)
        bodies = [json.loads(next(iter(one.instances.values())).bodies[0]) for one in (door, door_of_another)]
        assert [body["cache_salt"] for body in bodies] == [of_line] * 2

    bounded.run(test())


def test_a_line_that_goes_on_keeps_its_salt() -> None:
    body = {"model": "m", "messages": [], "cache_salt": "salt", "max_tokens": 9}
    progress = b'{"prompt":[1],"tokens":[2],"text":"x","id":"i","created":1}'
    again = LineOutput.of(Claimed("l", 2, json.dumps(body).encode(), CHAT, "batch", None, progress))
    assert again.path == COMPLETIONS and json.loads(again.body())["cache_salt"] == "salt"
