"""The address that a request comes from, and whether what it states of a tenant counts.

Every client that reaches the server can write a header, so it names a tenant only where a trusted proxy sends it.
Uvicorn replaces the address of a proxy by one that the proxy states in ``X-Forwarded-For``, which is no address of a
peer: :class:`PeerRecorder` keeps the peer's own before.
"""

import functools
import ipaddress
from collections.abc import Iterable
from typing import Any, Final

from sloserve.wire.asgi import Receive, Scope, Send, first

EVERYONE: Final = "*"
"""Word for all addresses."""
LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
"""Addresses of this machine."""

_ALL: Final = ("0.0.0.0/0", "::/0")
_PEER: Final = "sloserve.peer"
"""Key of a scope under which the peer's address stands; ``None`` for a Unix socket."""
_REMEMBERED: Final = 1024

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(texts: Iterable[str]) -> tuple[str, ...]:
    """Return networks as they are written: ``10.0.0.7`` as ``10.0.0.7/32``, ``*`` as all addresses.

    Raises: ValueError for a text that is no address, network or ``*``.
    """
    found = [one for text in texts for one in (_ALL if text == EVERYONE else (str(ipaddress.ip_network(text)),))]
    return tuple(dict.fromkeys(found))


class TrustedProxies:
    """The networks from which a header may name a tenant."""

    def __init__(self, trusted: Iterable[str]) -> None:
        """Read the networks, written as :func:`networks` returns them."""
        self._networks: tuple[Network, ...] = tuple(ipaddress.ip_network(text) for text in trusted)
        self._trusts = functools.lru_cache(_REMEMBERED)(self._finds)

    @property
    def beyond_this_machine(self) -> list[str]:
        """The networks that hold addresses of other machines."""
        return [str(one) for one in self._networks if not one.is_loopback]

    def trust(self, client: Any) -> bool:
        """Return whether a peer is trusted.

        Args:
            client: Host and port of the peer; ``None`` for a Unix socket, which counts as 127.0.0.1.
        """
        return self._trusts("127.0.0.1" if client is None else str(client[0]))

    def _finds(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


class PeerRecorder:
    """An ASGI app that records the peer of each request before ``app`` handles it."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_PEER] = scope.get("client")
        await self._app(scope, receive, send)


def peer_of(scope: Scope) -> Any:
    """Return host and port of the peer of a request, ``None`` for a Unix socket.

    The address is unknown, which no network holds, if nothing recorded it and a server may have replaced it.
    """
    if _PEER in scope:
        return scope[_PEER]
    if scope.get("http_version") != "3" and first(scope["headers"], b"x-forwarded-for"):
        return ("unknown", 0)
    return scope.get("client")


def record_peers(server: Any) -> None:
    """Have a server of uvicorn record the peer of each request, before it serves any; others are left as they are."""
    config = getattr(server, "config", None)
    app = getattr(config, "loaded_app", None)
    if config is not None and app is not None and not isinstance(app, PeerRecorder):
        config.loaded_app = PeerRecorder(app)
