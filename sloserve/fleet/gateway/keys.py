"""The file of keys: it alone decides to which tenant a request belongs, and what the tenant may use.

    tenants:
      acme:
        keys:
          - sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
        class: interactive
        models: [chat]
        quota: {requests: 64, lines: 100000, tokens: 50000000}
      monitoring:
        keys: [sha256:fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9]
        models: []
        metrics: true

The file holds hashes, so that a reader of the file cannot use the keys. A key has 256 random bits, which is why a plain
hash of it is as good as a slow one. A tenant may have several, to replace one while another is in use. `sloserve fleet
key` prints a new one, and what stands in the file for it.

The file is read again when it changes, and the old keys stay if the new file has a fault.
"""

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from sloserve.core.clock import Clock
from sloserve.core.errors import ConfigError
from sloserve.core.files.json_schema import schema_of
from sloserve.core.files.marked_yaml import Node, load_yaml
from sloserve.core.files.model import Allowed, Problem, at_place, check_model, unknown
from sloserve.core.slo import ClassTable
from sloserve.fleet.tenant_limits import Quota
from sloserve.wire.asgi import bearer

PREFIX: Final = "sloserve-"
LOCAL: Final = "local"
"""Name of the one tenant of a gateway without a file of keys."""

_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")
_TENANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    keys: Annotated[list[str], Field(min_length=1), Allowed("a list of at least one hash, as sha256:HEX")]
    slo_class: Annotated[str | None, Field(alias="class"), Allowed("the name of a class")] = None
    models: Annotated[list[str] | None, Allowed("a list of models")] = None
    metrics: Annotated[bool, Field(strict=True), Allowed("true or false")] = False
    quota: Annotated[Quota, Allowed("a mapping with requests, lines, tokens, bytes, batches")] = Quota()


class KeysFile(BaseModel):
    """The file as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenants: Annotated[dict[str, _Entry], Field(min_length=1), Allowed("a mapping of tenant to its keys and limits")]


@dataclass(frozen=True, slots=True)
class Tenant:
    """The tenant that a key stands for.

    Args:
        name: Name of the owner of its requests, batches and files.
        slo_class: Most urgent class that it may use; ``None`` for the class that the settings give a tenant of its
            name.
        models: Models that it may use, and knows of; ``None`` for all.
        metrics: Whether it may read the page of metrics.
        quota: Most requests, lines, tokens, bytes and batches that it may have at a time.
    """

    name: str
    slo_class: str | None = None
    models: frozenset[str] | None = None
    metrics: bool = False
    quota: Quota = field(default_factory=Quota)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


class Keys:
    """Tenants by their keys. The time of a look-up reveals nothing of any key."""

    def __init__(self, tenants: Mapping[bytes, Tenant]) -> None:
        """Store the tenants by a secret hash.

        Args:
            tenants: Tenants by the SHA-256 of a key.
        """
        self._secret = secrets.token_bytes(32)
        # An entry is found by a hash with a key that is known nowhere else, and only then compared.
        self._tenants = {self._place(digest): (digest, tenant) for digest, tenant in tenants.items()}

    def __iter__(self) -> Iterator[Tenant]:
        return iter({tenant.name: tenant for _, tenant in self._tenants.values()}.values())

    def tenant_of(self, key: bytes) -> Tenant | None:
        """Return the tenant that owns a key; ``None`` for an unknown key."""
        digest = hashlib.sha256(key).digest()
        known, tenant = self._tenants.get(self._place(digest), (bytes(32), None))
        return tenant if hmac.compare_digest(known, digest) else None

    def _place(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()


def new_key() -> tuple[str, str]:
    """Make a new key, and return it with what stands in the file for it."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hash_of(key)


def hash_of(key: str) -> str:
    """Return what stands in the file for a key."""
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def read_keys(path: Path, classes: ClassTable, models: Collection[str]) -> Keys:
    """Read the keys in the file at ``path``. Raises: ConfigError that lists every fault, one line each."""
    return _keys(load_yaml(path), classes, models)


def _keys(root: Node, classes: ClassTable, models: Collection[str]) -> Keys:
    top = root.mapping(tuple(KeysFile.model_fields))
    if "tenants" not in top or not top["tenants"].mapping():
        raise top.get("tenants", root).fail("no tenants; give at least one, under tenants: a name, and its keys")
    problems: list[Problem] = []
    found: dict[bytes, Tenant] = {}
    for name, node in top["tenants"].mapping().items():
        at = ("tenants", name)
        if not _TENANT.fullmatch(name):
            problems.append(Problem(at, "a tenant's name is 1 to 64 letters, digits, dots, dashes and underscores"))
        entry, wrong = check_model(_Entry, node.plain(), at)
        problems += wrong
        if entry is None:
            continue
        problems += _unknown(entry, at, classes, models)
        of_all = None if entry.models is None else frozenset(entry.models)
        tenant = Tenant(name, entry.slo_class, of_all, entry.metrics, entry.quota)
        for i, text in enumerate(entry.keys):
            problems += _add(found, tenant, text, (*at, "keys", i))
    if problems:
        raise ConfigError("\n".join(at_place(root, problem) for problem in problems))
    return Keys(found)


def _unknown(entry: _Entry, at: tuple[str, ...], classes: ClassTable, models: Collection[str]) -> Iterator[Problem]:
    if entry.slo_class is not None and entry.slo_class not in classes:
        yield Problem((*at, "class"), f"class {entry.slo_class!r} {unknown(entry.slo_class, classes.names)}")
    for i, model in enumerate(entry.models or []):
        if model not in models:
            yield Problem((*at, "models", i), f"model {model!r} {unknown(model, tuple(models))}")


def _add(found: dict[bytes, Tenant], tenant: Tenant, text: str, at: tuple[str | int, ...]) -> Iterator[Problem]:
    match = _HASH.fullmatch(text)
    if match is None:
        # The text may be the key itself, so that it is not repeated.
        yield Problem(at, "is not sha256: and 64 hexadecimal digits; `sloserve fleet key` makes both")
        return
    digest = bytes.fromhex(match[1])
    if digest in found:
        yield Problem(at, f"is the hash of a key of {found[digest].name!r} already; a key has one tenant")
        return
    found[digest] = tenant


def keys_schema() -> dict[str, Any]:
    """Return the JSON schema of KeysFile, for ``sloserve schema keys``."""
    return schema_of(KeysFile, "Keys of a fleet of sloserve")


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
