"""A picker over gRPC, asked as Envoy asks, before servers of which the loads differ."""

import asyncio
import contextlib
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sloserve.fleet.beside.endpoint_picker.messages import SERVICE
from sloserve.fleet.beside.endpoint_picker.picker_file import read_picker
from sloserve.fleet.beside.endpoint_picker.picker_server import PickerServer
from tests import bounded
from tests.bounded import until
from tests.fleet.beside.endpoint_picker.played_envoy import DESTINATION, Seen, chat, envoy
from tests.fleet.beside.played_server import PlayedServer, serving

pytestmark = pytest.mark.slow

SERVING = health_pb2.HealthCheckResponse.SERVING

FILE = """
servers: {{addresses: [{addresses}], sample_s: 0.05}}
models: {{m: {{profile: h100-llama3-8b, flags: {{max_num_seqs: 4}}}}}}
choice: {{{choice}}}
settings:
  classes: {{interactive: {{rank: 1, ttft_ms: 500}}, batch: {{rank: 2, e2e_ms: 300000}}}}
  default_class: batch
listen: {{port: 0, {listen}}}
"""


@contextlib.asynccontextmanager
async def picking(
    folder: Path, *servers: PlayedServer, choice: str = "hold_max_s: 5.0", listen: str = "max_body_mib: 1"
) -> AsyncIterator[tuple[PickerServer, Any]]:
    async with serving(*servers):
        path = folder / "picker.yaml"
        addresses = ", ".join(f'"{one.address}"' for one in servers)
        path.write_text(FILE.format(addresses=addresses, choice=choice, listen=listen))
        server = PickerServer(read_picker(path))
        await server.start()
        try:
            instances = server.picking.instances
            await until(lambda: len(instances.by_name) == sum(one.page is None for one in servers))
            async with envoy(server.port) as make:
                yield server, make
        finally:
            await server.stop(0.0)


async def figures_reach(server: PickerServer, *servers: PlayedServer) -> None:
    """Return once the figures that the servers have now are known."""
    asked = [one.asked for one in servers]
    await until(lambda: all(one.asked > before + 1 for one, before in zip(servers, asked, strict=True)))


def test_a_request_goes_to_the_idle_server_unchanged_and_both_ways_say_so(tmp_path: Path) -> None:
    busy, idle = PlayedServer(running=3), PlayedServer()

    async def main() -> Seen:
        async with picking(tmp_path, busy, idle) as (_, make):
            stream = make()
            seen: Seen = await stream.ask(chat(), headers=[(DESTINATION, "10.9.9.9:1")])
            await stream.answered(b"data: 1\n\n", b"data: [DONE]\n\n")
            await stream.close()
            return seen

    seen = bounded.run(main())
    assert seen.server == seen.metadata == idle.address
    assert seen.body == chat() and seen.ended
    assert seen.kinds[0] == "request_headers", "Envoy waits for the headers first"


def test_a_long_body_in_pieces_arrives_whole_in_pieces_that_proxies_take(tmp_path: Path) -> None:
    body = chat("long " * 100_000)
    parts = [body[i : i + 16_384] for i in range(0, len(body), 16_384)]

    async def main() -> Seen:
        async with picking(tmp_path, PlayedServer()) as (server, make):
            seen: Seen = await make().ask(parts)
            await until(lambda: server.picking.instances.sent() == 1)
            return seen

    seen = bounded.run(main())
    assert seen.body == body and max(seen.pieces) <= 60_000


def test_a_body_beyond_the_limit_is_chosen_for_by_its_headers_and_passed_on_as_it_comes(tmp_path: Path) -> None:
    body = chat("long " * 300_000)
    parts = [body[i : i + 100_000] for i in range(0, len(body), 100_000)]

    async def main() -> tuple[Seen, str]:
        async with picking(tmp_path, PlayedServer(), listen="max_body_mib: 1, metrics_port: 0") as (server, make):
            seen: Seen = await make().ask(parts, headers=[("x-slo-class", "interactive")])
            url = f"http://127.0.0.1:{server.metrics_port}/metrics"
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                return seen, await response.text()

    seen, page = bounded.run(main())
    assert seen.body == body and seen.server
    assert 'sloserve:picker_read_total{how="without-body"} 1.0' in page
    assert 'sloserve:picker_picks_total{class="interactive",why="room"} 1.0' in page
    assert "sloserve:picker_body_bytes 0.0" in page


