"""Listeners on 127.0.0.1 for tests, applications for them, and clients that trust them."""

import functools
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aioquic.buffer import encode_uint_var

from sloserve.http3.certificates import CertificateFiles, make_certificate, write_certificate
from sloserve.http3.client_connection import H3Client, H3Response, connect
from sloserve.http3.client_settings import ClientSettings
from sloserve.http3.httpx_transport import head
from sloserve.http3.listener import Listener, listen
from sloserve.wire.optional_http3 import Http3Settings
from tests import bounded

_FOLDER = tempfile.TemporaryDirectory(prefix="sloserve-quic-")


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs an asynchronous test; it may take 30 seconds on a machine that does much else."""
    bounded.run(test)


def reprioritize(client: H3Client, stream_id: int, field: str) -> None:
    """Sends a PRIORITY_UPDATE (RFC 9218, Sec. 7)."""
    assert client._h3 is not None
    client._h3.send_priority_update(stream_id, field)
    client.transmit_soon()


@functools.cache
def certificate_files() -> tuple[str, str]:
    """Certificate and key for localhost, one pair for all tests."""
    cert, key = write_certificate(Path(_FOLDER.name), make_certificate())
    return str(cert), str(key)


def trusting(**settings: Any) -> ClientSettings:
    return ClientSettings(ca_file=certificate_files()[0], **settings)


@asynccontextmanager
async def listening(
    app: Any, *, classify: Any = None, client_ca: str | None = None, **settings: Any
) -> AsyncIterator[Listener]:
    others = {} if classify is None else {"classify": classify}
    listener = await listen(
        app,
        Http3Settings(**settings),
        CertificateFiles(*certificate_files()),
        ("127.0.0.1", 0),
        client_ca=client_ca,
        **others,
    )
    try:
        yield listener
    finally:
        await listener.stop(linger_s=0.0)


@asynccontextmanager
async def connected(listener: Listener, **settings: Any) -> AsyncIterator[H3Client]:
    client = await connect("127.0.0.1", listener.port, trusting(**settings))
    try:
        yield client
    finally:
        await client.end()


def ask(client: H3Client, path: str = "/", method: str = "GET", body: bool = False, **headers: str) -> H3Response:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return client.request(head(method.encode(), b"localhost", path.encode(), given), body_follows=body)


async def whole(reply: H3Response) -> bytes:
    await reply.head()
    return b"".join([part async for part in reply.body()])


async def read(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def answer(send: Any, body: bytes, status: int = 200, headers: Any = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body that it was sent."""
    await answer(send, await read(receive), headers=[(b"content-type", b"application/octet-stream")])


PSEUDO = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")]
OWN = {"control": 2, "encoder": 6, "decoder": 10}
"""The client's streams of one direction, which it has opened already."""


def header_block(fields: list[tuple[bytes, bytes]]) -> bytes:
    """Literal fields without Huffman coding or tables (RFC 9204, Sec. 4.5.6), which any name and value fit."""
    block = b"\x00\x00"
    for name, value in fields:
        block += bytes([0x20 | min(len(name), 7)]) + (bytes([len(name) - 7]) if len(name) >= 7 else b"")
        block += name + bytes([len(value)]) + value
    return block


def write(client: H3Client, kind: str, data: bytes, end: bool) -> None:
    """Sends bytes as they are on a stream of its own, or on one of those that HTTP/3 has opened."""
    if kind in OWN:
        stream_id, end = OWN[kind], False  # the client itself goes on to write there
    else:
        stream_id = client.quic.get_next_available_stream_id(is_unidirectional=kind == "other")
        data = (encode_uint_var(0x1F) if kind == "other" else b"") + data
    client.quic.send_stream_data(stream_id, data, end)
    client.transmit()
