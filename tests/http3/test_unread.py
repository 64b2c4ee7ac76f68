"""Answers that clients do not read."""

from asyncio import sleep
from functools import partial
from typing import Any
from unittest import mock

import pytest

from sloserve.http3 import client_connection, leftovers
from sloserve.http3.client_connection import BrokenOff, ConnectionLost, H3Client, connect
from sloserve.http3.listener import Listener
from sloserve.http3.transport_limits import TransportLimits
from sloserve.http3.unread import Unread, stalled
from tests.http3.serving import answer, ask, connected, listening, read, trusting, whole


class Connection:
    def __init__(self, trusted: bool = False) -> None:
        self.trusted = trusted
        self.given_up = False

    def give_up(self) -> None:
        self.given_up = True


def test_over_the_limit_the_connection_that_holds_the_most_is_ended_and_an_edge_last() -> None:
    unread = Unread(100)
    edge, small, large, other = Connection(trusted=True), Connection(), Connection(), Connection()
    for one, held in ((edge, 60), (small, 10), (large, 20)):
        unread.holds(one, held)
    unread.holds(small, 15)
    assert (unread.total_bytes, unread.of(small)) == (95, 15)
    unread.holds(other, 10)
    assert [one.given_up for one in (edge, small, large, other)] == [False, False, True, False]
    unread.holds(other, 200)
    assert other.given_up and unread.total_bytes == 75
    unread.holds(edge, 101)
    assert small.given_up and edge.given_up and unread.total_bytes == 0 and not unread._held


class Answer:
    def __init__(self, moved_s: float, starved: bool) -> None:
        self.moved_s = moved_s
        self._starved = starved

    def starved(self) -> bool:
        return self._starved


def test_what_waits_for_its_turn_is_not_unread_unless_nothing_is_read() -> None:
    unread, waits, read_on = Answer(1.0, False), Answer(1.0, True), Answer(9.0, False)
    assert stalled({0: unread, 4: waits, 8: read_on}, 5.0) == [0]
    assert stalled({0: unread, 4: waits}, 5.0) == [0, 4]


class Reluctant:
    """Reads nothing: what its client is sent on streams of requests counts as held."""

    def __init__(self, client: H3Client) -> None:
        self.client = client

    def ask(self, count: int, path: str = "/") -> None:
        for _ in range(count):
            self.client.quic.hold(ask(self.client, path)._stream_id, 2**30)


async def reluctant(listener: Listener, window_bytes: int = 1024, **settings: Any) -> Reluctant:
    with mock.patch.object(
        client_connection, "TransportLimits", partial(TransportLimits, stream_window_bytes=window_bytes)
    ):
        return Reluctant(await connect("127.0.0.1", listener.port, trusting(**settings)))


@pytest.mark.slow
@pytest.mark.parametrize("size", [50_000, pytest.param(400_000, marks=pytest.mark.slow)])
def test_a_connection_that_reads_nothing_gets_no_more_answers_than_its_limit(virtually: Any, size: int) -> None:
    begun = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal begun
        begun += 1
        await answer(send, bytes(size))

    async def test(loop: Any) -> None:
        async with listening(app, unread_bytes=400_000, buffer_bytes=100_000) as listener:
            slow = await reluctant(listener)
            slow.ask(100)
            await sleep(5.0)
            (protocol,) = listener.protocols
            assert protocol.quic.buffered_bytes <= 500_000 and begun <= 9
            other = await connect("127.0.0.1", listener.port, trusting())
            assert len(await whole(ask(other))) == size  # which is no one else's trouble
            await other.end()
            await slow.client.end()

    virtually(test)


def test_a_request_that_waits_for_room_begins_with_the_datagram_that_makes_it(virtually: Any) -> None:
    """It was looked at before what the datagram acknowledged was taken off, and waited for another: 10 s."""
    begun_s: dict[str, float] = {}

    async def test(loop: Any) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            begun_s[scope["path"]] = loop.time()
            await answer(send, bytes(5000))

        async with listening(app, unread_bytes=1) as listener, connected(listener) as client:
            first = ask(client, "/first")
            await sleep(0.015)  # its answer is on the way
            second = ask(client, "/second")
            assert [len(await whole(one)) for one in (first, second)] == [5000, 5000]
            assert 0.02 <= begun_s["/second"] - begun_s["/first"] < 0.1

    virtually(test)


