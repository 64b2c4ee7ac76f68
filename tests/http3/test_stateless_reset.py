"""A client learns at once that its server has lost the connection, or is gone."""

from asyncio import CancelledError, create_task, sleep
from contextlib import suppress
from typing import Any

import pytest

from sloserve.http3.certificates import CertificateFiles, make_certificate
from sloserve.http3.client_connection import ConnectionLost, connect
from sloserve.http3.edge import Edge, EdgeSettings
from sloserve.http3.listener import Listener, listen
from sloserve.http3.stateless_reset import is_stateless_reset, key_bytes, stateless_reset, tokens
from sloserve.wire.optional_http3 import Http3Settings
from tests.http3.serving import answer, ask, certificate_files, listening, read, trusting, whole
from tests.http3.test_edge import Visitor

TOKEN = bytes(range(16))


def test_a_reset_looks_like_any_short_packet_and_is_shorter_than_what_it_answers() -> None:
    for size in range(22, 1500):
        made = stateless_reset(TOKEN, size)
        assert (
            made is not None and 21 <= len(made) < size and made[0] & 0xC0 == 0x40 and is_stateless_reset(made, TOKEN)
        )
    assert [stateless_reset(TOKEN, size) for size in range(22)] == [None] * 22  # two servers fall silent
    long_header = b"\xc0" + bytes(30) + TOKEN
    for datagram, token in ((b"", b""), (TOKEN, TOKEN), (long_header, TOKEN), (bytes(40), TOKEN), (bytes(40), b"")):
        assert not is_stateless_reset(datagram, token)


def test_tokens_outlive_the_process_and_are_those_of_one_server() -> None:
    one, other = (key_bytes(make_certificate()[1]) for _ in range(2))
    assert tokens(one, 1)(b"id") == tokens(one, 1)(b"id") != tokens(one, 1)(b"ie")
    assert len({tokens(one, 1)(b"id"), tokens(one, 2)(b"id"), tokens(other, 1)(b"id")}) == 3


async def waits(scope: Any, receive: Any, send: Any) -> None:
    await read(receive)
    if scope["path"] != "/":
        await sleep(1000.0)
    await answer(send, b"here")


def die(loop: Any, listener: Listener) -> None:
    """The process of the listener ends without a word."""
    loop._sockets.pop(listener.front.address).sendto = lambda *_: None


@pytest.mark.slow
def test_a_restart_is_known_within_a_round_trip(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        async with listening(waits) as first:
            client = await connect("127.0.0.1", first.port, trusting())
            reply = ask(client, "/long")
            await sleep(1.0)
            die(loop, first)
            again = await listen(
                waits, Http3Settings(), CertificateFiles(*certificate_files()), ("127.0.0.1", first.port)
            )
            ask(client)
            await sleep(0.03)
            with pytest.raises(ConnectionLost, match="does not know the connection any more"):
                await whole(reply)
            next_one = await connect("127.0.0.1", first.port, trusting())
            assert await whole(ask(next_one)) == b"here"
            await next_one.end()
            await again.stop(0.0)

    virtually(test)


def test_resets_are_sent_at_a_rate_and_are_no_answer_to_one_another(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        async with listening(waits) as listener:
            sent: list[bytes] = []
            listener._send = lambda data, addr: sent.append(data)  # type: ignore[method-assign]
            for number in range(1000):
                listener.datagram_received(b"\x40" + number.to_bytes(8, "big") + bytes(1000), ("192.0.2.1", 9))
            assert len(sent) == 100 and {len(data) for data in sent} == {43}
            await sleep(10.0)
            while sent:
                listener.datagram_received(sent.pop(), ("192.0.2.1", 9))  # another listener's, as it were
            assert listener.figures.discarded["unknown"] < 1000 + 100 * 43

    virtually(test)


@pytest.mark.slow
def test_an_edge_knows_within_five_seconds_that_its_engine_host_is_dead(virtually: Any) -> None:
    async def ready(edge: Edge) -> int:
        visitor = Visitor(edge, path="/ready")
        await visitor.task
        return int((await visitor.sent.get())["status"])

    async def test(loop: Any) -> None:
        async with listening(waits) as listener:
            settings = trusting(keep_alive_s=1.0, silent_s=4.0)
            edge = Edge(EdgeSettings("127.0.0.1", listener.port, settings))
            edge.upstream.start()
            await sleep(30.0)
            assert await ready(edge) == 200  # a quiet host is not a dead one
            begun = Visitor(edge, path="/long")
            await sleep(1.0)
            died_s = loop.time()
            die(loop, listener)
            while await ready(edge) == 200:
                await sleep(0.1)
            assert 4.0 <= loop.time() - died_s < 5.2
            assert (await begun.sent.get())["status"] == 502
            assert b"has been silent for 4 s" in (await begun.sent.get())["body"]
            late = Visitor(edge)
            assert (await late.sent.get())["status"] == 503
            for visitor in (begun, late):
                visitor.leave()
                with suppress(CancelledError):
                    await visitor.task
            await edge.upstream.stop()

    virtually(test)


@pytest.mark.slow
def test_a_link_that_is_full_is_not_dead(virtually: Any) -> None:
    """Answers to pings wait behind what else is sent."""

    async def test(loop: Any) -> None:
        async with listening(waits) as listener:
            client = await connect("127.0.0.1", listener.port, trusting(keep_alive_s=1.0, silent_s=4.0))
            reply = ask(client, method="POST", body=True)
            upload = create_task(reply.send(bytes(600_000), end=True))
            assert await whole(reply) == b"here"
            await upload
            await client.end()

    virtually(test, rate_bps=128_000)
