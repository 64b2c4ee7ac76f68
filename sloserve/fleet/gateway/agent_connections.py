"""HTTP to the endpoints of agents: requests for an instance, and its responses as they arrive.

The client is aiohttp, which vLLM brings: a chunk costs a third of the processor time that it takes with httpx.
"""

import asyncio
import json
import logging
import ssl
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import aiohttp
from yarl import URL

from sloserve.fleet.contract.endpoint import (
    KNOWN,
    MODEL_HEADER,
    REFUSED_HEADER,
    VERSION_HEADER,
    WAIT_S,
    WAITED_HEADER,
    Refusal,
    Refused,
)
from sloserve.fleet.contract.reports import AgentReport, agent_report
from sloserve.fleet.timeouts import limit_reached
from sloserve.wire.headers import HOP_BY_HOP, QUEUE_POSITION

logger = logging.getLogger(__name__)

_UNIX: Final = "unix:"
_CONNECT_S: Final = 5.0
_WAIT_S: Final = 1.0
"""Seconds for which an agent may wait with its report until something has changed."""
_STATE_S: Final = 2.5
"""Seconds after which an agent that does not respond is given up."""
_STATE_BYTES: Final = 16 << 20
_CHUNK_BYTES: Final = 1 << 16
_OWN: Final = frozenset({b"server", b"date", b"x-request-id", QUEUE_POSITION.encode(), REFUSED_HEADER.encode()})
"""Headers that the gateway writes itself, or its server."""
_BROKEN: Final = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


class _Untrusted(OSError):
    """An endpoint that is not asked, since its connection would lack the protection that certificates give."""


class BrokenResponse(Exception):
    """A response broke off before its end."""


class AgentState(NamedTuple):
    """What an agent responds to a question for its report.

    Args:
        report: The report; ``None`` if it is the one that is known.
        version: Version of the report; ``None`` if the agent is an older one, which has none.
        waited_s: Seconds for which the agent waited before it made the report.
    """

    report: AgentReport | None
    version: str | None = None
    waited_s: float = 0.0


class EngineResponse:
    """An engine's response, in parts as they arrive."""

    def __init__(self, response: aiohttp.ClientResponse, silent_max_s: float) -> None:
        self._response, self._silent_max_s = response, silent_max_s
        self.status = response.status
        self.headers = [
            (lower, value)
            for name, value in response.raw_headers
            if (lower := name.lower()) not in HOP_BY_HOP and lower not in _OWN
        ]
        self._length = response.content_length
        self.is_stream = response.content_type == "text/event-stream"
        self._content = response.content

    async def read(self) -> bytes:
        """Return what has come since, at least a byte; nothing at the end. Raises: BrokenResponse."""
        try:
            return await self._content.readany()
        except _BROKEN as error:
            raise BrokenResponse(_text(error, self._silent_max_s)) from error

    def is_whole(self, first: bytes) -> bool:
        """Return whether nothing comes after the first part."""
        return len(first) == self._length

    def close(self) -> None:
        """Release the connection; a response that has not ended is aborted in the engine."""
        if self._content.at_eof():
            self._response.release()
        else:
            self._response.close()


