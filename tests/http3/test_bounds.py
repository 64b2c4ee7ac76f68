"""What clients may make a listener hold: in memory and in virtual time, where a minute of silence costs nothing."""

import datetime
from asyncio import create_task, sleep
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aioquic.buffer import Buffer
from aioquic.h3.connection import H3Connection
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode, QuicPacketType, pull_quic_header
from aioquic.tls import CipherSuite, SessionTicket

from sloserve.http3 import server_connection
from sloserve.http3.certificates import make_certificate, write_certificate
from sloserve.http3.client_connection import ConnectionLost, connect
from sloserve.http3.listener import HANDSHAKE_S, Listener
from tests.http3.serving import answer, ask, listening, read, trusting, whole

CLIENT, SERVER = ("192.0.2.1", 1), ("192.0.2.9", 9)


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    await answer(send, await read(receive))


def kinds(datagram: bytes) -> Iterator[QuicPacketType]:
    """Of the packets in it."""
    buf = Buffer(data=datagram)
    while not buf.eof() and datagram[buf.tell()]:  # what follows is padding
        start = buf.tell()
        header = pull_quic_header(buf, host_cid_length=8)
        yield header.packet_type
        buf.seek(start + header.packet_length)


class Stranger:
    """A client that does as it pleases: it sends datagrams from any address, and what it is sent lies in ``got``."""

    def __init__(self, listener: Listener, address: tuple[str, int] = CLIENT, **configuration: Any) -> None:
        self.listener = listener
        self.address = address
        self.got: list[bytes] = []
        settings = QuicConfiguration(
            is_client=True, alpn_protocols=["h3"], verify_mode=0, server_name="localhost", **configuration
        )
        self.quic = QuicConnection(configuration=settings)
        listener._transport = self  # type: ignore[assignment]

    def sendto(self, data: bytes, addr: Any) -> None:
        if addr == self.address:
            self.got.append(data)

    def close(self) -> None:
        self.listener.connection_lost(None)

    def connect(self, now_s: float) -> None:
        self.quic.connect(SERVER, now=now_s)

    def send(self, now_s: float) -> list[bytes]:
        sent = [data for data, _ in self.quic.datagrams_to_send(now_s)]
        for data in sent:
            self.listener.datagram_received(data, self.address)
        return sent

    async def converse(self, loop: Any, rounds: int = 30) -> None:
        """To and fro, for a while."""
        for _ in range(rounds):
            got, self.got = self.got, []
            for data in got:
                self.quic.receive_datagram(data, SERVER, loop.time())
            self.send(loop.time())
            await sleep(0.01)

    def told(self) -> list[QuicPacketType]:
        return [kind for data in self.got for kind in kinds(data)]


