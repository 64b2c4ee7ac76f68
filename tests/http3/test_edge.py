"""The edge: ordinary HTTP in, one QUIC connection out."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sloserve.http3.certificates import CertificateFiles, make_certificate, write_certificate
from sloserve.http3.client_settings import ClientSettings
from sloserve.http3.edge import Edge, EdgeSettings
from sloserve.http3.fair_turns import FairTurns, WaitingListFull
from sloserve.http3.httpx_transport import head
from sloserve.http3.listener import listen
from sloserve.wire.headers import HOP_BY_HOP
from sloserve.wire.optional_http3 import Http3Settings
from tests.http3.serving import answer, certificate_files, listening, read, trusting


@asynccontextmanager
async def edge_to(port: int, max_waiting: int = 8, requests: int = 128, **client: Any) -> AsyncIterator[Edge]:
    made = Edge(EdgeSettings("127.0.0.1", port, trusting(**client), requests, max_waiting))
    made.upstream.start()
    await asyncio.sleep(1.0)
    assert made.upstream.connected
    try:
        yield made
    finally:
        await made.upstream.stop()


def http(edge: Edge) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(edge), base_url="http://edge")


async def read_and_echo(scope: Any, receive: Any, send: Any) -> None:
    body = await read(receive)
    headers = [(b"content-length", b"5")] if scope["method"] == "HEAD" else []
    await answer(send, body, headers=headers)


class Visitor:
    """A client of the edge that sees what it is sent at once, and may leave."""

    def __init__(self, edge: Edge, first: Any = None, path: str = "/", **headers: str) -> None:
        self.sent: asyncio.Queue[Any] = asyncio.Queue()
        self._leaving = asyncio.Event()
        self._asked = False
        self._first = first or {"type": "http.request", "body": b"{}"}
        given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope: Any = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
        self.task = asyncio.create_task(
            edge({**scope, "headers": given, "client": ("192.0.2.9", 1)}, self._receive, self.sent.put)
        )

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return self._first
        await self._leaving.wait()
        return {"type": "http.disconnect"}

    def leave(self) -> None:
        self._leaving.set()


@pytest.mark.slow
def test_requests_are_forwarded_with_key_and_request_id_over_one_connection(tmp_path: Path, virtually: Any) -> None:
    authority = make_certificate(("authority",), authority=True)
    ca_file, _ = write_certificate(tmp_path, authority, "authority")
    own = write_certificate(tmp_path, make_certificate(("edge",), authority), "edge")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        said = {"path": scope["path"], "query": scope["query_string"].decode(), "headers": headers}
        body = json.dumps({**said, "body": (await read(receive)).decode()}).encode()
        await answer(send, body, 201, [(b"x-own", b"1"), (b"connection", b"close")])

    async def test(loop: Any) -> None:
        async with (
            listening(app, client_ca=str(ca_file)) as listener,
            edge_to(listener.port, certfile=str(own[0]), keyfile=str(own[1])) as edge,
            http(edge) as client,
        ):
            asked = {"authorization": "Bearer key", "x-request-id": "mine", "x-tenant-id": "acme", "connection": "x"}
            told = await client.post("/v1/a?b=c", content=b"hello", headers=asked)
            assert (told.status_code, told.headers["x-own"], told.headers["x-request-id"]) == (201, "1", "mine")
            seen = told.json()
            assert (seen["path"], seen["query"], seen["body"]) == ("/v1/a", "b=c", "hello")
            assert seen["headers"].items() >= {"authorization": "Bearer key", "x-request-id": "mine"}.items()
            assert seen["headers"]["x-forwarded-for"] == "127.0.0.1" and "connection" not in seen["headers"]
            others = await asyncio.gather(*(client.get("/") for _ in range(5)))
            assert len({one.headers["x-request-id"] for one in others}) == 5
            assert (await client.get("/ready")).json() == {"status": "ready"}
            malformed = await client.get("/", headers=[(b"bad name", b"x")])
            assert malformed.status_code == 400 and "contains invalid characters" in malformed.text
            assert len(listener.protocols) == 1  # and the connection has survived that

    virtually(test)


def test_a_client_that_leaves_ends_its_request_at_the_engine(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        ended = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await read(receive)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
            assert (await receive())["type"] == "http.disconnect"
            ended.set()

        async with listening(app) as listener, edge_to(listener.port) as edge:
            visitor = Visitor(edge)
            assert (await visitor.sent.get())["status"] == 200
            assert (await visitor.sent.get())["body"] == b"one"
            visitor.leave()
            await ended.wait()
            await visitor.task
            assert edge.turns._free == 128

    virtually(test)


@pytest.mark.slow
def test_a_lost_connection_is_an_error_and_is_made_again(virtually: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        if scope["path"] == "/":
            await asyncio.Event().wait()
        await send({"type": "http.response.body"})

    async def test(loop: Any) -> None:
        certificates = CertificateFiles(*certificate_files())
        async with listening(app) as listener, edge_to(listener.port) as edge, http(edge) as client:
            visitor = Visitor(edge, x_request_id="mine")
            await visitor.sent.get()
            assert (await visitor.sent.get())["body"] == b"data: 1\n\n"
            await listener.stop(0.0)
            last = (await visitor.sent.get())["body"]
            assert b"the engine host ended the response early" in last and last.startswith(b'data: {"error": ')
            refused = await client.get("/")
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
            assert "no connection to 127.0.0.1" in refused.json()["error"]["message"]
            assert (await client.get("/ready")).status_code == 503
            again = await listen(app, Http3Settings(), certificates, ("127.0.0.1", listener.port))
            await asyncio.sleep(1.0)
            assert (await client.get("/short")).status_code == 200
            await again.stop(0.0)

    virtually(test)


@pytest.mark.slow
def test_what_a_stopping_engine_host_has_begun_ends_well_and_its_connection_with_it(virtually: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        await asyncio.sleep(30.0)
        await answer(send, b"done")

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            edge = Edge(EdgeSettings("127.0.0.1", listener.port, trusting(keep_alive_s=1.0, silent_s=4.0)))
            edge.upstream.start()
            await asyncio.sleep(1.0)
            visitor = Visitor(edge)
            await asyncio.sleep(1.0)
            listener.going_away()
            await asyncio.sleep(0.05)
            assert not edge.upstream.connected and len(listener.protocols) == 1
            assert (await visitor.sent.get())["status"] == 200
            assert (await visitor.sent.get())["body"] == b"done"
            await visitor.task
            await asyncio.sleep(1.0)
            assert not edge.upstream._finishing and not listener.protocols
            await edge.upstream.stop()

    virtually(test)


@pytest.mark.slow
def test_what_one_client_does_ends_no_connection(virtually: Any) -> None:
    async def drops() -> AsyncIterator[bytes]:
        for _ in range(1500):
            yield b"x"

    async def test(loop: Any) -> None:
        async with listening(read_and_echo) as listener, edge_to(listener.port) as edge, http(edge) as client:
            large = await client.get("/", headers={"x-long": "~" * 40_000})
            assert large.status_code == 431 and "bytes; send at most 32768" in large.text
            assert (await client.post("/", content=drops())).content == b"x" * 1500
            assert (await client.head("/")).status_code == 200
            assert listener.figures.handshakes == {"completed": 1}

    virtually(test)


@pytest.mark.slow
def test_a_client_that_leaves_while_it_waits_gives_up_its_place(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        go = asyncio.Event()
        served = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            served.append(dict(scope["headers"]).get(b"x-number"))
            await go.wait()
            await answer(send, await read(receive))

        async with listening(app) as listener, edge_to(listener.port, requests=1) as edge:
            visitors = [Visitor(edge, x_number=str(number)) for number in range(4)]
            await asyncio.sleep(1.0)
            assert edge.turns.waiting == 3
            visitors[1].leave()
            await visitors[1].task
            assert edge.turns.waiting == 2
            go.set()
            for visitor in (visitors[0], *visitors[2:]):
                assert (await visitor.sent.get())["status"] == 200
                assert (await visitor.sent.get())["body"] == b"{}"
                visitor.leave()
                await visitor.task
            assert served == [b"0", b"2", b"3"]

    virtually(test)


def test_a_client_that_does_not_send_its_body_gives_up_its_place(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        async with listening(read_and_echo) as listener, edge_to(listener.port, requests=1) as edge:
            asked_s = loop.time()
            stalled = Visitor(edge, first={"type": "http.request", "body": b"{", "more_body": True})
            waits = Visitor(edge)
            assert (await stalled.sent.get())["status"] == 408
            assert b"not whole after 60 s" in (await stalled.sent.get())["body"]
            await stalled.task
            assert 60.0 <= loop.time() - asked_s < 61.0
            assert (await waits.sent.get())["status"] == 200  # what waited for the place meanwhile has it
            waits.leave()
            await waits.task
            assert edge.turns._free == 1

    virtually(test)


def test_a_certificate_that_is_being_replaced_is_waited_for(tmp_path: Path, virtually: Any) -> None:
    async def test(loop: Any) -> None:
        ca_file = tmp_path / "ca.pem"
        ca_file.write_bytes(Path(certificate_files()[0]).read_bytes())
        async with listening(read_and_echo) as listener:
            settings = EdgeSettings("127.0.0.1", listener.port, ClientSettings(ca_file=str(ca_file)))
            edge = Edge(settings)
            ca_file.rename(tmp_path / "later")
            edge.upstream.start()
            await asyncio.sleep(0.05)
            assert "no PEM certificates" in edge.upstream._why
            (tmp_path / "later").rename(ca_file)
            await asyncio.sleep(1.0)
            assert edge.upstream.connected
            await edge.upstream.stop()

    virtually(test)


def test_places_go_by_class_and_to_tenants_in_turn(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        turns, order = FairTurns(1, max_waiting=6), []
        await turns.take(0, "")

        async def one(rank: int, tenant: str) -> None:
            await turns.take(rank, tenant)
            order.append(f"{rank}{tenant}")
            turns.give_back()

        waiting = [
            asyncio.create_task(one(*who)) for who in ((5, "a"), (3, "a"), (3, "a"), (3, "a"), (3, "b"), (3, "b"))
        ]
        await asyncio.sleep(0)
        with pytest.raises(WaitingListFull):
            await turns.take(0, "c")
        waiting[2].cancel()
        await asyncio.sleep(0)
        turns.give_back()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert order == ["3a", "3b", "3a", "3b", "5a"]
        assert (turns._free, turns.waiting, turns._waiting) == (1, 0, {})

    virtually(test)


def test_headers_of_one_connection_end_at_it() -> None:
    """The edge passed a proxy's credentials on to the engine host, which are for the edge alone."""
    given = [(name, b"x") for name in (*HOP_BY_HOP, b"host", b"authorization")]
    assert head(b"GET", b"host", b"/", given)[4:] == [(b"authorization", b"x")]
