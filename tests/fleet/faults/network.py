"""HTTP between processes in virtual time: messages that take time, connections that break, links that are cut.

:class:`SimulatedSession` stands in for ``aiohttp.ClientSession``: the clients of gateways and agents are used as they
are. A server is an ASGI app in a process.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from tests.fleet.faults.kernel import Kernel, Process

App = Callable[[Any, Any, Any], Any]
_REFUSED: Final = SimpleNamespace(host="simulated", port=0, ssl=None, is_ssl=False)
_LATENCY_S: Final = 0.003


class Broken(Exception):
    """A connection broke off."""


@dataclass(eq=False)
class Exchange:
    """One request and its response. parts: those of the body that have come and are not read."""

    client: Process
    server: Process
    head: "asyncio.Future[tuple[int, list[tuple[bytes, bytes]]]]"
    left: "asyncio.Future[None]"
    parts: deque[bytes] = field(default_factory=deque)
    is_whole: bool = False
    broken: bool = False
    is_closed: bool = False
    told_s: dict[str, float] = field(default_factory=dict)
    wakes: "asyncio.Future[None] | None" = None

    def _wake(self) -> None:
        if self.wakes is not None and not self.wakes.done():
            self.wakes.set_result(None)

    def take(self, part: bytes, *, last: bool) -> None:
        if part:
            self.parts.append(part)
        self.is_whole = self.is_whole or last
        self._wake()

    def reset(self) -> None:
        if not self.is_whole:
            self.broken = True
            if not self.head.done():
                self.head.set_exception(Broken("the server ended the connection before its response"))
                self.head.exception()  # it may not be looked at
            self._wake()

    async def read(self) -> bytes:
        """Return the next part, nothing at the end. Raises: Broken."""
        while not self.parts:
            if self.is_whole:
                return b""
            if self.broken or self.is_closed:
                raise Broken("the connection broke off within the response")
            self.wakes = asyncio.get_running_loop().create_future()
            await self.wakes
        return self.parts.popleft()


class Network:
    """All connections, and the links that are cut."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._servers: dict[str, tuple[Process, App]] = {}
        self._open: dict[Exchange, None] = {}
        self._cut: dict[frozenset[str], list[Callable[[], None]]] = {}

    def listen(self, path: str, process: Process, app: App) -> None:
        """Serve an app behind a path, until the process ends."""
        self._servers[path] = process, app
        process.on_death.append(lambda: self._died(process))

    def cut(self, one: str, other: str) -> None:
        """Deliver nothing between two places from now on."""
        self._cut.setdefault(frozenset((one, other)), [])

    def heal(self, one: str, other: str) -> None:
        """Deliver again, also what was sent meanwhile."""
        for call in self._cut.pop(frozenset((one, other)), []):
            call()

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._cut

    def server(self, path: str) -> Process | None:
        found = self._servers.get(path)
        return found[0] if found is not None and found[0].is_alive else None

    def request(
        self,
        client: Process,
        path: str,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]],
        body: Sequence[bytes],
        *,
        breaks_off: bool = False,
    ) -> Exchange:
        """Send a request to the server behind a path. breaks_off: the client leaves within its body."""
        server, app = self._servers[path]
        exchange = Exchange(client, server, client.create_future(), server.create_future())
        self._open[exchange] = None
        route, _, query = target.partition("?")
        raw = [(name.lower().encode(), value.encode()) for name, value in headers]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": route,
            "raw_path": target.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": raw,
            "client": ("simulated", 1),
            "server": ("simulated", 80),
        }
        messages = deque(
            {"type": "http.request", "body": part, "more_body": breaks_off or number < len(body) - 1}
            for number, part in enumerate(body)
        )
        if breaks_off:
            messages.append({"type": "http.disconnect"})

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.popleft()
            await asyncio.shield(exchange.left)
            return {"type": "http.disconnect"}

        self._deliver(
            exchange, client, server, lambda: self._serve(exchange, app(scope, receive, self._sender(exchange)))
        )
        return exchange

    def close(self, exchange: Exchange) -> None:
        """Have the client leave."""
        if not exchange.is_closed:
            exchange.is_closed = True
            exchange._wake()
            self._open.pop(exchange, None)
            if not exchange.is_whole:
                self._leave(exchange)

    def _serve(self, exchange: Exchange, serving: Any) -> None:
        def over(task: "asyncio.Task[None]") -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                expected = isinstance(error, OSError | Broken) or type(error).__name__ in (
                    "BrokenResponse",
                    "ClientDisconnect",
                )
                if not expected:
                    exchange.server.faults.append(f"an app raised {error!r}")
            self._to_client(exchange, exchange.reset)

        exchange.server.create_task(serving).add_done_callback(over)

    def _sender(self, exchange: Exchange) -> Callable[[Mapping[str, Any]], Any]:
        async def send(message: Mapping[str, Any]) -> None:
            if exchange.left.done():
                return
            if message["type"] == "http.response.start":
                head = message["status"], list(message.get("headers", ()))

                def begin() -> None:
                    if not exchange.head.done():
                        exchange.head.set_result(head)

                self._to_client(exchange, begin)
            else:
                part, last = bytes(message.get("body", b"")), not message.get("more_body", False)
                self._to_client(exchange, lambda: exchange.take(part, last=last))
                exchange.server.reach_send()

        return send

    def _to_client(self, exchange: Exchange, call: Callable[[], None]) -> None:
        self._deliver(exchange, exchange.server, exchange.client, call)

    def _leave(self, exchange: Exchange) -> None:
        def leave() -> None:
            if not exchange.left.done():
                exchange.left.set_result(None)

        self._deliver(exchange, exchange.client, exchange.server, leave)

    def _deliver(self, exchange: Exchange, one: Process, other: Process, call: Callable[[], None]) -> None:
        """Have the other process make a call, in the order of what the one sends over this connection."""
        link = frozenset((one.place, other.place))
        if link in self._cut:
            self._cut[link].append(lambda: self._deliver(exchange, one, other, call))
            return
        due_s = self._kernel.now_s + float(self._kernel.rng.exponential(_LATENCY_S))
        due_s = exchange.told_s[other.name] = max(due_s, exchange.told_s.get(other.name, 0.0))
        self._kernel.at(other, due_s, call)

    def _died(self, process: Process) -> None:
        for exchange in list(self._open):
            if exchange.server is process:
                self._open.pop(exchange)
                self._to_client(exchange, exchange.reset)
            elif exchange.client is process:
                self._open.pop(exchange)
                self._leave(exchange)


