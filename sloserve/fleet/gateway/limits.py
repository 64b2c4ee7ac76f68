"""Limits on what is in the gateway at a time: requests of each tenant and in total, and bytes of bodies."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sloserve.core.errors import QueueFull
from sloserve.fleet.gateway.keys import LOCAL, Tenant
from sloserve.wire.tenant_places import SOON_S, TenantPlaces

_SHARE: Final = 2
"""Divisor of the bytes that bodies of one of several tenants may take: the others find room."""


class RequestPlaces:
    """Counts the requests that are in the gateway, and the bytes of their bodies."""

    def __init__(self, most: int, most_bytes: int) -> None:
        """Set the limits.

        Args:
            most: Most requests of all tenants.
            most_bytes: Most bytes of bodies that wait for the first byte of their response.
        """
        self._places, self._most_bytes = TenantPlaces("requests", most), most_bytes
        self._bytes: Counter[str] = Counter()

    def set_limits(self, most: int, most_bytes: int) -> None:
        """Set other limits, see the constructor; what is in the gateway beyond them stays."""
        self._places.set_most(most)
        self._most_bytes = most_bytes

    @property
    def requests(self) -> int:
        return len(self._places)

    @property
    def bytes(self) -> int:
        return self._bytes.total()

    @contextmanager
    def place(self, tenant: Tenant) -> Iterator["RequestPlace"]:
        """Hold a request's place, from before its body is read to the end of its response. Raises: QueueFull."""
        with self._places.taken(tenant.name, tenant.quota.requests):
            place = RequestPlace(self, tenant.name, self._most_bytes // (1 if tenant.name == LOCAL else _SHARE))
            try:
                yield place
            finally:
                place.forget_body()

    def take(self, tenant: str, size: int, most: int) -> None:
        """Count bytes of a body that are kept. Raises: QueueFull if there is no room for them.

        Args:
            tenant: Name of the tenant.
            size: Number of bytes.
            most: Most bytes of the tenant.
        """
        if self.bytes + size > self._most_bytes:
            raise QueueFull(
                f"the gateway holds waiting requests of {self.bytes} of {self._most_bytes} bytes; retry in {SOON_S} s",
                SOON_S,
                "",
            )
        if (used := self._bytes[tenant]) + size > most:
            text = f"your waiting requests have {used} of {most} bytes; wait until one of them has a response"
            raise QueueFull(text, SOON_S, "", of_tenant=True)
        self._bytes[tenant] += size

    def give(self, tenant: str, size: int) -> None:
        """Release ``size`` bytes that are not kept any more."""
        self._bytes[tenant] -= size
        if not self._bytes[tenant]:
            del self._bytes[tenant]


class RequestPlace:
    """The place of one request, and of its body while the body is kept."""

    def __init__(self, of: RequestPlaces, tenant: str, most: int) -> None:
        self._of, self._tenant, self._most = of, tenant, most
        self._bytes = 0

    def take(self, size: int) -> None:
        """Count ``size`` bytes of the body that are kept. Raises: QueueFull."""
        self._of.take(self._tenant, size, self._most)
        self._bytes += size

    @contextmanager
    def copies(self, size: int) -> Iterator[None]:
        """Count ``size`` more bytes of the body while it is read. Raises: QueueFull."""
        self.take(size)
        try:
            yield
        finally:
            self._of.give(self._tenant, size)
            self._bytes -= size

    def forget_body(self) -> None:
        """Release the body, which is not needed any more."""
        self._of.give(self._tenant, self._bytes)
        self._bytes = 0
