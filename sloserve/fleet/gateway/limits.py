"""What is in the gateway at a time, and no more: requests of each tenant and of all, bytes of bodies."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sloserve.core.errors import QueueFull
from sloserve.fleet.gateway.keys import Tenant

_SOON_S = 1
"""When to come again who finds the gateway full: requests end all the time."""


class InFlight:
    """Requests that are in the gateway."""

    def __init__(self, most: int, most_bytes: int) -> None:
        """most: of all tenants. most_bytes: of bodies without a first byte of their answer."""
        self._most, self._most_bytes = most, most_bytes
        self._of_tenant: Counter[str] = Counter()
        self.requests = 0
        self.bytes = 0

    @contextmanager
    def place(self, tenant: Tenant) -> Iterator["Place"]:
        """A request's, from before its body is read to the end of its answer. Raises: QueueFull."""
        if self._of_tenant[tenant.name] >= tenant.quota.requests:
            most = tenant.quota.requests
            raise QueueFull(f"{most} of {most} requests of yours are in progress; wait for one of them", _SOON_S, "")
        if self.requests >= self._most:
            raise QueueFull(f"{self._most} requests are in progress here; retry in {_SOON_S} s", _SOON_S, "")
        self._of_tenant[tenant.name] += 1
        self.requests += 1
        place = Place(self)
        try:
            yield place
        finally:
            place.forget_body()
            self.requests -= 1
            self._of_tenant[tenant.name] -= 1
            if not self._of_tenant[tenant.name]:
                del self._of_tenant[tenant.name]

    def take(self, size: int) -> None:
        """Raises: QueueFull where there is no room for so many bytes more."""
        if self.bytes + size > self._most_bytes:
            raise QueueFull(f"requests of {self.bytes} bytes wait here; retry in {_SOON_S} s", _SOON_S, "")
        self.bytes += size


class Place:
    """One request's, and its body's while that is kept."""

    def __init__(self, of: InFlight) -> None:
        self._of = of
        self._bytes = 0

    def take(self, size: int) -> None:
        """So many bytes of the body are kept. Raises: QueueFull."""
        self._of.take(size)
        self._bytes += size

    def forget_body(self) -> None:
        """The body is not needed any more."""
        self._of.bytes -= self._bytes
        self._bytes = 0
