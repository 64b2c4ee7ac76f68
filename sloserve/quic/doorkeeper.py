"""Which new connections a listener lets in: by how many there are, from where, and how fast they come."""

import ipaddress
from collections import Counter
from typing import Literal

from sloserve.quic.settings import Http3Settings

Answer = Literal["admit", "retry", "refuse"]

REFUSALS = ("connections", "address", "rate")
"""Why a connection is refused: there are too many, too many from its address, or they come too fast."""

BURST = 2
"""Seconds' worth of handshakes that may come at once."""


def network(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 that an IPv6 host can choose addresses from."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))


class Doorkeeper:
    """Counts connections, and in ``handshakes`` those that do not begin: by :data:`REFUSALS`, or ``retried``."""

    def __init__(self, settings: Http3Settings, handshakes: Counter[str]) -> None:
        self._handshakes = handshakes
        self._settings = settings
        self._by_network: Counter[str] = Counter()
        self._half_open = 0
        self._tokens = float(BURST * settings.handshakes_per_s)
        self._filled_s: float | None = None

    def ask(self, host: str, proven: bool, now_s: float) -> Answer:
        """Whether a client may begin a handshake. proven: whether it has shown that it receives at its address."""
        settings = self._settings
        if not proven and self._half_open >= settings.retry_above:
            self._handshakes["retried"] += 1
            return "retry"
        refusal = self._refusal(host, now_s)
        if refusal is None:
            return "admit"
        self._handshakes[refusal] += 1
        return "refuse"

    def _refusal(self, host: str, now_s: float) -> str | None:
        if self._by_network.total() >= self._settings.connections:
            return "connections"
        if self._by_network[network(host)] >= self._settings.connections_per_address:
            return "address"
        return None if self._token(now_s) else "rate"

    def entered(self, host: str) -> None:
        self._by_network[network(host)] += 1
        self._half_open += 1

    def shook_hands(self) -> None:
        self._half_open -= 1

    def left(self, host: str, half_open: bool) -> None:
        key = network(host)
        self._by_network[key] -= 1
        if not self._by_network[key]:
            del self._by_network[key]
        self._half_open -= half_open

    def _token(self, now_s: float) -> bool:
        rate = self._settings.handshakes_per_s
        if self._filled_s is not None:
            self._tokens = min(self._tokens + rate * (now_s - self._filled_s), BURST * rate)
        self._filled_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
