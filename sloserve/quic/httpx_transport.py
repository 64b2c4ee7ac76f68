"""HTTP/3 under httpx, hence under OpenAI's SDK::

    import httpx, openai
    from sloserve.quic.httpx_transport import H3Transport

    http_client = httpx.AsyncClient(transport=H3Transport())
    client = openai.AsyncOpenAI(base_url="https://localhost:8000/v1", http_client=http_client)

One connection per origin carries all requests. A request that a lost connection did not begin is tried once more.
"""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

import httpx

from sloserve.quic.asgi import HOP_BY_HOP
from sloserve.quic.client import Broken, H3Client, Headers, HeadersTooLarge, Lost, Refused, Reply, connect
from sloserve.quic.client_settings import ClientSettings


class _Stream(httpx.AsyncByteStream):
    def __init__(self, reply: Reply, request: httpx.Request) -> None:
        self._reply = reply
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._reply.body():
                yield part
        except (Lost, Broken) as error:
            raise httpx.ReadError(str(error), request=self._request) from error

    async def aclose(self) -> None:
        self._reply.cancel()


class H3Transport(httpx.AsyncBaseTransport):
    """Sends requests over HTTP/3. settings: of the client's side of each connection."""

    def __init__(self, settings: ClientSettings | None = None) -> None:
        self._settings = settings or ClientSettings()
        self._clients: dict[tuple[str, int], H3Client] = {}
        self._lock = asyncio.Lock()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin = (request.url.host, request.url.port or 443)
        for attempt in (1, 2):
            try:
                reply = await self._send(await self._client(origin, request), request)
                break
            except Refused as error:
                if attempt == 2:
                    raise httpx.ConnectError(str(error), request=request) from error
            except (Lost, Broken) as error:
                raise httpx.ReadError(str(error), request=request) from error
            except HeadersTooLarge as error:
                raise httpx.LocalProtocolError(str(error), request=request) from error
        headers = [(name, value) for name, value in reply.headers]
        return httpx.Response(
            reply.status, headers=headers, stream=_Stream(reply, request), extensions={"http_version": b"HTTP/3"}
        )

    async def _send(self, client: H3Client, request: httpx.Request) -> Reply:
        headers = head(request.method.encode(), request.url.netloc, request.url.raw_path, request.headers.raw)
        chunks = aiter(request.stream) if isinstance(request.stream, httpx.AsyncByteStream) else None
        first = None if chunks is None else await anext(chunks, None)
        reply = client.request(headers, body_follows=first is not None)
        try:
            while chunks is not None and first is not None:
                await reply.send(first)
                first = await anext(chunks, None)
                if first is None:
                    await reply.send(b"", end=True)
            await reply.head()
        except BaseException:
            reply.cancel()
            raise
        return reply

    async def _client(self, origin: tuple[str, int], request: httpx.Request) -> H3Client:
        async with self._lock:
            client = self._clients.get(origin)
            if client is None or not client.usable:
                timeout_s = request.extensions.get("timeout", {}).get("connect") or 10.0
                try:
                    client = self._clients[origin] = await connect(*origin, self._settings, timeout_s)
                except Lost as error:
                    raise httpx.ConnectError(str(error), request=request) from error
            return client

    async def aclose(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.end()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.aclose()


def head(method: bytes, authority: bytes, path: bytes, headers: Headers) -> Headers:
    """A request's headers as HTTP/3 has them."""
    pseudo = [(b":method", method), (b":scheme", b"https"), (b":authority", authority), (b":path", path)]
    rest = [(name.lower(), value) for name, value in headers]
    return pseudo + [(name, value) for name, value in rest if name not in HOP_BY_HOP and name != b"host"]
