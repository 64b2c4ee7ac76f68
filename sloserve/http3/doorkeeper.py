"""Admission of new connections to a listener: by how many there are, from where, and how fast they come."""

import ipaddress
from collections import Counter, OrderedDict
from typing import Literal

from sloserve.wire.optional_http3 import Http3Settings

InstanceResponse = Literal["admit", "retry", "refuse"]

REFUSALS = ("connections", "address", "address_rate", "rate")
"""Why a connection is refused: there are too many, too many from its address, or they come too fast, from there or in
all.
"""

BURST = 2
"""Seconds' worth of handshakes that may come at once."""


class TokenBucket:
    """A limit of ``per_s`` passes a second, with a burst of as much as :data:`BURST` seconds allow."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._tokens = BURST * per_s
        self._filled_s: float | None = None

    def ready(self, now_s: float) -> bool:
        """Return whether one may pass."""
        if self._filled_s is not None:
            self._tokens = min(self._tokens + self._per_s * (now_s - self._filled_s), BURST * self._per_s)
        self._filled_s = now_s
        return self._tokens >= 1.0

    def take(self, now_s: float) -> bool:
        """Let one pass, if one may, and return whether it did."""
        if not self.ready(now_s):
            return False
        self._tokens -= 1.0
        return True


def network(host: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 in which an IPv6 host can choose addresses."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))


class Doorkeeper:
    """Counts of connections, and of handshakes that do not begin, by :data:`REFUSALS` or as ``retried``."""

    def __init__(self, settings: Http3Settings, handshakes: Counter[str]) -> None:
        self._handshakes = handshakes
        self._settings = settings
        self._by_network: Counter[str] = Counter()
        self._half_open = 0
        self._rate = TokenBucket(settings.handshakes_per_s)
        self._rates: OrderedDict[tuple[str, bool], TokenBucket] = OrderedDict()

    def ask(self, host: str, proven: bool, now_s: float) -> InstanceResponse:
        """Return whether a client may begin a handshake.

        Packets that others send in the name of an address use up the rate of the unproven address alone. A client may
        then prove that it receives at its address, and has another rate from then on.

        Args:
            host: The client's address.
            proven: Whether the client has shown that it receives at its address.
            now_s: The present time, in seconds.
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
        """Keep the rates of addresses that were let in lately.

        An address without a handshake for :data:`BURST` seconds is as good as new. In that time no more addresses are
        let in than are kept here, so an address that is forgotten is no longer needed.
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
