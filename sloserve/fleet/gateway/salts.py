"""What a fleet's secret makes: salts of prefix caches by tenant, ids of responses that name their instance, and more.

A prefix cache answers sooner where it has a prompt, which would tell a tenant that another has sent it. Prompts with
different salts share nothing in the cache. A salt is a keyed hash of the tenant's name, so that another client of an
attached server cannot name it; a client's own salt is hashed with it.

Stored responses are in the memory of one engine. The id of a response, which the gateway makes, says which instance has
it, and is valid for one tenant alone. So any gateway of the fleet finds it, and keeps nothing.

Gateways tell each other of tasks by hashes of their names.
"""

import functools
import hashlib
import hmac
import secrets
from collections.abc import Collection
from typing import Final

_SALT: Final = b"cache salt"
_RESPONSE: Final = b"response id"
_INSTANCE: Final = b"instance"
_TASK: Final = b"task"
_PREFIX: Final = "resp_"
_RANDOM_BYTES, _INSTANCE_BYTES, _PROOF_BYTES, _SALT_BYTES = 16, 8, 8, 16
_MOST_KEPT: Final = 8192
"""Most hashes of names, of instances and of tenants, that are kept."""


class FleetSecret:
    """The secret that all gateways of a fleet share.

    Args:
        mark: Mark of the fleet's files, the same for all gateways; ``None`` for a gateway by itself.
    """

    def __init__(self, mark: str | None) -> None:
        self._key = secrets.token_bytes(32) if mark is None else hashlib.sha256(mark.encode()).digest()
        self._tag = functools.lru_cache(_MOST_KEPT)(lambda name: self._digest(_INSTANCE, _INSTANCE_BYTES, name))
        self._of_tenant = functools.lru_cache(_MOST_KEPT)(lambda tenant: self._digest(_SALT, _SALT_BYTES, tenant))

    def salt(self, tenant: str, own: str | None) -> str:
        """Return the ``cache_salt`` of a tenant's prompts.

        Args:
            tenant: Name of the tenant.
            own: Salt that the client sent; ``None`` for none.
        """
        return self._of_tenant(tenant) if own is None else self._digest(_SALT, _SALT_BYTES, tenant, own)

    @property
    def for_tasks(self) -> bytes:
        """Secret with which names of tasks are hashed."""
        return hashlib.blake2b(key=self._key, person=_TASK, digest_size=32).digest()

    def response_id(self, tenant: str, instance: str) -> str:
        """Make the id of a response that an instance will store."""
        id = secrets.token_hex(_RANDOM_BYTES) + self._tag(instance)
        return f"{_PREFIX}{id}{self._proof(tenant, id)}"

    def instance_of(self, response_id: str, tenant: str, instances: Collection[str]) -> str | None:
        """Return the instance that stored a response.

        Args:
            response_id: Id of the response.
            tenant: Tenant that asks.
            instances: Names of the instances that exist.

        Returns: ``None`` for an id that is not of this fleet or tenant, or of an instance that does not exist.
        """
        text = response_id.removeprefix(_PREFIX)
        id, proof = text[: -2 * _PROOF_BYTES], text[-2 * _PROOF_BYTES :]
        if text == response_id or not text.isascii() or not hmac.compare_digest(proof, self._proof(tenant, id)):
            return None
        tag = id[2 * _RANDOM_BYTES :]
        return next((name for name in instances if self._tag(name) == tag), None)

    def _proof(self, tenant: str, id: str) -> str:
        return self._digest(_RESPONSE, _PROOF_BYTES, tenant, id)

    def _digest(self, use: bytes, size: int, *words: str) -> str:
        """Return a keyed hash of words, of ``size`` bytes in hexadecimal digits; each use has hashes of its own."""
        made = hashlib.blake2b(key=self._key, person=use, digest_size=size)
        for word in words:
            text = word.encode("utf-8", "surrogatepass")
            made.update(len(text).to_bytes(8, "big") + text)
        return made.hexdigest()
