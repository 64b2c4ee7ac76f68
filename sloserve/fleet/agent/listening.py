"""Opens the socket of an agent's endpoint."""

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

UNIX: Final = "unix:"


def listening_on(endpoint: str) -> socket.socket:
    """Open the socket: connections are accepted at once, and served once a server runs. Raises: OSError.

    Args:
        endpoint: ``unix:PATH``, ``http://HOST:PORT`` or ``https://HOST:PORT``. A socket of a process that has ended is
            replaced.
    """
    if endpoint.startswith(UNIX):
        path = Path(endpoint.removeprefix(UNIX))
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                path.unlink()
        made = socket.socket(socket.AF_UNIX)
        try:
            made.bind(str(path))
            made.listen(1024)
        except OSError:
            made.close()
            raise
        return made
    host, _, port = endpoint.partition("://")[2].rpartition(":")
    return socket.create_server((host.strip("[]"), int(port)), backlog=1024)


def address_of(endpoint: str, listening: socket.socket) -> str:
    """Return the endpoint with the port that the system chose, if it left that to the system."""
    if endpoint.startswith(UNIX) or urlsplit(endpoint).port:
        return endpoint
    return f"{endpoint.rpartition(':')[0]}:{listening.getsockname()[1]}"
