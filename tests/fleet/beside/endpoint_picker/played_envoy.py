"""Envoy's half of external processing, in full-duplex mode as the Gateway API's inference extension configures it."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from sloserve.fleet.beside.endpoint_picker.messages import (
    FULL_DUPLEX,
    METHOD,
    SERVICE,
    ProcessingRequest,
    ProcessingResponse,
)

DESTINATION = "x-gateway-destination-endpoint"


def chat(text: str = "Hello", **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


@dataclass
class Seen:
    """What a picker said of a request: Envoy's view of it.

    Args:
        server: value of the header, or empty.
        metadata: value of the dynamic metadata, or empty.
        body: the body that goes to the server.
        ended: whether its last piece says that it is the last.
        status: status of an immediate response, 0 for none.
    """

    server: str = ""
    metadata: str = ""
    body: bytes = b""
    ended: bool = False
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    refusal: dict[str, Any] = field(default_factory=dict)
    pieces: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)


def take(seen: Seen, message: Any) -> None:
    """Apply what a picker says."""
    kind = message.WhichOneof("response")
    seen.kinds.append(kind)
    if message.HasField("dynamic_metadata"):
        seen.metadata = message.dynamic_metadata["envoy.lb"][DESTINATION]
    if kind == "immediate_response":
        made = message.immediate_response
        seen.status = made.status.code
        seen.headers = {one.header.key: one.header.raw_value.decode() for one in made.headers.set_headers}
        seen.refusal = json.loads(made.body)
    elif kind in ("request_headers", "request_body"):
        common = getattr(message, kind).response
        for option in common.header_mutation.set_headers:
            assert option.append_action == 2, "a client's own header must be replaced"
            seen.server = {DESTINATION: option.header.raw_value.decode()}[option.header.key]
        if common.HasField("body_mutation"):
            streamed = common.body_mutation.streamed_response
            seen.body += streamed.body
            seen.pieces.append(len(streamed.body))
            seen.ended = streamed.end_of_stream


def headers_message(
    headers: Iterable[tuple[str, str]] = (),
    *,
    subset: Sequence[str] | str | None = None,
    end: bool = False,
    mode: int | None = FULL_DUPLEX,
    path: str = "/v1/chat/completions",
) -> Any:
    made = ProcessingRequest()
    for name, value in ((":method", "POST"), (":path", path), ("content-type", "application/json"), *headers):
        made.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    made.request_headers.end_of_stream = end
    if subset is not None:
        hint = made.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        key = "x-gateway-destination-endpoint-subset"
        if isinstance(subset, str):
            hint[key] = subset
        else:
            hint.get_or_create_list(key).extend(subset)
    if mode is not None:
        made.protocol_config.request_body_mode = made.protocol_config.response_body_mode = mode
    return made


def body_message(body: bytes, *, end: bool, kind: str = "request_body") -> Any:
    made = ProcessingRequest()
    getattr(made, kind).body, getattr(made, kind).end_of_stream = body, end
    return made


def response_message(status: int = 200, served: str | None = None) -> Any:
    made = ProcessingRequest()
    made.response_headers.headers.headers.add(key=":status", raw_value=str(status).encode())
    if served is not None:
        made.metadata_context.filter_metadata["envoy.lb"]["x-gateway-destination-endpoint-served"] = served
    return made


class Stream:
    """One request on its way through Envoy."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.seen = Seen()

    async def say(self, *messages: Any) -> None:
        for message in messages:
            await self._call.write(message)

    async def hear(self) -> Any:
        """Take in the next message of the picker."""
        message = await self._call.read()
        assert message is not grpc.aio.EOF, "the picker has ended the stream"
        take(self.seen, message)
        return message

    async def ask(self, body: bytes | Sequence[bytes] = b"{}", **given: Any) -> Seen:
        """Send a request, and return what the picker said up to the end of the body that goes to the server."""
        parts = [body] if isinstance(body, bytes) else list(body)
        await self.say(headers_message(**given))
        for place, part in enumerate(parts, 1):
            await self.say(body_message(part, end=place == len(parts)))
        while not self.seen.ended and not self.seen.status:
            await self.hear()
        return self.seen

    async def answered(self, *parts: bytes, status: int = 200, served: str | None = None) -> None:
        """Send the server's response, to its end."""
        await self.say(response_message(status, served))
        assert (await self.hear()).WhichOneof("response") == "response_headers"
        for place, part in enumerate(parts or (b"{}",), 1):
            await self.say(body_message(part, end=place == len(parts or (1,)), kind="response_body"))
            streamed = (await self.hear()).response_body.response.body_mutation.streamed_response
            assert streamed.body == part

    async def close(self) -> None:
        await self._call.done_writing()
        assert await self._call.read() is grpc.aio.EOF


@contextlib.asynccontextmanager
async def envoy(port: int, credentials: Any = None) -> AsyncIterator[Any]:
    """Connect to a picker; the value makes a stream for each request."""
    options: list[tuple[str, Any]] = [("grpc.ssl_target_name_override", "localhost")]
    options += [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", 1 << 16)]
    made = (
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
        if credentials is None
        else grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)
    )
    async with made as channel:
        method = channel.stream_stream(
            f"/{SERVICE}/{METHOD}", ProcessingRequest.SerializeToString, ProcessingResponse.FromString
        )
        yield lambda: Stream(method())