def test_bodies_of_all_requests_together_have_a_limit(tmp_path: Path) -> None:
    async def main() -> list[Seen]:
        listen = "max_body_mib: 1, max_bodies_mib: 1"
        async with picking(tmp_path, PlayedServer(), listen=listen) as (_, make):
            body = chat("x" * 700_000)
            streams = [make() for _ in range(3)]
            found = await asyncio.gather(*(stream.ask([body[:400_000], body[400_000:]]) for stream in streams))
            assert all(one.body == body for one in found)
            return list(found)

    assert all(one.server for one in bounded.run(main()))


def test_a_subset_is_kept_to_whatever_the_load(tmp_path: Path) -> None:
    busy, idle = PlayedServer(running=4, waiting=90), PlayedServer()

    async def main() -> list[Seen]:
        async with picking(tmp_path, busy, idle, choice="hold_max_s: 0.0") as (_, make):
            unknown = "10.0.0.9:8000"
            return [
                await make().ask(chat(), subset=[busy.address]),
                await make().ask(chat(), subset=f"{busy.address}, {unknown}"),
                await make().ask(chat(), subset=[unknown]),
                await make().ask(chat(), subset=[]),
            ]

    one, text, strange, empty = bounded.run(main())
    assert one.server == text.server == busy.address
    assert strange.server == "10.0.0.9:8000", "of a server that is not known nothing speaks against it"
    assert empty.status == 503 and not empty.server and empty.refusal["error"]["code"] == 503


def test_what_cannot_be_read_is_for_the_engine_to_refuse(tmp_path: Path) -> None:
    async def main() -> list[Seen]:
        async with picking(tmp_path, PlayedServer(), PlayedServer()) as (_, make):
            return [
                await make().ask(b"{no json"),
                await make().ask(chat(model="unknown")),
                await make().ask(chat(model=["m"], n="many")),
                await make().ask(chat(), headers=[("x-slo-ttft-ms", "soon")]),
                await make().ask(b"", end=False, path="/nothing/here"),
                await make().ask(b"\xff\x00", path="/v1/audio/transcriptions"),
            ]

    assert [one.server != "" and one.status == 0 for one in bounded.run(main())] == [True] * 6


def test_without_any_server_the_answer_is_503_and_silent_servers_take_turns(tmp_path: Path) -> None:
    silent = [PlayedServer(page="nothing"), PlayedServer(page="nothing")]

    async def main() -> tuple[Counter[str], Seen]:
        async with picking(tmp_path, *silent) as (server, make):
            found = Counter([(await make().ask(chat())).server for _ in range(4)])
            server.picking.servers.listed([])
            return found, await make().ask(chat())

    found, none = bounded.run(main())
    assert found == {one.address: 2 for one in silent}
    assert none.status == 503


def test_a_prompt_goes_where_its_beginning_was_computed(tmp_path: Path) -> None:
    turns: list[dict[str, str]] = [{"role": "system", "content": "rules " * 2_000}]

    async def main() -> tuple[list[str], str]:
        async with picking(tmp_path, PlayedServer(), PlayedServer()) as (_, make):
            servers = []
            for text in ("one", "two", "three"):
                turns.append({"role": "user", "content": text})
                stream = make()
                servers.append((await stream.ask(chat(messages=turns))).server)
                await stream.answered()
                await stream.close()
            return servers, (await make().ask(chat("other " * 3_000))).server

    servers, other = bounded.run(main())
    assert len(set(servers)) == 1, "a conversation stays"
    assert other


def test_the_earliest_deadline_gets_the_first_room(tmp_path: Path) -> None:
    server = PlayedServer(running=4)

    async def main() -> list[str]:
        async with picking(tmp_path, server) as (picker, make):
            order = list[str]()

            async def asked(name: str, slo: str) -> None:
                await make().ask(chat(), headers=[("x-slo-e2e-ms", slo)])
                order.append(name)

            await figures_reach(picker, server)
            late = asyncio.create_task(asked("late", "60000"))
            await until(lambda: picker.picking.waiting == 1)
            soon = asyncio.create_task(asked("soon", "2000"))
            await until(lambda: picker.picking.waiting == 2)
            server.running = 3
            await soon
            server.running = 2
            await late
            return order

    assert bounded.run(main()) == ["soon", "late"]


