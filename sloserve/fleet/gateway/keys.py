"""The file of keys of a fleet: it alone decides to which tenant a request belongs, and what the tenant may use.

    tenants:
      acme:
        keys:
          - sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
        class: interactive
        models: [chat]
        quota: {requests: 64, lines: 100000, tokens: 50000000}

See :mod:`sloserve.wire.keys`; a fleet has quotas of batches besides.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from sloserve.core.clock import Clock
from sloserve.core.files.json_schema import schema_of
from sloserve.core.files.kinds import reading
from sloserve.core.files.marked_yaml import Node, load_yaml
from sloserve.core.files.model import Allowed
from sloserve.core.slo import ClassTable
from sloserve.fleet.tenant_limits import Quota
from sloserve.wire.keys import KeyEntry, Keys, KeyTenant, WatchedKeys, keys_of

LOCAL: Final = "local"
"""Name of the one tenant of a gateway without a file of keys."""


class FleetKeyEntry(KeyEntry):
    """Entry of one tenant of a fleet."""

    quota: Annotated[
        Quota,
        Allowed("a mapping with requests, requests_per_minute, tokens_per_minute, lines, tokens, bytes, batches"),
    ] = Quota()


class KeysFile(BaseModel):
    """The file as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenants: Annotated[
        dict[str, FleetKeyEntry], Field(min_length=1), Allowed("a mapping of tenant to its keys and limits")
    ]


@dataclass(frozen=True, slots=True)
class Tenant(KeyTenant):
    """The tenant that a key stands for; it owns batches and files as well.

    Args:
        quota: Most requests, lines, tokens, bytes and batches that it may have at a time.
    """

    quota: Quota = field(default_factory=Quota)


def read_keys(path: Path, classes: ClassTable, models: Collection[str]) -> Keys[Tenant]:
    """Read the keys in the file at ``path``. Raises: ConfigError that lists every fault, one line each."""
    return _keys(load_yaml(path), classes, models)


def _keys(root: Node, classes: ClassTable, models: Collection[str]) -> Keys[Tenant]:
    return keys_of(root, FleetKeyEntry, _tenant, classes, models)


def _tenant(name: str, entry: FleetKeyEntry) -> Tenant:
    of_all = None if entry.models is None else frozenset(entry.models)
    return Tenant(name, entry.slo_class, of_all, entry.metrics, entry.quota)


def keys_schema() -> dict[str, Any]:
    """Return the JSON schema of KeysFile, for ``sloserve schema keys``."""
    return schema_of(KeysFile, "Keys of a fleet of sloserve")


_LOCAL: Final = Tenant(LOCAL, metrics=True, quota=Quota(requests=2**53))
"""Tenant of a gateway without keys; the limit of the gateway is its limit of requests, too."""


class KeyFile:
    """Finds the tenant of a request by its key. Without a file all requests belong to one tenant."""

    def __init__(self, path: Path | None, classes: ClassTable, models: Collection[str], clock: Clock) -> None:
        """Read the file. Raises: ConfigError if the file has a fault."""
        self._keys: WatchedKeys[Tenant] | None = None
        if path is not None:
            with reading("keys", path):
                self._keys = WatchedKeys(path, lambda file: read_keys(file, classes, models), clock)

    @property
    def is_open(self) -> bool:
        """Whether requests need no key."""
        return self._keys is None

    @property
    def faults(self) -> int:
        """Number of times that a changed file could not be used."""
        return 0 if self._keys is None else self._keys.faults

    def tenants(self) -> Iterable[Tenant]:
        """Return all tenants of the file."""
        return () if self._keys is None else self._keys

    def tenant_of(self, key: bytes) -> Tenant | None:
        """Return the tenant that owns a key, or ``None`` if the key is unknown."""
        return _LOCAL if self._keys is None else self._keys.tenant_of(key)

    def named(self, tenant: str) -> Tenant:
        """Return the tenant of this name.

        A tenant that is no longer in the file may use no model: accepted lines of its batches still run, and no others
        do.
        """
        if self._keys is None:
            return Tenant(tenant)
        return self._keys.named(tenant) or Tenant(tenant, models=frozenset())
