"""Limits on what is in the gateway at a time: requests of each tenant and in total, bytes of bodies."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sloserve.core.errors import QueueFull
from sloserve.fleet.gateway.keys import LOCAL, Tenant
from sloserve.fleet.tenant_places import SOON_S, TenantPlaces

_SHARE: Final = 2
"""Bodies of one of several tenants take no more than one part in so many: the others find room."""


class RequestPlaces:
    """Requests that are in the gateway."""

    def __init__(self, most: int, most_bytes: int) -> None:
        """most: of all tenants. most_bytes: of bodies without a first byte of their answer."""
        self._places, self._most_bytes = TenantPlaces("requests", most), most_bytes
        self._bytes: Counter[str] = Counter()

    @property
    def requests(self) -> int:
        return len(self._places)

    @property
    def bytes(self) -> int:
        return self._bytes.total()

    @contextmanager
    def place(self, tenant: Tenant) -> Iterator["RequestPlace"]:
        """A request's, from before its body is read to the end of its answer. Raises: QueueFull."""
        with self._places.taken(tenant.name, tenant.quota.requests):
            place = RequestPlace(self, tenant.name, self._most_bytes // (1 if tenant.name == LOCAL else _SHARE))
            try:
                yield place
            finally:
                place.forget_body()

    def take(self, tenant: str, size: int, most: int) -> None:
        """most: bytes of the tenant's. Raises: QueueFull where there is no room for so many more."""
        if self.bytes + size > self._most_bytes:
            raise QueueFull(
                f"the gateway holds waiting requests of {self.bytes} of {self._most_bytes} bytes; retry in {SOON_S} s",
                SOON_S,
                "",
            )
        if (used := self._bytes[tenant]) + size > most:
            raise QueueFull(
                f"your waiting requests have {used} of {most} bytes; wait until one of them is answered", SOON_S, ""
            )
        self._bytes[tenant] += size

    def give(self, tenant: str, size: int) -> None:
        """So many bytes are not kept any more."""
        self._bytes[tenant] -= size
        if not self._bytes[tenant]:
            del self._bytes[tenant]


class RequestPlace:
    """One request's, and its body's while that is kept."""

    def __init__(self, of: RequestPlaces, tenant: str, most: int) -> None:
        self._of, self._tenant, self._most = of, tenant, most
        self._bytes = 0

    def take(self, size: int) -> None:
        """So many bytes of the body are kept. Raises: QueueFull."""
        self._of.take(self._tenant, size, self._most)
        self._bytes += size

    def forget_body(self) -> None:
        """The body is not needed any more."""
        self._of.give(self._tenant, self._bytes)
        self._bytes = 0
