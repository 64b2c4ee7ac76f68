"""The list of servers, from the file of a picker, from a file of its own, or from DNS."""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Final

from sloserve.core.json_lines import lines_of
from sloserve.fleet.beside.endpoint_picker.picker_file import MOST_SERVERS, ServersSection, is_address

logger = logging.getLogger(__name__)

_ANSWER_S: Final = 2.0
"""Seconds after which a question to DNS is given up."""
_FILE_BYTES: Final = 64 * MOST_SERVERS
"""Most bytes that are read of a file with addresses."""


class ServerList:
    """Finds the servers; what cannot be read leaves the list as it was.

    Args:
        section: Place of the servers.
        folder: Folder of the picker's file.
    """

    def __init__(self, section: ServersSection, folder: Path) -> None:
        self._section, self._folder = section, folder
        self._known: list[str] = []
        self._fault = ""

    async def look(self) -> list[str]:
        """Return the addresses of the servers, in their order."""
        try:
            found = await self._found()
        except (OSError, TimeoutError, ValueError) as error:
            self._report(f"{self._place} cannot be read: {error or type(error).__name__}")
            return self._known
        if len(found) > MOST_SERVERS:
            self._report(f"{self._place} has {len(found)} servers; the first {MOST_SERVERS} are used")
        else:
            self._fault = ""
        self._known = found[:MOST_SERVERS]
        return self._known

    @property
    def _place(self) -> str:
        return f"servers.file {self._section.file}" if self._section.file else f"servers.dns {self._section.dns}"

    async def _found(self) -> list[str]:
        if self._section.addresses is not None:
            return list(dict.fromkeys(self._section.addresses))
        if self._section.file is not None:
            return await asyncio.to_thread(self._in_file, self._folder / self._section.file)
        loop, port = asyncio.get_running_loop(), self._section.port
        async with asyncio.timeout(_ANSWER_S):
            rows = await loop.getaddrinfo(self._section.dns, port, type=socket.SOCK_STREAM)
        hosts = sorted({str(address[0]) for *_, address in rows})
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]

    def _in_file(self, path: Path) -> list[str]:
        """Return the addresses in a file; empty lines, and lines that begin with #, are left out."""
        with path.open(encoding="utf-8-sig") as file:
            lines = [line.strip() for line in lines_of(file.read(_FILE_BYTES))]
        found = [line for line in lines if line and not line.startswith("#")]
        wrong = next((line for line in found if not is_address(line)), None)
        if wrong is not None:
            raise ValueError(f"{wrong[:80]!r} is not an address, as 10.0.0.1:8000")
        return list(dict.fromkeys(found))

    def _report(self, fault: str) -> None:
        """Log a fault once, until it is over or another takes its place."""
        if fault != self._fault:
            self._fault = fault
            logger.warning("%s", fault)
