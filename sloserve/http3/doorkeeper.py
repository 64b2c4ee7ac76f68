"""Which new connections a listener lets in: by how many there are, from where, and how fast they come."""

import ipaddress
from collections import Counter, OrderedDict
from typing import Literal

from sloserve.wire.optional_http3 import Http3Settings

Answer = Literal["admit", "retry", "refuse"]

REFUSALS = ("connections", "address", "address_rate", "rate")
"""Why a connection is refused: there are too many, too many from its address, or they come too fast, from there or in
all.
"""

BURST = 2
"""Seconds' worth of handshakes that may come at once."""


class TokenBucket:
    """Lets so many a second pass, and a burst of :data:`BURST` seconds' worth."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._tokens = BURST * per_s
        self._filled_s: float | None = None

    def ready(self, now_s: float) -> bool:
        """Whether one may pass."""
        if self._filled_s is not None:
            self._tokens = min(self._tokens + self._per_s * (now_s - self._filled_s), BURST * self._per_s)
        self._filled_s = now_s
        return self._tokens >= 1.0

    def take(self, now_s: float) -> bool:
        """Lets one pass, if one may."""
        if not self.ready(now_s):
            return False
        self._tokens -= 1.0
        return True


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
        self._rate = TokenBucket(settings.handshakes_per_s)
        self._rates: OrderedDict[tuple[str, bool], TokenBucket] = OrderedDict()

    def ask(self, host: str, proven: bool, now_s: float) -> Answer:
        """Whether a client may begin a handshake. proven: whether it has shown that it receives at its address.

        What others send in the name of an address is no one's rate but theirs: who has used it up may prove the
        address, and has another rate then.
        """
        settings = self._settings
        key = network(host), proven
        rate = self._rates.get(key) or TokenBucket(settings.handshakes_per_s_per_address)
        if not proven and (self._half_open >= settings.retry_above or not rate.ready(now_s)):
            self._handshakes["retried"] += 1
            return "retry"
        refusal = self._refusal(network(host), rate, now_s)
        if refusal is None:
            rate.take(now_s)
            self._keep(key, rate)
            return "admit"
        self._handshakes[refusal] += 1
        return "refuse"

    def _refusal(self, address: str, rate: TokenBucket, now_s: float) -> str | None:
        if self._by_network.total() >= self._settings.connections:
            return "connections"
        if self._by_network[address] >= self._settings.connections_per_address:
            return "address"
        if not rate.ready(now_s):
            return "address_rate"
        return None if self._rate.take(now_s) else "rate"

    def _keep(self, key: tuple[str, bool], rate: TokenBucket) -> None:
        """Rates of addresses that were let in lately. After :data:`BURST` seconds without a handshake an address is as
        good as new, and in that time no more are let in than are kept here: what is forgotten is of no use.
        """
        self._rates[key] = rate
        self._rates.move_to_end(key)
        if len(self._rates) > 2 * BURST * self._settings.handshakes_per_s:
            self._rates.popitem(last=False)

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