class AgentConnections:
    """Connections to the endpoints of all agents; the owner must close them."""

    def __init__(self, silent_max_s: float, key: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        """Create the connections' settings.

        Args:
            silent_max_s: Seconds of silence after which an engine is given up.
            key: Key that is shown to endpoints on TCP.
            tls: TLS context for endpoints on TCP, and then no other is reached; ``None`` if they use plain HTTP.
        """
        self._tls = tls
        self._shown = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.set_silent_max_s(silent_max_s)
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._strange: set[str] = set()

    def set_silent_max_s(self, silent_max_s: float) -> None:
        """Set the seconds of silence after which an engine is given up, for further requests."""
        self._silent_max_s = silent_max_s
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silent_max_s)

    async def close(self) -> None:
        """Close all connections."""
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()

    async def keep_only(self, endpoints: Collection[str]) -> None:
        """Close the connections to all other endpoints: agents may come at ever new ones."""
        self._strange &= set(endpoints)
        for endpoint in self._sessions.keys() - endpoints:
            await self._sessions.pop(endpoint).close()

    async def state(self, endpoint: str, known: str = "") -> AgentState | None:
        """Return an agent's report on itself; ``None`` if it cannot be reached, or its report cannot be read.

        Args:
            endpoint: Endpoint of the agent.
            known: Version of the report that is known. The agent answers once it has another, or after a second.
        """
        timeout = aiohttp.ClientTimeout(total=_STATE_S)
        try:
            url = _url(endpoint, f"/state?{KNOWN}={known}&{WAIT_S}={_WAIT_S:g}")
            options = {**self._reached(endpoint), "allow_redirects": False}
            async with self._session(endpoint).get(url, timeout=timeout, **options) as response:
                version, waited_s = response.headers.get(VERSION_HEADER), _seconds(response.headers.get(WAITED_HEADER))
                if response.status == 204 and known and version == known:
                    return AgentState(None, version, waited_s)
                body = await response.content.read(_STATE_BYTES)
                while part := await response.content.read(_STATE_BYTES - len(body)):
                    body += part
                if response.status == 401 and endpoint not in self._strange:
                    self._strange.add(endpoint)
                    logger.error("the agent behind %s has another key; gateway and agent need the same key", endpoint)
                if response.status != 200:
                    return None
            state = json.loads(body)
        except (*_BROKEN, ValueError) as error:
            self._report_untrusted(endpoint, error)
            return None
        report = agent_report(state) if isinstance(state, dict) else None
        return None if report is None else AgentState(report, version, waited_s)

    async def send(
        self, endpoint: str, instance: str, path: str, headers: Iterable[tuple[str, str]], body: bytes, model: str
    ) -> EngineResponse:
        """Pass a request to an instance.

        Raises: Refused if the request may be sent elsewhere; with ``DIED`` an engine, or its agent, broke off with it.
        """
        url = _url(endpoint, f"/instances/{quote(instance, safe='')}{path}")
        try:
            sent, reached = [*headers, (MODEL_HEADER, model)], self._reached(endpoint)
            response = await self._session(endpoint).post(
                url, data=body, headers=sent, allow_redirects=False, timeout=self._timeout, **reached
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, _Untrusted) as error:
            # Without a connection nothing was sent: the request has not killed an engine.
            self._report_untrusted(endpoint, error)
            why = _text(error, self._silent_max_s)
            logger.warning("the agent of instance %s cannot be reached: %s", instance, why)
            raise Refused(Refusal.FAILED) from error
        except _BROKEN as error:
            why = _text(error, self._silent_max_s)
            logger.warning("instance %s broke off before its response: %s", instance, why)
            raise Refused(Refusal.DIED) from error
        reason = response.headers.get(REFUSED_HEADER)
        if reason is not None:
            response.close() if response.status == 502 else response.release()
            raise Refused(_refusal(reason))
        return EngineResponse(response, self._silent_max_s)

    def _reached(self, endpoint: str) -> dict[str, Any]:
        """Return the options of a request: the name that the endpoint's certificate must have. Raises: _Untrusted."""
        address, _, host = endpoint.partition("#")
        if address.startswith("https:"):
            if self._tls is None:
                raise _Untrusted("it uses TLS, and this gateway has no certificates")
            return {"server_hostname": unquote(host)}
        # Any other scheme counts as plain HTTP: aiohttp accepts HTTP:// and ws:// for it, too.
        if self._tls is not None and not address.startswith(_UNIX):
            raise _Untrusted("it uses plain HTTP, and this gateway has certificates")
        return {}

    def _report_untrusted(self, endpoint: str, error: Exception) -> None:
        """Report what is wrong with a certificate, once for each endpoint."""
        causes = (error, error.__cause__, error.__context__)
        found = next((one for one in causes if isinstance(one, (ssl.SSLError, _Untrusted))), None)
        if found is not None and endpoint not in self._strange:
            self._strange.add(endpoint)
            logger.error(
                "the agent endpoint %s is not used: %s; give gateways and agents the same authority.crt, and each host "
                "its own certificate: see sloserve fleet certificates",
                endpoint,
                found,
            )

    def _session(self, endpoint: str) -> aiohttp.ClientSession:
        session = self._sessions.get(endpoint)
        if session is None:
            path = endpoint.removeprefix(_UNIX)
            is_local = path != endpoint
            connector = (
                aiohttp.UnixConnector(path, limit=0)
                if is_local
                else aiohttp.TCPConnector(limit=0, ssl=self._tls or True)
            )
            settings: Mapping[str, Any] = {
                "headers": {} if is_local else self._shown,
                "auto_decompress": False,
                "read_bufsize": _CHUNK_BYTES,
                "skip_auto_headers": ("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                "cookie_jar": aiohttp.DummyCookieJar(),
                "max_line_size": _CHUNK_BYTES,
                "max_field_size": _CHUNK_BYTES,
            }
            session = self._sessions[endpoint] = aiohttp.ClientSession(connector=connector, **settings)
        return session


def _url(endpoint: str, path: str) -> URL:
    return URL(("http://door" if endpoint.startswith(_UNIX) else endpoint.partition("#")[0]) + path, encoded=True)


def _text(error: Exception, silent_max_s: float) -> str:
    """Return what is wrong with a connection; of a limit that was reached, which one and its value."""
    if isinstance(error, TimeoutError):
        return limit_reached(error, connect_s=_CONNECT_S, silent_s=silent_max_s)
    return str(error) or type(error).__name__


def _seconds(text: str | None) -> float:
    """Return the seconds that a header states, at most the ones that an agent may wait; 0 for none."""
    try:
        found = float(text or 0.0)
    except ValueError:
        return 0.0
    return found if 0.0 <= found <= _STATE_S else 0.0


def _refusal(reason: str) -> Refusal:
    try:
        return Refusal(reason)
    except ValueError:  # a newer agent sent it
        return Refusal.FAILED
