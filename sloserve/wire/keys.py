"""Keys of tenants: hashes in a file that is read again when it changes, and the tenant that a key stands for.

    tenants:
      acme:
        keys:
          - sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
        class: interactive
        models: [chat]
      monitoring:
        keys: [sha256:fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9]
        models: []
        metrics: true

The file holds hashes, so that a reader of the file cannot use the keys. A key has 256 random bits, which is why a plain
hash of it is as good as a slow one. A tenant may have several, to replace one while another is in use. The old keys
stay if the changed file has a fault.

A server and a fleet's gateway each have a kind of file with limits of their own, which these functions read.
"""

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from sloserve.core.clock import Clock
from sloserve.core.errors import ConfigError
from sloserve.core.files.marked_yaml import Node
from sloserve.core.files.model import Allowed, Problem, at_place, check_model, unknown
from sloserve.core.slo import ClassTable

logger = logging.getLogger(__name__)

PREFIX: Final = "sloserve-"
LOOK_S: Final = 1.0
"""Least seconds between two looks at the file."""

_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")
_KEY: Final = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{32,}}")
_TENANT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class KeyEntry(BaseModel):
    """Entry of one tenant in a file of keys; a kind of file adds its limits."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    keys: Annotated[list[str], Field(min_length=1), Allowed("a list of at least one hash, as sha256:HEX")]
    slo_class: Annotated[str | None, Field(alias="class"), Allowed("the name of a class")] = None
    models: Annotated[list[str] | None, Allowed("a list of models")] = None
    metrics: Annotated[bool, Field(strict=True), Allowed("true or false")] = False


@dataclass(frozen=True, slots=True)
class KeyTenant:
    """The tenant that a key stands for.

    Args:
        name: Name of the owner of its requests.
        slo_class: Most urgent class that it may use; ``None`` for the class that the settings give a tenant of its
            name.
        models: Models that it may use, and knows of; ``None`` for all.
        metrics: Whether it may read the page of metrics.
    """

    name: str
    slo_class: str | None = None
    models: frozenset[str] | None = None
    metrics: bool = False

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models


Entry = TypeVar("Entry", bound=KeyEntry)
Tenant = TypeVar("Tenant", bound=KeyTenant)


class Keys(Generic[Tenant]):
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


def keys_of(
    root: Node,
    entry: type[Entry],
    tenant: Callable[[str, Entry], Tenant],
    classes: ClassTable,
    models: Collection[str] | None = None,
) -> Keys[Tenant]:
    """Return the keys in a file.

    Args:
        root: Root of the file.
        entry: Model of a tenant's entry.
        tenant: Makes a tenant of its name and its entry.
        classes: The classes that an entry may name.
        models: The models that an entry may name; ``None`` if they are not known.

    Raises: ConfigError that lists every fault, one line each.
    """
    try:
        return Keys(_found(root, entry, tenant, classes, models))
    except ConfigError as error:
        # A key that stands where something else belongs must not be logged.
        raise ConfigError(_KEY.sub(f"{PREFIX}...", str(error))) from None


def _found(
    root: Node,
    entry: type[Entry],
    tenant: Callable[[str, Entry], Tenant],
    classes: ClassTable,
    models: Collection[str] | None,
) -> dict[bytes, Tenant]:
    """Return the tenants by the SHA-256 of a key; see :func:`keys_of`."""
    top = root.mapping(("tenants",))
    if "tenants" not in top or not top["tenants"].mapping():
        raise top.get("tenants", root).fail("no tenants; give at least one, under tenants: a name, and its keys")
    problems: list[Problem] = []
    found: dict[bytes, Tenant] = {}
    for name, node in top["tenants"].mapping().items():
        at = ("tenants", name)
        if not _TENANT.fullmatch(name):
            problems.append(Problem(at, "a tenant's name is 1 to 64 letters, digits, dots, dashes and underscores"))
        values = node.plain()
        read, wrong = check_model(entry, values, at)
        has_keys = isinstance(values, dict) and bool(values.get("keys"))
        problems += [_unrepeated(one) if has_keys and one.path[2:3] == ("keys",) else one for one in wrong]
        if read is None:
            continue
        problems += _unknown(read, at, classes, models)
        owner = tenant(name, read)
        for i, text in enumerate(read.keys):
            problems += _add(found, owner, text, (*at, "keys", i))
    if problems:
        raise ConfigError("\n".join(at_place(root, problem) for problem in problems))
    return found


def _unrepeated(problem: Problem) -> Problem:
    """Return a problem of what stands under ``keys``, which may be a key itself, without what stands there."""
    return Problem(problem.path, "is not a list of hashes, as sha256:HEX; `sloserve key` makes a key and its hash")


def _unknown(
    entry: KeyEntry, at: tuple[str, ...], classes: ClassTable, models: Collection[str] | None
) -> Iterator[Problem]:
    if entry.slo_class is not None and entry.slo_class not in classes:
        yield Problem((*at, "class"), f"class {entry.slo_class!r} {unknown(entry.slo_class, classes.names)}")
    for i, model in enumerate(entry.models or []):
        if models is not None and model not in models:
            yield Problem((*at, "models", i), f"model {model!r} {unknown(model, tuple(models))}")


def _add(found: dict[bytes, Tenant], tenant: Tenant, text: str, at: tuple[str | int, ...]) -> Iterator[Problem]:
    match = _HASH.fullmatch(text)
    if match is None:
        # The text may be the key itself, so that it is not repeated.
        yield Problem(at, "is not sha256: and 64 hexadecimal digits; `sloserve key` makes both")
        return
    digest = bytes.fromhex(match[1])
    if digest in found:
        yield Problem(at, f"is the hash of a key of {found[digest].name!r} already; a key has one tenant")
        return
    found[digest] = tenant


class WatchedKeys(Generic[Tenant]):
    """The keys of a file, read again when the file changes."""

    def __init__(self, path: Path, read: Callable[[Path], Keys[Tenant]], clock: Clock) -> None:
        """Read the file.

        Args:
            path: The file.
            read: Reads the keys of a file.
            clock: Gives the time of the looks at the file.

        Raises: ConfigError if the file has a fault.
        """
        self._path, self._read, self._clock = path, read, clock
        self._seen = self._version()
        self._keys = read(path)
        self._looked_s = clock.monotonic_s()
        self.faults = 0
        """Number of times that a changed file could not be used."""

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._keys)

    def tenant_of(self, key: bytes) -> Tenant | None:
        """Return the tenant that owns a key; ``None`` for an unknown key."""
        self._look()
        return self._keys.tenant_of(key)

    def named(self, name: str) -> Tenant | None:
        """Return the tenant of a name; ``None`` for one that is not in the file."""
        return next((one for one in self._keys if one.name == name), None)

    def _look(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        version = self._version()
        if version == self._seen:
            return
        self._seen = version
        try:
            self._keys = self._read(self._path)
            logger.info("keys read again from %s", self._path)
        except ConfigError as error:
            self.faults += 1
            logger.error("the previous keys stay in use, since the changed file has a fault: %s", error)

    def _version(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:  # between the two steps of an editor that replaces it
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
