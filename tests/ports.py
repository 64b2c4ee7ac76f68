"""Ports for servers that tests start and that bind a while after the port was chosen."""

import os
import socket


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port that nobody listens on, below those that connections are given, so that none takes it meanwhile.

    Processes that started together look far from each other.
    """
    for port in range(20_000 + 97 * os.getpid() % 8_000, 32_000):
        with socket.socket(type=kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no port below 32000 is free")
