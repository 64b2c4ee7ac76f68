"""The current file of keys: it is read again when it changes, and the old keys stay if the new file has a fault."""

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final

from sloserve.core.clock import Clock
from sloserve.core.errors import ConfigError
from sloserve.core.slo import ClassTable
from sloserve.fleet.gateway.keys import LOCAL, Tenant, read_keys
from sloserve.fleet.quota import Quota
from sloserve.wire.asgi import bearer

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""Least seconds between two looks at the file."""

_LOCAL: Final = Tenant(LOCAL, metrics=True, quota=Quota(requests=2**53))
"""Tenant of a gateway without keys; the limit of the gateway is its limit of requests, too."""


class KeyFile:
    """Finds the tenant of a request by its key. Without a file all requests belong to one tenant."""

    def __init__(self, path: Path | None, classes: ClassTable, models: Collection[str], clock: Clock) -> None:
        """Read the file. Raises: ConfigError if the file has a fault."""
        self._path, self._classes, self._models, self._clock = path, classes, models, clock
        self._keys = None if path is None else read_keys(path, classes, models)
        self._seen = self._version()
        self._looked_s = clock.monotonic_s()
        self.faults = 0
        """Number of times that a changed file could not be used."""

    @property
    def is_open(self) -> bool:
        """Whether requests need no key."""
        return self._path is None

    def tenant_of(self, authorization: bytes) -> Tenant | None:
        """Return the tenant that owns the key in this header, or ``None`` if the key is unknown."""
        if self._path is None:
            return _LOCAL
        self._look()
        return None if self._keys is None else self._keys.tenant_of(bearer(authorization))

    def named(self, tenant: str) -> Tenant:
        """Return the tenant of this name.

        A tenant that is no longer in the file may use no model: accepted lines of its batches still run, and no others
        do.
        """
        if self._path is None:
            return Tenant(tenant)
        found = next((one for one in self._keys or () if one.name == tenant), None)
        return found or Tenant(tenant, models=frozenset())

    def _look(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        version = self._version()
        if version == self._seen or self._path is None:
            return
        self._seen = version
        try:
            self._keys = read_keys(self._path, self._classes, self._models)
            logger.info("keys read again from %s", self._path)
        except ConfigError as error:
            self.faults += 1
            logger.error("the previous keys stay in use, since the changed file has a fault: %s", error)

    def _version(self) -> tuple[int, int, int] | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:  # between the two steps of an editor that replaces it
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
