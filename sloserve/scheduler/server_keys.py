"""The file of keys of a server: it alone decides to which tenant a request belongs, and what the tenant may use.

    tenants:
      acme:
        keys:
          - sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
        class: interactive
        models: [chat, chat-legal]
        quota: {requests: 64, requests_per_minute: 600, tokens_per_minute: 200000}

See :mod:`sloserve.wire.keys`. Adapters may be loaded later, so a model of any name may stand in the file.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from sloserve.core.files.json_schema import schema_of
from sloserve.core.files.marked_yaml import load_yaml
from sloserve.core.files.model import Allowed
from sloserve.core.slo import ClassTable
from sloserve.wire.keys import KeyEntry, Keys, KeyTenant, keys_of
from sloserve.wire.rate_limits import RateQuota


class ServerQuota(RateQuota):
    """Limits of one tenant of a server; ``None`` for no limit.

    Args:
        requests: The most requests in progress, waiting and streaming.
    """

    requests: Annotated[
        Annotated[int, Field(strict=True, ge=0, le=2**53)] | None, Allowed("a whole number >= 0, or null")
    ] = None


class ServerKeyEntry(KeyEntry):
    """Entry of one tenant of a server."""

    quota: Annotated[ServerQuota, Allowed("a mapping with requests, requests_per_minute, tokens_per_minute")] = (
        ServerQuota()
    )


class ServerKeysFile(BaseModel):
    """The file as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenants: Annotated[
        dict[str, ServerKeyEntry], Field(min_length=1), Allowed("a mapping of tenant to its keys and limits")
    ]


@dataclass(frozen=True, slots=True)
class ServerTenant(KeyTenant):
    """The tenant that a key stands for.

    Args:
        quota: Limits of the tenant.
    """

    quota: ServerQuota = field(default_factory=ServerQuota)


def read_server_keys(path: Path, classes: ClassTable) -> Keys[ServerTenant]:
    """Read the keys in the file at ``path``. Raises: ConfigError that lists every fault, one line each."""
    return keys_of(load_yaml(path), ServerKeyEntry, _tenant, classes)


def _tenant(name: str, entry: ServerKeyEntry) -> ServerTenant:
    of_all = None if entry.models is None else frozenset(entry.models)
    return ServerTenant(name, entry.slo_class, of_all, entry.metrics, entry.quota)


def server_keys_schema() -> dict[str, Any]:
    """Return the JSON schema of ServerKeysFile, for ``sloserve schema server_keys``."""
    return schema_of(ServerKeysFile, "Keys of a server of sloserve")
