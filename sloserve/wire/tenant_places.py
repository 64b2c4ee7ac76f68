"""Places that tenants share: the requests of each that are in progress at a time."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sloserve.core.errors import QueueFull

SOON_S: Final = 1
"""Seconds after which a client may retry when all places were taken: requests end all the time."""


class TenantPlaces:
    """Places that tenants share, with a limit for each tenant and for all.

    Args:
        what: Name of the things that take places, in the plural.
        most: The most places of all tenants together.
        elsewhere: Returns how many places a tenant has taken in other processes.
    """

    def __init__(self, what: str, most: float = math.inf, elsewhere: Callable[[str], int] = lambda tenant: 0) -> None:
        self._what, self._most, self._elsewhere = what, most, elsewhere
        self._of_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._of_tenant.total()

    def set_most(self, most: float) -> None:
        """Set the most places of all tenants together; places that are taken beyond it stay taken."""
        self._most = most

    def of(self, tenant: str) -> int:
        """Return how many places a tenant has taken in this process."""
        return self._of_tenant[tenant]

    @contextmanager
    def taken(self, tenant: str, most: int | None) -> Iterator[None]:
        """Take one place for the tenant, which may have ``most``, or any number for ``None``. Raises: QueueFull."""
        if most is not None and self._of_tenant[tenant] + self._elsewhere(tenant) >= most:
            text = f"{most} of {most} {self._what} of yours are in progress; wait until one of them ends"
            raise QueueFull(text, SOON_S, "", of_tenant=True)
        if len(self) >= self._most:
            raise QueueFull(
                f"all {self._most} {self._what} of this gateway are in progress; retry in {SOON_S} s", SOON_S, ""
            )
        self._of_tenant[tenant] += 1
        try:
            yield
        finally:
            self._of_tenant[tenant] -= 1
            if not self._of_tenant[tenant]:
                del self._of_tenant[tenant]