@pytest.mark.slow
def test_what_all_connections_hold_is_bounded(virtually: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await sleep(0.1)  # all have begun when the first answers
        await answer(send, bytes(50_000))

    async def test(loop: Any) -> None:
        async with listening(app, unread_total_bytes=2_000_000) as listener:
            greedy, modest = await reluctant(listener), await reluctant(listener)
            modest.ask(8)
            greedy.ask(100)
            await sleep(1.0)
            assert isinstance(greedy.client.lost, ConnectionLost) and "responses are not read" in str(
                greedy.client.lost
            )
            assert modest.client.lost is None and listener.front.unread.total_bytes <= 2_000_000
            assert sum(protocol.quic.buffered_bytes for protocol in listener.protocols) <= 2_000_000
            assert listener.figures.requests["unread"] == 100
            await modest.client.end()

    virtually(test)


@pytest.mark.slow
def test_an_answer_that_no_one_reads_is_reset_and_the_others_go_on(virtually: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, bytes(20_000))

    async def test(loop: Any) -> None:
        async with listening(app, unread_s=20.0) as listener:
            slow = await reluctant(listener, 8192)
            stuck = ask(slow.client)
            slow.client.quic.hold(stuck._stream_id, 2**30)
            for _ in range(8):
                await sleep(5.0)
                assert len(await whole(ask(slow.client))) == 20_000
            with pytest.raises(BrokenOff, match="0x10c"):
                await whole(stuck)
            await sleep(1.0)
            assert listener.figures.requests == {"answered": 8, "unread": 1}
            assert all(not protocol.exchanges for protocol in listener.protocols)
            await slow.client.end()

    virtually(test)


@pytest.mark.slow
def test_an_answer_that_is_long_in_coming_is_not_unread(virtually: Any) -> None:
    """However short ``unread_s`` is: no one can read what is not written."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await sleep(25.0)
        await answer(send, b"at last")

    async def test(loop: Any) -> None:
        async with listening(app, unread_s=1.0) as listener:
            client = await connect("127.0.0.1", listener.port, trusting())
            assert await whole(ask(client)) == b"at last"
            await client.end()

    virtually(test)


def test_trailers_of_a_body_that_is_answered_already_are_its_end_and_no_request(virtually: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"no", 401)

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            client = await connect("127.0.0.1", listener.port, trusting())
            reply = ask(client, method="POST", body=True)
            assert await whole(reply) == b"no"
            await sleep(1.0)
            (protocol,) = listener.protocols
            assert len(protocol._leftovers._left) == 1 and not protocol.exchanges
            assert client._h3 is not None
            client._h3.send_headers(reply._stream_id, [(b"sum", b"1")], True)
            client.transmit()
            await sleep(1.0)
            assert not protocol._leftovers._left and listener.figures.requests == {"answered": 1}
            await client.end()

    virtually(test)


@pytest.mark.slow
def test_a_slow_client_is_waited_for(virtually: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, bytes(200_000))

    async def test(loop: Any) -> None:
        async with listening(app, unread_s=5.0, idle_s=10.0) as listener:
            client = await connect("127.0.0.1", listener.port, trusting())
            asked_s = loop.time()
            assert len(await whole(ask(client))) == 200_000
            assert loop.time() - asked_s > 15.0 and listener.figures.requests["unread"] == 0
            await client.end()

    virtually(test, rate_bps=100_000)


def test_a_reset_stream_keeps_nothing(virtually: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, bytes(200_000))

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            slow = await reluctant(listener)
            slow.ask(5)
            await sleep(1.0)
            (protocol,) = listener.protocols
            assert protocol.quic.buffered_bytes > 900_000
            for reply in [*slow.client._responses.values()]:
                reply.cancel()
            await sleep(0.015)  # the server knows, and the client cannot have acknowledged that
            assert (
                len(protocol.quic._streams) > 6
                and protocol.quic.buffered_bytes == 0
                and listener.front.unread.total_bytes == 0
            )
            await slow.client.end()

    virtually(test)


@pytest.mark.slow
def test_what_comes_of_a_body_after_its_answer_is_discarded_within_bounds(
    virtually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "MAX_BYTES", 1_000_000)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, await read(receive) if scope["path"] == "/read" else b"no", 401)

    async def upload(listener: Listener, client: H3Client, size: int, end: bool) -> int:
        """How many bytes arrive of a body whose client sends on, whatever it is answered."""
        reply = ask(client, method="POST", body=True)
        assert await whole(reply) == b"no" and reply.status == 401
        before = listener.figures.traffic.received_bytes
        client.send_body(reply._stream_id, bytes(size), end)
        await sleep(5.0)
        return listener.figures.traffic.received_bytes - before

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            client = await connect("127.0.0.1", listener.port, trusting())
            (protocol,) = listener.protocols
            assert await upload(listener, client, 900_000, end=True) > 900_000
            assert not protocol._leftovers._left
            taken = await upload(listener, client, 5_000_000, end=False)
            assert 1_000_000 < taken < 1_700_000 and not protocol._leftovers._left
            assert await upload(listener, client, 10, end=False) and len(protocol._leftovers._left) == 1
            await sleep(leftovers.MAX_S)
            assert not protocol._leftovers._left and len(protocol.quic._streams) <= 6
            await client.end()

    virtually(test)


@pytest.mark.slow
def test_a_client_that_acknowledges_nothing_is_not_waited_for_though_it_pings(virtually: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, bytes(100_000))

    async def test(loop: Any) -> None:
        async with listening(app, unread_s=20.0) as listener:
            deaf = await connect("127.0.0.1", listener.port, trusting(keep_alive_s=2.0), settled=True)
            deaf.datagram_received = lambda *_: None  # type: ignore[method-assign]
            for _ in range(10):
                ask(deaf)
            await sleep(15.0)
            (protocol,) = listener.protocols
            assert protocol.quic.buffered_bytes > 1_000_000
            await sleep(20.0)
            assert protocol.quic.buffered_bytes == 0 and not protocol.exchanges
            assert listener.figures.requests == {"unread": 10}
            await deaf.end()

    virtually(test)
