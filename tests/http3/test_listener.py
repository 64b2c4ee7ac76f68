"""HTTP/3 in front of an ASGI application: over real datagrams on 127.0.0.1, in virtual time where something waits."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from aioquic.h3.connection import encode_frame as frame

from sloserve.core.errors import ConfigError
from sloserve.core.slo import DEFAULT_CLASSES, Targets
from sloserve.http3.certificates import CertificateFiles, make_certificate, write_certificate
from sloserve.http3.client_connection import BrokenOff, ConnectionLost, RequestRefused, connect
from sloserve.http3.listener import listen
from sloserve.http3.listener_figures import kernel_discards
from sloserve.wire.asgi import report_slo
from sloserve.wire.optional_http3 import Http3Settings
from tests.http3.serving import (
    PSEUDO,
    answer,
    ask,
    certificate_files,
    connected,
    echo,
    header_block,
    listening,
    read,
    run,
    trusting,
    whole,
    write,
)


def test_a_request_reaches_the_application_as_asgi_has_it() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope, body=await read(receive))
        await answer(send, b"yes", headers=[(b"X-Own", b"1"), (b"Connection", b"close")])

    async def test() -> None:
        async with listening(app) as listener, connected(listener) as client:
            reply = ask(client, "/v1/a%20b?q=1", "POST", body=True, x_slo_class="batch", host="ignored")
            await reply.send(b"hello ")
            await reply.send(b"world", end=True)
            assert await whole(reply) == b"yes"
            assert reply.headers == [(b"x-own", b"1")]

    run(test())
    assert (seen["method"], seen["path"], seen["raw_path"]) == ("POST", "/v1/a b", b"/v1/a%20b")
    assert (seen["query_string"], seen["http_version"], seen["scheme"]) == (b"q=1", "3", "https")
    assert seen["headers"] == [(b"host", b"localhost"), (b"x-slo-class", b"batch")]
    assert seen["body"] == b"hello world"


def test_an_answer_streams_and_a_key_is_looked_at_before_the_body() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if dict(scope["headers"]).get(b"authorization") != b"Bearer key":
            await answer(send, b"no", 401)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"one", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body"})

    async def test() -> None:
        async with listening(app) as listener, connected(listener) as client:
            refused = ask(client, method="POST", body=True)
            await refused.send(bytes(100_000))  # more would come, and is not waited for
            assert await whole(refused) == b"no" and refused.status == 401
            assert await whole(ask(client, authorization="Bearer key")) == b"onetwo"

    run(test())


def test_a_failing_application_is_a_500_or_a_reset() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/late":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("a bug")

    async def test() -> None:
        async with listening(app) as listener, connected(listener) as client:
            early = ask(client, "/early")
            assert await whole(early) == b"Internal Server Error" and early.status == 500
            with pytest.raises(BrokenOff, match="0x102"):
                await whole(ask(client, "/late"))

    run(test())


def test_cancelling_tells_the_application() -> None:
    async def test() -> None:
        told = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            assert (await receive())["type"] == "http.request"
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
            assert (await receive())["type"] == "http.disconnect"
            await send({"type": "http.response.body", "body": b"to no one"})
            told.set()

        async with listening(app) as listener, connected(listener) as client:
            reply = ask(client)
            await reply.head()
            reply.cancel()
            await told.wait()

    run(test())


@pytest.mark.slow
def test_no_datagram_is_discarded_in_eight_uploads_of_200_kb() -> None:
    async def test() -> None:
        async with listening(echo) as listener, connected(listener) as client:
            bodies = [bytes([number]) * 200_000 for number in range(8)]

            async def upload(body: bytes) -> bytes:
                reply = ask(client, method="POST", body=True)
                await reply.send(body, end=True)
                return await whole(reply)

            assert await asyncio.gather(*map(upload, bodies)) == bodies
            assert kernel_discards(listener.inode) == 0 and not listener.figures.discarded

    run(test())


@pytest.mark.slow
def test_a_late_answer_is_dropped_where_that_is_asked_for(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        told = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            if scope["path"] == "/late-by-its-body":
                report_slo(scope, DEFAULT_CLASSES.slo(None, Targets(e2e_s=0.02)))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if scope["path"].startswith("/late"):
                assert (await receive())["type"] == "http.disconnect"
                told.set()
            await send({"type": "http.response.body", "body": b"in time"})

        async with listening(app, late="drop") as listener, connected(listener) as client:
            for path, headers in (("/late", {"x_slo_e2e_ms": "20"}), ("/late-by-its-body", {})):
                with pytest.raises(BrokenOff, match="0x10c"):
                    await whole(ask(client, path, **headers))
                await told.wait()
                told.clear()
            assert await whole(ask(client, "/", x_slo_e2e_ms="60000")) == b"in time"
            (protocol,) = listener.protocols
            await asyncio.sleep(1.0)
            assert not protocol._drops  # what has arrived is not watched until its deadline
            assert listener.figures.requests == {"dropped": 2, "answered": 1}

    virtually(test)


@pytest.mark.slow
def test_a_peer_that_does_not_read_holds_a_bounded_part_of_an_answer(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        sent = 0

        async def app(scope: Any, receive: Any, send: Any) -> None:
            nonlocal sent
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": bytes(16_384), "more_body": True})
                sent += 16_384

        async with listening(app, buffer_bytes=65_536) as listener, connected(listener) as client:
            reply = ask(client)
            await reply.head()
            await asyncio.sleep(10.0)
            (protocol,) = listener.protocols
            assert protocol.quic.unsent_bytes(0) <= 65_536 + 2 * 16_384
            assert sent <= 256 * 1024 + 65_536 + 2 * 16_384  # the client's window, and what waits here
            reply.cancel()

    virtually(test)


@pytest.mark.slow
def test_connections_of_an_address_are_counted(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        async with listening(echo, connections_per_address=2) as listener:
            async with connected(listener) as first, connected(listener):
                with pytest.raises(ConnectionLost, match="0x2"):
                    await connect("127.0.0.1", listener.port, trusting())
                assert listener.figures.handshakes["address"] == 1
                await first.end()
                await asyncio.sleep(1.0)
                assert len(listener.protocols) == 1
                async with connected(listener) as third:
                    assert await whole(ask(third)) == b""

    virtually(test)


def test_an_address_is_proven_when_many_handshakes_are_unfinished() -> None:
    async def test() -> None:
        async with listening(echo, retry_above=0) as listener, connected(listener) as client:
            assert await whole(ask(client)) == b""
            handshakes = listener.figures.handshakes  # on a busy machine the client asks more than once
            assert handshakes["retried"] >= 1 and handshakes["completed"] == 1

    run(test())


def test_headers_beyond_the_limit_end_the_connection_and_say_so() -> None:
    async def test() -> None:
        async with listening(echo, header_bytes=1000) as listener, connected(listener) as client:
            with pytest.raises(ConnectionLost, match="header section of .* bytes; send at most 1000"):
                await whole(ask(client, x_long="~" * 2000))

    run(test())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "frames", "says"),
    [
        ("request", frame(1, b"\x00\x00" + bytes([0xC0 | 58]) * 400), "a header section of .* bytes, decoded; send at"),
        ("request", frame(1, header_block(PSEUDO)) + 1100 * frame(0, b""), "send fewer and larger ones"),
        ("request", frame(1, header_block(PSEUDO)) + 1200 * frame(0, b"x"), "send fewer and larger ones"),
        ("control", 1100 * frame(0x21, b""), "send fewer and larger ones"),
        ("control", b"\x0d\x80\x10\x00\x00", "a control frame of 1048576 bytes; send at most 4096"),
    ],
    ids=["fields that grow", "empty data", "little data", "frames without meaning", "a frame without end"],
)
def test_a_few_bytes_that_are_much_work_end_the_connection(kind: str, frames: bytes, says: str) -> None:
    async def test() -> None:
        async with listening(echo) as listener, connected(listener) as client:
            write(client, kind, frames, False)
            await client.wait_unusable()
            assert client.lost is not None and re.search(says, str(client.lost))

    run(test())


@pytest.mark.slow
def test_a_stopping_listener_ends_what_it_began_and_takes_no_more(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        go = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await go.wait()
            await send({"type": "http.response.body", "body": b"done"})

        async with listening(app) as listener, connected(listener) as client:
            begun = ask(client)
            await begun.head()
            stopping = asyncio.create_task(listener.stop(5.0))
            await asyncio.sleep(0.01)
            with pytest.raises((RequestRefused, ConnectionLost)):
                await whole(ask(client))
            go.set()
            assert await whole(begun) == b"done"
            await stopping

    virtually(test)


@pytest.mark.slow
def test_a_client_needs_the_certificate_that_is_asked_for(tmp_path: Path) -> None:
    authority = make_certificate(("authority",), authority=True)
    ca_file, _ = write_certificate(tmp_path, authority, "authority")
    good = write_certificate(tmp_path, make_certificate(("edge",), authority), "edge")
    other = write_certificate(tmp_path, make_certificate(("stranger",)), "other")

    async def test() -> None:
        async with listening(echo, client_ca=str(ca_file)) as listener:
            async with connected(listener, certfile=str(good[0]), keyfile=str(good[1])) as client:
                assert await whole(ask(client)) == b""
            for shown in ({}, {"certfile": str(other[0]), "keyfile": str(other[1])}):
                async with connected(listener, **shown) as client:
                    with pytest.raises(ConnectionLost, match="client certificate"):
                        await whole(ask(client))

    run(test())


@pytest.mark.slow
def test_a_certificate_that_changes_is_used_by_the_next_connection(tmp_path: Path) -> None:
    files = write_certificate(tmp_path, make_certificate())
    certificates = CertificateFiles(str(files[0]), str(files[1]), refresh=True)
    other = tmp_path / "other"
    other.mkdir()

    async def visit(port: int) -> None:
        client = await connect("127.0.0.1", port, trusting(verify=False))
        await client.end()

    async def test() -> None:
        listener = await listen(echo, Http3Settings(), certificates, ("127.0.0.1", 0))
        first = listener._configuration.certificate
        write_certificate(tmp_path, make_certificate())
        listener._refreshed_s -= 10.0
        await visit(listener.port)
        second = listener._configuration.certificate
        for halfway in (b"half written", write_certificate(other, make_certificate())[0].read_bytes()):
            files[0].write_bytes(halfway)  # of another pair: its key is yet to come
            listener._refreshed_s -= 10.0
            await visit(listener.port)
            assert first != second == listener._configuration.certificate
        await listener.stop(0.0)

    run(test())


def test_what_cannot_be_served_is_refused_in_one_line(tmp_path: Path) -> None:
    async def refused(certificates: CertificateFiles, port: int, message: str, ca: str | None = None) -> None:
        with pytest.raises(ConfigError, match=message):
            await listen(echo, Http3Settings(), certificates, ("127.0.0.1", port), client_ca=ca)

    async def test() -> None:
        good = CertificateFiles(*certificate_files())
        none = CertificateFiles(str(tmp_path / "no.crt"), str(tmp_path / "no.key"))
        await refused(none, 0, r"--ssl-certfile .*no.crt, .*: no PEM certificate and key for QUIC")
        await refused(good, 0, "--ssl-ca-certs .*no.pem: not a readable file", str(tmp_path / "no.pem"))
        async with listening(echo) as listener:
            await refused(good, listener.port, "UDP port .*: Address already in use; choose another with --http3-port")

    run(test())