@pytest.mark.slow
def test_handshakes_that_do_not_end_are_bounded_and_given_up(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        async with listening(nothing, handshakes_per_s=5, retry_above=8) as listener:
            strangers = [Stranger(listener, (f"192.0.2.{number}", 1)) for number in range(1, 20)]
            for stranger in strangers:
                listener._transport = stranger  # type: ignore[assignment]
                stranger.connect(loop.time())
                stranger.send(loop.time())
            assert len(listener.protocols) == 8
            assert [stranger.told() for stranger in strangers[8:]] == [[QuicPacketType.RETRY]] * 11
            for stranger in strangers[8:]:  # these can prove their address
                listener._transport = stranger  # type: ignore[assignment]
                (retry,), stranger.got = stranger.got, []
                stranger.quic.receive_datagram(retry, SERVER, loop.time())
                stranger.send(loop.time())
            handshakes = listener.figures.handshakes
            assert len(listener.protocols) == 10 and handshakes == {"retried": 11, "rate": 9}  # a burst of two seconds
            await sleep(HANDSHAKE_S + 30.0)
            assert not listener.protocols and not listener._by_id
            assert handshakes == {"retried": 11, "rate": 9, "timed-out": 10}

    virtually(test)


@pytest.mark.slow
def test_a_silent_connection_ends_and_one_that_is_used_stays(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        async with listening(nothing, idle_s=30.0) as listener:
            silent = await connect("127.0.0.1", listener.port, trusting())
            used = await connect("127.0.0.1", listener.port, trusting(keep_alive_s=10.0))
            assert await whole(ask(silent)) == b""
            await sleep(25.0)
            assert len(listener.protocols) == 2
            await sleep(25.0)
            assert len(listener.protocols) == 1 and silent.lost is not None
            assert await whole(ask(used)) == b""
            await used.end()

    virtually(test)


@pytest.mark.slow
def test_a_client_that_waits_in_silence_is_kept_and_one_that_is_gone_is_not(virtually: Any) -> None:
    ended = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        waits = scope["path"] == "/slow"
        if not waits:
            ended.append((await receive())["type"])
        await sleep(300.0 if waits else 0.0)
        await answer(send, b"at last")

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            client = await connect("127.0.0.1", listener.port, trusting())
            assert await whole(ask(client, "/slow")) == b"at last"
            ask(client, "/never")
            await sleep(1.0)
            client._transport.close()  # it says no more
            await sleep(90.0)
            assert ended == ["http.disconnect"] and not listener.protocols

    virtually(test)


@pytest.mark.slow
def test_cancelled_requests_are_bounded_but_for_a_client_with_a_certificate(
    virtually: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they are cancelled: also one that was sent in whole, so that only its answer is refused."""
    monkeypatch.setattr(server_connection, "SPARE_RESETS", 8)
    ca_file, _ = write_certificate(tmp_path, authority := make_certificate(("authority",), authority=True), "authority")
    own = write_certificate(tmp_path, make_certificate(("edge",), authority), "edge")
    shown = {"certfile": str(own[0]), "keyfile": str(own[1])}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def cancelled(listener: Listener, body: bool, **settings: str) -> int:
        client = await connect("127.0.0.1", listener.port, trusting(**settings))
        count = 0
        while count < 30 and client.lost is None:
            reply = ask(client, method="POST", body=body)
            await sleep(0.05)
            reply.cancel()
            await sleep(0.05)
            count += 1
        for end in (client, *listener.protocols):  # what is over is forgotten
            assert end._h3 is not None and len(end._h3._stream) <= 6
        await client.end()
        return count

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            assert all([8 < await cancelled(listener, body) < 12 for body in (True, False)])
        async with listening(app, client_ca=str(ca_file)) as listener:
            assert await cancelled(listener, True, **shown) == 30

    virtually(test)


def test_early_data_of_a_client_with_a_ticket_is_not_taken(virtually: Any) -> None:
    """It could be sent again by anyone who saw it."""
    now = datetime.datetime.now(datetime.UTC)  # noqa: TID251 - tickets are dated by the calendar
    hour = datetime.timedelta(hours=1)
    suite = CipherSuite.AES_128_GCM_SHA256
    ticket = SessionTicket(0, suite, now + hour, now - hour, bytes(32), "localhost", bytes(32), 2**32 - 1)
    served = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        served.append(await read(receive))
        await answer(send, b"")

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            stranger = Stranger(listener, session_ticket=ticket)
            tickets: list[Any] = []
            stranger.quic._session_ticket_handler = tickets.append
            stranger.connect(loop.time())
            stranger.quic._remote_max_streams_bidi = stranger.quic._remote_max_streams_uni = 8
            stranger.quic._remote_max_data = stranger.quic._remote_max_stream_data_bidi_remote = 2**16
            stranger.quic._remote_max_stream_data_uni = 2**16
            h3 = H3Connection(stranger.quic)
            head = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")]
            h3.send_headers(0, head)
            h3.send_data(0, b"early", end_stream=True)
            first_flight = stranger.send(loop.time())
            assert QuicPacketType.ZERO_RTT in [kind for data in first_flight for kind in kinds(data)]
            await stranger.converse(loop)
            assert stranger.quic._handshake_complete and not stranger.quic.tls.early_data_accepted
            before = list(served)
            for datagram in first_flight:  # whoever recorded it sends it again
                listener.datagram_received(datagram, CLIENT)
            await sleep(1.0)
            assert served == before and tickets == []
            assert all(protocol.quic._session_ticket_handler is None for protocol in listener.protocols)

    virtually(test)


@pytest.mark.slow
def test_a_client_that_keeps_no_limit_of_streams_loses_its_connection(virtually: Any) -> None:
    served = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope)

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            stranger = Stranger(listener)
            stranger.connect(loop.time())
            await stranger.converse(loop)
            stranger.quic._remote_max_streams_bidi = 1000
            (protocol,) = listener.protocols
            for number in range(1000):
                stranger.quic.send_stream_data(4 * number, b"\x00")
            await stranger.converse(loop)
            assert len(protocol.quic._streams) <= 128 + 6
            assert protocol.quic._close_event.error_code == QuicErrorCode.STREAM_LIMIT_ERROR
            assert not listener.protocols and not served

    virtually(test)


@pytest.mark.slow
@pytest.mark.parametrize(("connections", "requests"), [(1, 300), pytest.param(8, 1000, marks=pytest.mark.slow)])
def test_many_requests_at_once_have_their_turn(virtually: Any, connections: int, requests: int) -> None:
    """Those beyond 128 of a connection wait at the client, where they are not open yet."""
    running = most = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await sleep(0.1)
        running -= 1
        await answer(send, b"")

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            clients = [await connect("127.0.0.1", listener.port, trusting()) for _ in range(connections)]
            replies = [ask(clients[number % connections]) for number in range(requests)]
            await sleep(0.05)
            assert all(len(protocol.quic._streams) <= 128 + 6 for protocol in listener.protocols)
            assert {await whole(reply) for reply in replies} == {b""}
            await sleep(0.1)
            for protocol in listener.protocols:  # what has arrived is forgotten
                assert not protocol.exchanges and len(protocol.quic._order._states) <= 2 * 134 + 64
            for client in clients:
                await client.end()
        assert 125 * min(connections, 8) <= most <= 2 * 128 * connections

    virtually(test)


def test_a_client_that_shakes_hands_while_a_stop_begins_is_told_of_it(virtually: Any) -> None:
    async def test(loop: Any) -> None:
        async with listening(nothing) as listener:
            connecting = create_task(connect("127.0.0.1", listener.port, trusting()))
            await sleep(0.015)  # its first datagram has come, and its last of the handshake has not
            (protocol,) = listener.protocols
            assert not protocol.shook_hands
            listener.going_away()
            client = await connecting
            await sleep(0.1)
            assert protocol.shook_hands and not client.usable  # it goes elsewhere
            await client.end()

    virtually(test)


@pytest.mark.slow
def test_clients_are_told_of_a_stop_at_once_and_have_their_answers_in_time(virtually: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        await sleep(30.0)
        await answer(send, b"x" * 200_000)

    async def test(loop: Any) -> None:
        async with listening(app) as listener:
            client, silent = [await connect("127.0.0.1", listener.port, trusting()) for _ in range(2)]
            begun = ask(client)
            await sleep(1.0)
            listener.going_away()
            await sleep(0.02)
            assert not client.usable and not silent.usable  # they go elsewhere
            with pytest.raises(ConnectionLost, match="0x2"):
                await connect("127.0.0.1", listener.port, trusting())
            assert loop.time() < 1002.0
            await sleep(25.0)
            stopping = create_task(listener.stop(linger_s=60.0))
            assert await whole(begun) == b"x" * 200_000
            await stopping
            assert loop.time() < 1040.0

    virtually(test, rate_bps=1e6)
