"""The edge's one connection to the engine host: made at start, and made again whenever it is lost."""

import asyncio
import logging
import math

from sloserve.core.errors import ConfigError
from sloserve.http3.client_connection import H3Client, Lost, connect
from sloserve.http3.client_settings import ClientSettings

logger = logging.getLogger(__name__)

FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 10.0
"""Seconds between two attempts to connect: the first delay, doubled after each that fails, up to the longest."""


class UpstreamConnection:
    """The edge's connection to the engine host, which is made again whenever it is lost.

    Args:
        host: host name of the engine host.
        port: UDP port of the engine host's HTTP/3.
        settings: settings of the edge's side of the connection.
    """

    def __init__(self, host: str, port: int, settings: ClientSettings) -> None:
        self._host, self._port, self._settings = host, port, settings
        self._client: H3Client | None = None
        self._delay_s = FIRST_DELAY_S
        self._task: asyncio.Task[None] | None = None
        self._finishing: set[asyncio.Task[None]] = set()
        self._why = "the edge is starting"

    @property
    def authority(self) -> bytes:
        return f"{self._host}:{self._port}".encode()

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.usable

    @property
    def retry_after_s(self) -> int:
        """The time in whole seconds after which the next attempt will have been made."""
        return math.ceil(self._delay_s)

    def client(self) -> H3Client:
        """Return the connection.

        Raises: Lost with the reason if there is none now.
        """
        if self._client is None or not self._client.usable:
            raise Lost(f"no connection to {self._host} port {self._port}: {self._why}")
        return self._client

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._client is not None:
            await self._client.end()
        for finishing in [*self._finishing]:
            finishing.cancel()
            await asyncio.wait([finishing])

    async def _finish(self, client: H3Client) -> None:
        """Wait until an engine host that is stopping has finished what it has begun, then end the connection."""
        try:
            await client.finish()
        finally:
            await client.end()

    async def _keep(self) -> None:
        while True:
            try:
                self._client = await connect(self._host, self._port, self._settings, settled=True)
                logger.info("connected to %s UDP port %d", self._host, self._port)
                self._delay_s = FIRST_DELAY_S
                await self._client.wait_unusable()
                self._why = str(self._client.lost or "the engine host is stopping")
                finishing = asyncio.create_task(self._finish(self._client))
                self._finishing.add(finishing)
                finishing.add_done_callback(self._finishing.discard)
                logger.warning("the connection to %s is lost: %s", self._host, self._why)
            except (Lost, ConfigError) as error:  # a certificate may be half written
                self._why = str(error)
                logger.warning("cannot connect, next attempt in %g s: %s", self._delay_s, error)
            await asyncio.sleep(self._delay_s)
            self._delay_s = min(2 * self._delay_s, LONGEST_DELAY_S)