def test_full_servers_get_the_request_in_the_end_and_a_shed_class_is_refused(tmp_path: Path) -> None:
    busy, busier = PlayedServer(running=4, waiting=1), PlayedServer(running=4, waiting=30)

    async def main() -> tuple[Seen, Seen]:
        choice = "hold_max_s: 0.05, shed: [batch]"
        async with picking(tmp_path, busier, busy, choice=choice) as (picker, make):
            await figures_reach(picker, busy, busier)
            return await make().ask(chat(), headers=[("x-slo-class", "interactive")]), await make().ask(chat())

    served, shed = bounded.run(main())
    assert served.server == busy.address
    assert shed.status == 429 and int(shed.headers["retry-after"]) > 0
    assert shed.headers["x-slo-dropped-reason"] == "rejected-saturated"


def test_requests_that_nobody_reports_yet_count_at_their_server_until_their_streams_end(tmp_path: Path) -> None:
    servers = [PlayedServer(), PlayedServer()]

    async def main() -> tuple[Counter[str], list[int]]:
        async with picking(tmp_path, *servers) as (picker, make):
            streams = [make() for _ in range(6)]
            found = Counter([(await stream.ask(chat())).server for stream in streams])
            await streams[0].answered()
            await streams[0].close()
            await streams[1].answered(status=503)
            by_name = picker.picking.instances.by_name
            await until(lambda: sum(one.in_flight for one in by_name.values()) == 4)
            return found, [one.in_flight for one in by_name.values()]

    found, _ = bounded.run(main())
    assert found == {one.address: 3 for one in servers}


def test_a_client_that_leaves_waits_no_more(tmp_path: Path) -> None:
    server = PlayedServer(running=4)

    async def main() -> None:
        async with picking(tmp_path, server) as (picker, make):
            await figures_reach(picker, server)
            leaving = asyncio.create_task(make().ask(chat()))
            await until(lambda: picker.picking.waiting == 1)
            leaving.cancel()
            await until(lambda: picker.picking.waiting == 0)
            assert picker.picking.instances.sent() == 0

    bounded.run(main())


def test_the_server_that_served_counts_where_the_first_choice_could_not_be_reached(tmp_path: Path) -> None:
    first, second = PlayedServer(), PlayedServer(running=1)

    async def main() -> tuple[str, dict[str, int]]:
        async with picking(tmp_path, first, second, listen="others: 1") as (picker, make):
            await figures_reach(picker, first, second)
            stream = make()
            seen = await stream.ask(chat())
            await stream.answered(b"x", served=second.address)
            return seen.server, {one.name: one.in_flight for one in picker.picking.instances.by_name.values()}

    value, in_flight = bounded.run(main())
    assert value == f"{first.address},{second.address}"
    assert in_flight == {first.address: 0, second.address: 0}


def test_adapters_are_found_where_they_are_loaded(tmp_path: Path) -> None:
    plain, with_adapter = PlayedServer(), PlayedServer(running=3, adapters=["lora"])

    async def main() -> tuple[str, str]:
        async with picking(tmp_path, plain, with_adapter) as (picker, make):
            await figures_reach(picker, plain, with_adapter)
            eligible = picker.picking.servers.eligible
            await until(lambda: eligible("lora", None).among == {with_adapter.address})
            return (await make().ask(chat(model="lora"))).server, (await make().ask(chat())).server

    assert bounded.run(main()) == (with_adapter.address, plain.address)


def test_health_says_when_requests_can_be_served(tmp_path: Path) -> None:
    async def main() -> dict[str, int]:
        async with picking(tmp_path, PlayedServer(), listen="health_port: 0, certfile: self-signed") as (picker, _):
            assert picker.health_port != picker.port
            async with grpc.aio.insecure_channel(f"127.0.0.1:{picker.health_port}") as channel:
                stub = health_pb2_grpc.HealthStub(channel)

                async def status(name: str) -> int:
                    return int((await stub.Check(health_pb2.HealthCheckRequest(service=name))).status)

                while await status(SERVICE) != SERVING:
                    await asyncio.sleep(0.01)
                return {name: await status(name) for name in ("", "liveness", "readiness")}

    assert bounded.run(main()) == dict.fromkeys(("", "liveness", "readiness"), SERVING)


def test_tls_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    async def main() -> Seen:
        server = PlayedServer()
        async with picking(tmp_path, server, listen="certfile: self-signed") as (picker, _):
            shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", picker.port), timeout=30.0)
            async with envoy(picker.port, grpc.ssl_channel_credentials(shown.encode())) as make:
                return await make().ask(chat())

    assert bounded.run(main()).server
