"""The gateway's server: over TCP and over HTTP/3, with stand-in engines behind it."""

import asyncio
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

from sloserve.core.errors import ConfigError
from sloserve.fleet.commands import _read
from sloserve.fleet.contract.reports import AgentReport, to_json
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.run.gateway_process import GatewayServer
from sloserve.fleet.run.live import place_of
from sloserve.fleet.store.store import open_store
from sloserve.http3.httpx_transport import H3Transport
from sloserve.wire.keys import hash_of
from tests import bounded
from tests.bounded import until
from tests.fleet.gateway.played_agents import FLEET, PlayedAgent
from tests.fleet.stand_in.engine import reply
from tests.http3.serving import certificate_files, trusting


def streamed(answer: httpx.Response) -> str:
    events = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-2]]
    return "".join(event["choices"][0]["text"] for event in events)


@pytest.mark.slow
def test_a_gateway_serves_http3_beside_tcp(tmp_path: Path) -> None:
    cert, key = certificate_files()
    (tmp_path / "keys.yaml").write_text(
        f"tenants: {{a: {{keys: ['{hash_of('k')}'], class: batch}}, b: {{keys: ['{hash_of('l')}']}}}}"
    )
    section = f"{{port: 0, keys: keys.yaml, ssl_certfile: {cert}, ssl_keyfile: {key}, http3: {{enabled: true}}}}"
    fleet = parse_fleet(f"{FLEET}gateway: {section}\n", str(tmp_path / "fleet.yaml"))
    place = place_of(fleet, environ={})
    store = open_store(place.store)

    async def test() -> None:
        door = PlayedAgent(tmp_path / "door.sock")
        server = GatewayServer(fleet, place, store, 60.0)
        store.members.beat("agent", to_json(AgentReport("node-a", door.address, ())))
        async with door.open():
            said = await server.start()
            assert said is not None and said.endswith("streams served by edf")
            url = f"https://localhost:{said.split()[4].rstrip(',')}"
            limit_ms = server._listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert limit_ms == 600_000, "the kernel ends connections whose clients do not read"
            await until(lambda: server._gateway.watch.answered)
            given: Any = {"base_url": url, "headers": {"authorization": "Bearer k"}, "timeout": 60.0}
            body = {"model": "chat", "prompt": "abc", "max_tokens": 5, "stream": True}
            tcp_url = f"https://localhost:{server.address.rpartition(':')[2]}"
            async with httpx.AsyncClient(
                verify=ssl.create_default_context(cafile=cert), **{**given, "base_url": tcp_url}
            ) as tcp:
                models = await tcp.get("/v1/models")
                assert models.status_code == 200
                assert models.headers["alt-svc"] == f'h3=":{url.rpartition(":")[2]}"; ma=3600'
            shown = [(b"authorization", b"Bearer k"), (b"x-tenant-id", b"b"), (b"x-slo-class", b"priority")]
            slo, tenant = server._gateway.classify(shown)  # the key alone says whose it is, and how urgent it may be
            assert (tenant, slo.slo_class.rank) == ("a", 2)
            assert server._gateway.classify([(b"authorization", b"Bearer l"), shown[2]])[0].slo_class.rank == 0
            async with httpx.AsyncClient(transport=H3Transport(trusting()), **given) as quic:
                stream = await quic.post("/v1/completions", json=body)
                assert streamed(stream) == reply("chat", "abc", 5)
                assert "alt-svc" not in stream.headers and stream.http_version == "HTTP/3"
                refused = await quic.post("/v1/completions", json=body, headers={"authorization": "Bearer no"})
                assert refused.status_code == 401
                instance = door.instances["node-a/0"]
                instance.engines["chat"].faults.step_s = 0.05
                asking = asyncio.create_task(quic.post("/v1/completions", json=body))
                await until(lambda: instance.in_flight)
                await server.stop()
                assert streamed(await asking) == reply("chat", "abc", 5)  # what runs over HTTP/3 ends first

    try:
        bounded.run(test())
    finally:
        store.close()


@pytest.mark.slow
def test_what_keeps_a_gateway_from_http3_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text((Path(__file__).parents[3] / "configs" / "fleet-tiny.yaml").read_text())
    (tmp_path / "cpu-tiny.yaml").write_text((Path(__file__).parents[3] / "configs" / "cpu-tiny.yaml").read_text())
    for given, says in (
        ({"http3": {"scheduler": "ml"}}, "--quic-scheduler has no effect without HTTP/3; add --http3"),
        ({"http3": {"enabled": True, "port": 0}}, "--http3-port: 0 is not a port from 1 to 65535"),
    ):
        with pytest.raises(ConfigError, match=says):
            _read(path, given)
    place = place_of(_read(path), tmp_path / "state", {})
    store = open_store(place.store)
    for given, says in (
        ({"port": 0, "http3": {"enabled": True}}, "--http3 needs a certificate: --ssl-certfile and --ssl-keyfile"),
        ({"port": 0, "ssl_certfile": "x.pem"}, "--ssl-certfile and --ssl-keyfile belong together"),
        ({"port": 0, "ssl_certfile": "x.pem", "ssl_keyfile": "x.pem"}, "x.pem: no PEM certificate and key"),
    ):
        with pytest.raises(ConfigError, match=says):
            GatewayServer(_read(path, given), place, store, 1.0)
    store.close()
    with pytest.raises(ConfigError, match=r"settings\.http3: engines of a fleet serve no HTTP/3; move it to gateway"):
        parse_fleet(FLEET.replace("{policy: edf}", "{http3: {enabled: true, self_signed: true}}"))
    with pytest.raises(ConfigError, match=r"settings\.keys: engines of a fleet check no keys; move it to gateway"):
        parse_fleet(FLEET.replace("{policy: edf}", "{keys: keys.yaml}"))
