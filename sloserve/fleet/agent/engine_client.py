"""HTTP to one engine, on its unix socket: requests with responses passed on as they arrive, and control calls."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from sloserve.core.errors import EngineError
from sloserve.fleet.contract.endpoint import MODEL_HEADER, PREFIX_HEADER, Refusal, Refused
from sloserve.fleet.contract.reported_tasks import TASK_HEADER
from sloserve.fleet.streamed import Streamed
from sloserve.fleet.timeouts import limit_reached
from sloserve.wire.headers import HOP_BY_HOP

_URL: Final = "http://engine"
_CONNECT_S: Final = 5.0
_CONTROL_BYTES: Final = 1 << 20
"""Most bytes of the response to a control call."""
_SHOWN_BYTES: Final = 300
"""Most bytes of an engine's error that are repeated in the agent's errors."""
_LEFT_OUT: Final = frozenset(
    {name.decode() for name in HOP_BY_HOP}
    | {"host", "content-length", "authorization", "accept-encoding", MODEL_HEADER, PREFIX_HEADER, TASK_HEADER}
)
"""Headers that are not passed on: they belong to one hop, are written again for the next, or are not for engines to see

(keys are the gateway's business).
"""
_BROKEN: Final = (aiohttp.ClientError, OSError, EOFError, asyncio.TimeoutError)


class EngineLate(EngineError):
    """No response came in time, from an engine that may only be busy."""


class EngineClient:
    """HTTP client of one engine; the owner must close it.

    Each request has a connection of its own: an engine closes idle ones when it likes, and one that is closed as a
    request is sent looks like an engine that died of it.

    Args:
        socket: Unix socket of the engine.
        admin_key: Key of its admin routes.
        at: URL of the engine, in place of the socket; ``None`` to use the socket.
        key: Key of its other routes, if they ask for one.
    """

    def __init__(self, socket: Path, admin_key: str, *, at: str | None = None, key: str | None = None) -> None:
        self.socket, self.admin_key = socket, admin_key
        self._admin = {"authorization": f"Bearer {admin_key}"}
        self.at, self.key = at, key
        self._shown = {} if key is None else {"authorization": f"Bearer {key}"}
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        if self._session is not None:
            await self._session.close()

    async def call(self, method: str, path: str, body: Any = None, *, limit_s: float, **params: str | int) -> Any:
        """Make a control call, and return its response's JSON; ``None`` for another body, or none.

        Raises: EngineError for another status than 200, no response within ``limit_s`` seconds, a broken connection, or
            a client that was closed.
        """
        shown = f"{method} {path}"
        if self._is_closed:
            raise EngineError(f"{shown}: the engine has ended")
        headers = self._admin if path.startswith("/sloserve/") else self._shown
        try:
            async with asyncio.timeout(limit_s):
                async with self._open().request(
                    method, self._url + path, json=body, params=params, headers=headers, allow_redirects=False
                ) as answer:
                    text = await _text(answer)
                    if answer.status != 200:
                        raise EngineError(f"{shown}: status {answer.status}: {text[:_SHOWN_BYTES]}")
                    return json.loads(text) if text and answer.content_type == "application/json" else None
        except TimeoutError as error:
            reached = limit_reached(error, connect_s=_CONNECT_S, whole_s=limit_s)
            raise EngineLate(f"{shown}: {reached}") from None
        except (*_BROKEN, ValueError, RecursionError) as error:
            raise EngineError(f"{shown}: {str(error) or type(error).__name__}") from error

    async def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        ended: Callable[[bool], None],
        pause_s: Callable[[], float] | None = None,
    ) -> "EngineStream":
        """Pass a request on.

        Args:
            method: HTTP method of the request.
            path: Route of the engine.
            headers: Headers of the request; the ones of one hop are left out.
            body: Body of the request.
            ended: Called once when the request has ended, with whether the engine broke it off.
            pause_s: Seconds between reads of the body, asked before each; ``None`` to read each part as it arrives.

        Raises: Refused with ``DIED`` if the engine breaks off before its response begins.
        """
        kept = {"content-type": "application/json"} if body else {}
        kept |= self._shown | {name.lower(): value for name, value in headers.items() if name.lower() not in _LEFT_OUT}
        try:
            answer = await self._open().request(
                method, self._url + path, data=body, headers=kept, allow_redirects=False
            )
        except _BROKEN:
            ended(True)
            raise Refused(Refusal.DIED) from None
        except BaseException:
            ended(False)
            raise
        return EngineStream(answer, ended, Streamed.on(path.partition("?")[0]), pause_s)

    @property
    def _url(self) -> str:
        return self.at or _URL

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector: aiohttp.BaseConnector
            if self.at is None:
                connector = aiohttp.UnixConnector(str(self.socket), limit=0, force_close=True)
            else:
                connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                auto_decompress=False,
                read_bufsize=1 << 18,
                skip_auto_headers=("user-agent", "accept", "accept-encoding"),
            )
        return self._session


async def _text(answer: aiohttp.ClientResponse) -> str:
    """Read the body as text. Raises: ValueError if it is too long."""
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > _CONTROL_BYTES:
            raise ValueError(f"a response of more than {_CONTROL_BYTES} bytes")
    return body.decode(errors="replace")


class EngineStream(AsyncIterator[bytes]):
    """Response of an engine: an iterator over the body, which the caller must close.

    Raises from ``__anext__``: ConnectionResetError if the engine breaks off, or the request was ended; Refused if it
    was ended for a reason, and nothing of the body had come.

    Args:
        answer: Response as its head has come.
        ended: Called once at the end, with whether the engine broke off.
        streamed: Counts of its events.
        pause_s: Seconds between reads, see :meth:`EngineClient.send`.
    """

    def __init__(
        self,
        answer: aiohttp.ClientResponse,
        ended: Callable[[bool], None],
        streamed: Streamed,
        pause_s: Callable[[], float] | None = None,
    ) -> None:
        self._answer, self._ended, self._pause_s = answer, ended, pause_s
        self._over = self._whole = False
        self._refusal: Refusal | None = None
        self.parts = 0
        self.streamed = streamed
        self.status = answer.status
        self.headers = {name.lower(): value for name, value in answer.headers.items() if name.lower() not in _LEFT_OUT}
        if "content-length" in answer.headers:
            self.headers["content-length"] = answer.headers["content-length"]

    async def __anext__(self) -> bytes:
        if self._whole:
            raise StopAsyncIteration
        if self._pause_s is not None and self.parts and not self._over:
            await self._pause(self._pause_s())
        if self._over:
            raise self._why("the request was ended")
        try:
            part = await self._answer.content.readany()
        except (*_BROKEN, RuntimeError) as error:  # aiohttp's RuntimeError: the client was closed between two reads
            self._end(broken=True)
            raise self._why(str(error) or "the engine broke off its response") from error
        if not part:
            self._whole = True
            self._end(broken=False)
            raise StopAsyncIteration
        self.parts += 1
        self.streamed.add(part)
        return part

    async def _pause(self, seconds: float) -> None:
        """Leave what arrives to the kernel for some time, since each arrival costs as much as many events together."""
        connection = self._answer.connection
        if connection is None or connection.transport is None:  # the whole body has come
            return
        connection.transport.pause_reading()
        try:
            await asyncio.sleep(seconds)
        finally:
            if connection.transport is not None and not connection.transport.is_closing():
                connection.transport.resume_reading()

    async def aclose(self) -> None:
        """End the request in the engine, if it has not ended."""
        self.close()

    def close(self, refusal: Refusal | None = None) -> None:
        """End the request as :meth:`aclose` does; a reader of the body gets an error.

        Args:
            refusal: Reason that the error states if nothing of the body has come.
        """
        self._refusal = refusal
        self._end(broken=False)

    def _why(self, text: str) -> Exception:
        return ConnectionResetError(text) if self.parts or self._refusal is None else Refused(self._refusal)

    def _end(self, *, broken: bool) -> None:
        if not self._over:
            self._over = True
            self._answer.close()
            self._ended(broken)
