"""One connection carries the requests of many: what happens to one of them is no one else's."""

import asyncio
import logging
from asyncio import sleep
from typing import Any

import httpx
import pytest
from aioquic.h3.connection import encode_frame as frame

from sloserve.http3 import bounded_h3
from sloserve.http3.client_connection import BrokenOff, H3Client, HeadersTooLarge, connect
from sloserve.http3.httpx_transport import H3Transport
from sloserve.http3.listener import Listener
from tests.http3.serving import (
    PSEUDO,
    answer,
    ask,
    echo,
    header_block,
    listening,
    read,
    reprioritize,
    trusting,
    whole,
    write,
)


async def visit(listener: Listener) -> H3Client:
    return await connect("127.0.0.1", listener.port, trusting(), settled=True)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 304)])
def test_an_answer_without_a_body_may_state_its_length(virtually: Any, method: str, status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"12345", status, [(b"content-length", b"5")])

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            client = await visit(listener)
            reply = ask(client, method=method)
            assert (await whole(reply), reply.status) == (b"", status)
            assert dict(reply.headers)[b"content-length"] == b"5"
            await client.end()

    virtually(test)


def test_a_malformed_answer_ends_alone(virtually: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        length = b"6" if scope["path"] == "/short" else b"5"
        await answer(send, b"12345", headers=[(b"content-length", length)])

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            client = await visit(listener)
            with pytest.raises(BrokenOff, match="the response is malformed: content-length does not match data size"):
                await whole(ask(client, "/short"))
            assert await whole(ask(client)) == b"12345" and len(client._h3._stream) <= 6  # type: ignore[union-attr]
            await client.end()

    virtually(test)
    assert not caplog.records


def test_a_malformed_request_ends_alone(virtually: Any) -> None:
    told = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/wait":
            await receive()
            told.append((await receive())["type"])
        await answer(send, b"still here")

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            client = await visit(listener)
            write(client, "request", frame(1, header_block([*PSEUDO, (b"bad name", b"x")])), False)
            waiting = [field if field[0] != b":path" else (b":path", b"/wait") for field in PSEUDO]
            head = frame(1, header_block([*waiting, (b"content-length", b"3")]))
            write(client, "request", head + frame(0, b"ab"), False)
            await sleep(1.0)
            client.quic.send_stream_data(client.quic.get_next_available_stream_id() - 4, b"", end_stream=True)
            client.transmit_soon()
            await sleep(1.0)
            assert told == ["http.disconnect"] and await whole(ask(client)) == b"still here"
            (protocol,) = listener.protocols
            assert len(protocol._h3._stream) <= 6 and not protocol._h3._malformed  # type: ignore[union-attr]
            await client.end()

    virtually(test)


def test_trailers_are_passed_over(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            (protocol,) = listener.protocols
            protocol._h3.send_headers(0, [(b"x-late", b"1")], True)  # type: ignore[union-attr]
            await sleep(1.0)

        async with listening(app) as listener:
            client = await visit(listener)
            assert await asyncio.wait_for(whole(ask(client)), 5) == b"x"
            await client.end()

    virtually(test)


@pytest.mark.slow
def test_a_server_that_wants_no_more_of_a_body_is_heard_to_the_end(virtually: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, bytes(100_000), 401)

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            client = await visit(listener)
            reply = ask(client, method="POST", body=True)
            await reply.head()
            await sleep(0.3)  # what it answers is on its way, and that it reads no further
            await reply.send(bytes(10_000), end=True)
            assert len(await whole(reply)) == 100_000
            await client.end()

    virtually(test, rate_bps=1e6)


@pytest.mark.slow
def test_answers_that_no_one_reads_hold_up_no_other(virtually: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, bytes(600_000) if scope["path"] == "/large" else b"small")

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            client = await visit(listener)
            for _ in range(20):
                await ask(client, "/large").head()
            await sleep(10.0)
            assert await asyncio.wait_for(whole(ask(client)), 5) == b"small"
            await client.end()

    virtually(test)


def test_headers_that_the_server_will_not_take_are_not_sent(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        async with listening(echo, header_bytes=1000) as listener:
            client = await visit(listener)
            with pytest.raises(HeadersTooLarge, match=r"request headers: \d+ bytes; send at most 1000"):
                ask(client, x_long="~" * 1000)
            assert await whole(ask(client)) == b""
            await client.end()

    virtually(test)


@pytest.mark.slow
def test_many_short_requests_are_no_flood_of_frames(virtually: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_h3, "SPARE_FRAMES", 4)

    async def test(loop: Any) -> None:
        async with listening(echo) as listener:
            client = await visit(listener)
            for _ in range(20):
                reply = ask(client, method="POST", body=True)
                await reply.send(b"x", end=True)
                assert await whole(reply) == b"x"
            await client.end()

    virtually(test)


def test_a_priority_that_overtakes_its_request_holds(virtually: Any) -> None:
    seen = {}

    async def test(loop: Any) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            (protocol,) = listener.protocols
            seen[scope["path"]] = [protocol.quic._order._states[i].urgency for i in protocol.exchanges]
            await answer(send, await read(receive))

        async with listening(app) as listener:
            client = await visit(listener)
            carry, loop.carry = loop.carry, lambda *_: None
            first = ask(client, "/first")
            await sleep(0)  # its packet is lost
            loop.carry = carry
            second = ask(client, "/second")
            await sleep(0.02)
            reprioritize(client, 0, "u=7")
            assert await whole(second) == await whole(first) == b""
            await client.end()

    virtually(test)
    assert seen == {"/second": [3], "/first": [7]}


def test_requests_to_a_server_that_does_not_answer_wait_together(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        async with httpx.AsyncClient(transport=H3Transport(trusting()), timeout=3.0) as client:
            began_s = loop.time()
            asked = [client.get("https://127.0.0.1:9/") for _ in range(5)]
            failed = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(error) for error in failed} == {httpx.ConnectError} and loop.time() - began_s < 4.0
            begun = asyncio.create_task(client.get("https://127.0.0.1:9/"))
            await sleep(1.0)
        assert isinstance((await asyncio.gather(begun, return_exceptions=True))[0], BaseException)
        assert all(one._closed for one in loop._sockets.values())

    virtually(test)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/head", "/body"])
def test_the_transport_keeps_httpxs_timeouts(virtually: Any, path: str) -> None:
    told = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/body":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        while (message := await receive())["type"] != "http.disconnect":
            pass
        told.append(message["type"])

    async def test(loop: Any) -> None:
        async with (
            listening(app) as listener,
            httpx.AsyncClient(transport=H3Transport(trusting()), timeout=3.0) as client,
        ):
            began_s = loop.time()
            with pytest.raises(httpx.ReadTimeout, match="read: nothing for 3 s"):
                await client.get(f"https://127.0.0.1:{listener.port}{path}")
            assert 3.0 < loop.time() - began_s < 4.0
            await sleep(1.0)
            assert told == ["http.disconnect"]

    virtually(test)
