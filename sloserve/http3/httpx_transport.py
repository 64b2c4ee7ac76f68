"""HTTP/3 under httpx, and so under OpenAI's SDK.

Example::

    import httpx, openai
    from sloserve.http3.httpx_transport import H3Transport

    http_client = httpx.AsyncClient(transport=H3Transport())
    client = openai.AsyncOpenAI(base_url="https://localhost:8000/v1", http_client=http_client)

One connection per origin carries all requests. A request that a lost connection did not begin is tried once more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

import httpx

from sloserve.http3.client_connection import (
    BrokenOff,
    ConnectionLost,
    H3Client,
    H3Response,
    Headers,
    HeadersTooLarge,
    RequestRefused,
    connect,
)
from sloserve.http3.client_settings import ClientSettings
from sloserve.wire.headers import HOP_BY_HOP

Origin = tuple[str, int]
"""Host and port."""


def _timeout_s(request: httpx.Request, kind: str) -> float | None:
    found: float | None = request.extensions.get("timeout", {}).get(kind)
    return found


@asynccontextmanager
async def _within(kind: str, error: type[httpx.TimeoutException], request: httpx.Request) -> AsyncIterator[None]:
    """End the block with ``error`` once it has taken as long as the request's timeout of this kind."""
    timeout_s = _timeout_s(request, kind)
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise error(f"{kind}: nothing for {timeout_s:g} s", request=request) from None


class _ResponseStream(httpx.AsyncByteStream):
    def __init__(self, response: H3Response, request: httpx.Request) -> None:
        self._response = response
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = aiter(self._response.body())
        while True:
            try:
                async with _within("read", httpx.ReadTimeout, self._request):
                    part = await anext(parts)
            except StopAsyncIteration:
                return
            except (ConnectionLost, BrokenOff) as error:
                raise httpx.ReadError(str(error), request=self._request) from error
            yield part

    async def aclose(self) -> None:
        self._response.cancel()


class H3Transport(httpx.AsyncBaseTransport):
    """A transport that sends requests over HTTP/3.

    Args:
        settings: Settings of the client's side of each connection; ``None`` for the defaults.
    """

    def __init__(self, settings: ClientSettings | None = None) -> None:
        self._settings = settings or ClientSettings()
        self._clients: dict[Origin, H3Client] = {}
        self._connecting: dict[Origin, asyncio.Task[H3Client]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin = (request.url.host, request.url.port or 443)
        for attempt in (1, 2):
            try:
                response = await self._send(await self._client(origin, request), request)
                break
            except RequestRefused as error:
                if attempt == 2:
                    raise httpx.ConnectError(str(error), request=request) from error
            except (ConnectionLost, BrokenOff) as error:
                raise httpx.ReadError(str(error), request=request) from error
            except HeadersTooLarge as error:
                raise httpx.LocalProtocolError(str(error), request=request) from error
        headers = [(name, value) for name, value in response.headers]
        return httpx.Response(
            response.status,
            headers=headers,
            stream=_ResponseStream(response, request),
            extensions={"http_version": b"HTTP/3"},
        )

    async def _send(self, client: H3Client, request: httpx.Request) -> H3Response:
        headers = head(request.method.encode(), request.url.netloc, request.url.raw_path, request.headers.raw)
        chunks = aiter(request.stream) if isinstance(request.stream, httpx.AsyncByteStream) else None
        first = None if chunks is None else await anext(chunks, None)
        response = client.request(headers, body_follows=first is not None)
        try:
            while chunks is not None and first is not None:
                async with _within("write", httpx.WriteTimeout, request):
                    await response.send(first)
                first = await anext(chunks, None)
                if first is None:
                    await response.send(b"", end=True)
            async with _within("read", httpx.ReadTimeout, request):
                await response.head()
        except BaseException:
            response.cancel()
            raise
        return response

    async def _client(self, origin: Origin, request: httpx.Request) -> H3Client:
        client = self._clients.get(origin)
        if client is not None and client.usable:
            return client
        connecting = self._connecting.get(origin)
        if connecting is None:
            timeout_s = _timeout_s(request, "connect") or 10.0
            connecting = asyncio.create_task(connect(*origin, self._settings, timeout_s))
            self._connecting[origin] = connecting
            connecting.add_done_callback(lambda done: self._connected(origin, done))
        try:
            return await asyncio.shield(connecting)
        except ConnectionLost as error:
            raise httpx.ConnectError(str(error), request=request) from error

    def _connected(self, origin: Origin, done: "asyncio.Task[H3Client]") -> None:
        del self._connecting[origin]
        if not done.cancelled() and done.exception() is None:
            self._clients[origin] = done.result()

    async def aclose(self) -> None:
        for connecting in [*self._connecting.values()]:
            connecting.cancel()
            await asyncio.wait([connecting])
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
    """Return a request's headers as HTTP/3 has them."""
    pseudo = [(b":method", method), (b":scheme", b"https"), (b":authority", authority), (b":path", path)]
    rest = [(name.lower(), value) for name, value in headers]
    return pseudo + [(name, value) for name, value in rest if name not in HOP_BY_HOP and name != b"host"]
