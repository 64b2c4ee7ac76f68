"""Whatever a client sends, it harms its own connection at most: the listener goes on, the application sees no error."""

import asyncio
import contextlib
import logging
from typing import Any

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import encode_frame
from hypothesis import given, settings
from hypothesis import strategies as st

from sloserve.http3.listener import Listener
from tests import bounded
from tests.http3.serving import PSEUDO, ask, connected, echo, header_block, listening, run, whole, write

pytestmark = pytest.mark.slow

FRAME_TYPES = st.sampled_from([0x0, 0x1, 0x2, 0x3, 0x4, 0x5, 0x7, 0xD, 0x21, 0x41, 0xF0700, 0xF0701, 2**61])
NAMES = [
    "content-length",
    "priority",
    "cookie",
    "x-slo-e2e-ms",
    "x-slo-class",
    "te",
    "connection",
    ":path",
    ":method",
    "",
]
FIELD = st.one_of(st.sampled_from([name.encode() for name in NAMES]), st.just(b"x-any"), st.binary(max_size=12))
VALUE = st.one_of(st.sampled_from([b"GET", b"CONNECT", b"/", b"*", b"a", b"-1", b"u=9", b"1"]), st.binary(max_size=12))


FIELDS = st.lists(st.tuples(FIELD, VALUE), max_size=3)
GOOD_HEADERS = encode_frame(1, header_block(PSEUDO))
HEADERS = st.one_of(
    st.just(GOOD_HEADERS),
    FIELDS.map(lambda fields: encode_frame(1, header_block(fields))),
    FIELDS.map(lambda fields: encode_frame(1, header_block(PSEUDO + fields))),
)
FRAMES = st.lists(
    st.one_of(
        HEADERS,
        st.tuples(FRAME_TYPES, st.binary(max_size=60)).map(lambda frame: encode_frame(*frame)),
        st.tuples(FRAME_TYPES, st.integers(0, 2**62 - 1)).map(lambda f: encode_uint_var(f[0]) + encode_uint_var(f[1])),
        st.binary(max_size=60),
    ),
    max_size=6,
)
KIND = st.sampled_from(["request", "request", "control", "encoder", "decoder", "other"])
REQUESTS = st.tuples(HEADERS, FRAMES).map(lambda parts: [parts[0], *parts[1]])
STREAMS = st.lists(st.tuples(KIND, st.one_of(FRAMES, REQUESTS), st.booleans()), max_size=4)


def test_frames_of_any_kind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    served = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        served.append(scope["path"])
        await echo(scope, receive, send)

    async def visit(listener: Listener, streams: Any) -> None:
        async with connected(listener) as client:
            for kind, frames, end in streams:
                write(client, kind, b"".join(frames), end)
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(client.ping(), 20)

    async def check(listener: Listener) -> None:
        async with connected(listener) as client:
            reply = ask(client, method="POST", body=True)
            await reply.send(b"still here", end=True)
            assert await whole(reply) == b"still here"

    with bounded.within("forty visits of each kind", 240.0), asyncio.Runner() as runner:
        opened = listening(app, connections_per_address=256)
        listener = runner.run(opened.__aenter__())

        @settings(max_examples=40)
        @given(STREAMS)
        def example(streams: Any) -> None:
            runner.run(visit(listener, streams))

        example()
        runner.run(check(listener))
        runner.run(opened.__aexit__(None, None, None))
    assert caplog.records == []
    assert served


def test_datagrams_of_any_kind(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    sent: list[bytes] = []

    async def test() -> None:
        async with listening(echo) as listener:
            receive = listener.datagram_received
            listener.datagram_received = lambda data, addr: (sent.append(data), receive(data, addr))  # type: ignore[method-assign]
            async with connected(listener) as client:
                await whole(ask(client))
            listener.datagram_received = receive  # type: ignore[method-assign]

            @settings(max_examples=400)
            @given(
                st.sampled_from(sent),
                st.lists(st.tuples(st.integers(0, 1199), st.integers(0, 255)), max_size=5),
                st.integers(0, 1500),
            )
            def example(datagram: bytes, changes: list[tuple[int, int]], size: int) -> None:
                changed = bytearray(datagram[: max(size, 1)])
                for at, value in changes:
                    changed[at % len(changed)] = value
                listener.datagram_received(bytes(changed), ("127.0.0.1", 9))

            example()
            assert len(listener.protocols) <= 33
            async with connected(listener) as client:
                assert await whole(ask(client)) == b""

    run(test())
    assert caplog.records == []
