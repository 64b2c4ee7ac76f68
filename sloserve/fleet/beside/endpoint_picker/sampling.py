"""Asks each server for its metrics, often, and for the names of its models, seldom: all in bounded time and memory."""

import asyncio
import json
import logging
from typing import Any, Final

import aiohttp

from sloserve.fleet.beside.endpoint_picker.picker_file import ServersSection
from sloserve.fleet.beside.endpoint_picker.server_list import ServerList
from sloserve.fleet.beside.picking import Picking
from sloserve.fleet.beside.server_figures import read_figures
from sloserve.fleet.supervised import supervised

logger = logging.getLogger(__name__)

_ANSWER_S: Final = 1.0
"""Seconds in which a server must answer."""
_PAGE_BYTES: Final = 4 << 20
_MODELS_S: Final = 30.0
"""Seconds between questions for the names of a server's models: adapters come and go."""
_MOST_MODELS: Final = 1024
_BROKEN: Final = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


class Sampling:
    """Keeps what is known of the servers up to date.

    Args:
        section: Place of the servers, and how often they are asked.
        servers: List of the servers.
        picking: Takes in what they say.
    """

    def __init__(self, section: ServersSection, servers: ServerList, picking: Picking) -> None:
        self._section, self._list, self._picking = section, servers, picking
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asked = set[str]()
        self._looking: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def is_ready(self) -> bool:
        """Whether each server of the list was asked, whatever it answered."""
        return self._looking is not None and self._tasks.keys() <= self._asked and len(self._picking.servers) > 0

    async def start(self) -> None:
        """Begin to look for servers and to ask them."""
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=2)
        self._session = aiohttp.ClientSession(
            timeout=timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar(), max_line_size=1 << 16
        )
        await self._look()
        every_s = self._section.look_s
        self._looking = asyncio.create_task(
            supervised("servers are not looked for", self._look, every_s, first_s=every_s)
        )

    async def stop(self) -> None:
        """Stop asking."""
        tasks = [*self._tasks.values(), *([] if self._looking is None else [self._looking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        if self._session is not None:
            await self._session.close()

    async def _look(self) -> None:
        names = await self._list.look()
        for name in self._tasks.keys() - set(names):
            self._tasks.pop(name).cancel()
            self._asked.discard(name)
        self._picking.servers.listed(names)
        for name in names:
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._follow(name))

    async def _follow(self, name: str) -> None:
        """Ask one server for its metrics again and again, and for its models first and then seldom."""
        every = max(int(_MODELS_S / self._section.sample_s), 1)
        rounds = 0

        async def turn() -> None:
            nonlocal rounds
            answers = await self._sample(name)
            self._asked.add(name)
            if answers and rounds % every == 0:
                await self._read_models(name)
            rounds += bool(answers)

        await supervised(f"server {name} is not asked", turn, self._section.sample_s)

    async def _sample(self, name: str) -> bool:
        """Ask a server for its metrics, and return whether it answered."""
        sent_before = self._picking.instances.sent()
        try:
            page = await self._page(name, "/metrics")
        except aiohttp.ClientConnectorError:
            self._picking.servers.lost(name)
            return False
        except _BROKEN:
            return False  # it may be busy: if it stays silent, its last figures become too old
        figures = None if page is None else read_figures(page)
        if figures is None:
            return False
        self._picking.reported(name, figures, sent_before)
        return True

    async def _read_models(self, name: str) -> None:
        try:
            page = await self._page(name, "/v1/models")
            listed: Any = json.loads(page or "{}")
            names = [str(one["id"]) for one in listed["data"]]
        except (*_BROKEN, ValueError, KeyError, TypeError, RecursionError):
            return  # as for a server with keys: then its metrics name its model
        self._picking.servers.served(name, names[:_MOST_MODELS])

    async def _page(self, name: str, path: str) -> str | None:
        """Return the text of a route; ``None`` for a response that is no page, or too long."""
        assert self._session is not None
        url = f"{self._section.scheme}://{name}{path}"
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                return None
            body = bytearray()
            async for part in response.content.iter_chunked(1 << 16):
                body += part
                if len(body) > _PAGE_BYTES:
                    return None
        return body.decode("utf-8", "replace")
