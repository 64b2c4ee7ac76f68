"""Limits of the tenants of a fleet: what each may have, and the places that they share."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from sloserve.core.errors import QueueFull
from sloserve.core.files.model import Allowed

_COUNT: Final = Allowed("a whole number >= 0")
Count = Annotated[int, Field(strict=True, ge=0, le=2**53)]


class Quota(BaseModel):
    """Limits of one tenant.

    Args:
        requests: The most requests in the gateway, held and streaming.
        lines: The most lines of its batches that are accepted and have not ended.
        tokens: The most tokens of these lines, of prompts and expected output.
        bytes: The most bytes of its files, and of results that are in no file yet.
        batches: The most batches that have not ended.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests: Annotated[Count, _COUNT] = 256
    lines: Annotated[Count, _COUNT] = 400_000
    tokens: Annotated[Count, _COUNT] = 1_000_000_000
    bytes: Annotated[Count, _COUNT] = 10_000_000_000
    batches: Annotated[Count, _COUNT] = 100


SOON_S: Final = 1
"""Seconds after which a client may retry when all places were taken: requests end all the time."""


class TenantPlaces:
    """Places that tenants share, with a limit for each tenant and for all.

    Args:
        what: Name of the things that take places, in the plural.
        most: The most places of all tenants together.
    """

    def __init__(self, what: str, most: int) -> None:
        self._what, self._most = what, most
        self._of_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._of_tenant.total()

    @contextmanager
    def taken(self, tenant: str, most: int) -> Iterator[None]:
        """Take one place for the tenant, which may have ``most``. Raises: QueueFull."""
        if self._of_tenant[tenant] >= most:
            text = f"{most} of {most} {self._what} of yours are in progress; wait until one of them ends"
            raise QueueFull(text, SOON_S, "")
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