class SimulatedSession:
    """What clients use of ``aiohttp.ClientSession``, over the network of a world."""

    network: Network

    def __init__(self, *, connector: Any, timeout: aiohttp.ClientTimeout | None = None, **_: Any) -> None:
        self._path, self._timeout = connector.path, timeout or aiohttp.ClientTimeout()
        self._process = cast(Process, asyncio.get_running_loop())
        self._exchanges: list[Exchange] = []

    def request(self, method: str, url: Any, **given: Any) -> "_Requesting":
        return _Requesting(self._send(method, URL(url) if isinstance(url, str) else url, **given))

    def get(self, url: Any, **given: Any) -> "_Requesting":
        return self.request("GET", url, **given)

    def post(self, url: Any, **given: Any) -> "_Requesting":
        return self.request("POST", url, **given)

    async def close(self) -> None:
        for exchange in self._exchanges:
            self.network.close(exchange)

    async def _send(
        self,
        method: str,
        url: URL,
        *,
        data: bytes | None = None,
        json: Any = None,
        params: Mapping[str, Any] | None = None,
        headers: Any = (),
        timeout: aiohttp.ClientTimeout | None = None,
        **_: Any,
    ) -> "SimulatedResponse":
        network, timeout = self.network, timeout or self._timeout
        server = network.server(self._path)
        if server is not None and network.is_cut(self._process.place, server.place):
            await asyncio.sleep(timeout.total or timeout.sock_connect or 5.0)
            raise aiohttp.ConnectionTimeoutError("no connection in time")
        await asyncio.sleep(0)
        if server is None or not server.is_alive:
            raise aiohttp.ClientConnectorError(cast(Any, _REFUSED), OSError(111, "connection refused"))
        body = data or b"" if json is None else _dumped(json)
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        pairs.append(("content-length", str(len(body))))
        target = url.raw_path + (f"?{url.raw_query_string}" if url.raw_query_string else "")
        if params:
            target += "?" + "&".join(f"{name}={value}" for name, value in params.items())
        exchange = network.request(self._process, self._path, method, target, pairs, [body])
        self._exchanges = [*(one for one in self._exchanges if not (one.is_closed or one.is_whole)), exchange]
        try:
            async with asyncio.timeout(timeout.total or timeout.sock_read):
                status, raw = await exchange.head
        except Broken as error:
            raise aiohttp.ServerDisconnectedError(str(error)) from None
        except BaseException:
            network.close(exchange)
            raise
        return SimulatedResponse(network, exchange, status, raw, timeout.sock_read)


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


class _Requesting:
    def __init__(self, sending: Any) -> None:
        self._sending = sending

    def __await__(self) -> Any:
        return self._sending.__await__()

    async def __aenter__(self) -> "SimulatedResponse":
        self._response = await self._sending
        return self._response

    async def __aexit__(self, *_: object) -> None:
        self._response.close()


class SimulatedResponse:
    """What clients use of ``aiohttp.ClientResponse``."""

    connection = None
    """There is no transport whose reading could pause."""

    def __init__(
        self,
        network: Network,
        exchange: Exchange,
        status: int,
        raw: Sequence[tuple[bytes, bytes]],
        silent_s: float | None,
    ) -> None:
        self._network, self._exchange = network, exchange
        self.status, self.raw_headers = status, tuple(raw)
        self.headers = CIMultiDict((name.decode(), value.decode()) for name, value in raw)
        self.content = _Content(exchange, silent_s)
        length = self.headers.get("content-length")
        self.content_length = None if length is None else int(length)
        self.content_type = self.headers.get("content-type", "application/octet-stream").partition(";")[0]

    def close(self) -> None:
        self._network.close(self._exchange)

    release = close


class _Content:
    def __init__(self, exchange: Exchange, silent_s: float | None) -> None:
        self._exchange, self._silent_s = exchange, silent_s

    async def readany(self) -> bytes:
        try:
            async with asyncio.timeout(self._silent_s):
                return await self._exchange.read()
        except TimeoutError:
            raise aiohttp.SocketTimeoutError("nothing came for too long") from None
        except Broken as error:
            raise aiohttp.ClientPayloadError(str(error)) from None

    async def read(self, most: int = -1) -> bytes:
        if most == 0:
            return b""
        part = await self.readany()
        if 0 < most < len(part):
            self._exchange.parts.appendleft(part[most:])
            part = part[:most]
        return part

    async def iter_any(self) -> AsyncIterator[bytes]:
        while part := await self.readany():
            yield part

    def at_eof(self) -> bool:
        return self._exchange.is_whole and not self._exchange.parts
