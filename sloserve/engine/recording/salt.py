"""Hashes of names and contents that mean nothing outside the recordings of one server."""

import hashlib
import os
from collections.abc import Hashable, Sequence
from typing import Final

from sloserve.engine.recording.events import HASH_BYTES

KEY_BYTES: Final = 16
MOST_STRETCHES: Final = 4096
"""Most hashes of a prompt, the ones of its beginning: a client decides how long prompts are."""


class Salt:
    """Hashes names and contents with a key that is never written."""

    def __init__(self, key: bytes | None = None) -> None:
        """Take a key of :data:`KEY_BYTES` bytes; ``None`` for a random one."""
        self._key = os.urandom(KEY_BYTES) if key is None else key

    def name(self, name: object) -> int:
        """Return a hash of a name; 0 for no name."""
        if name in (None, "", 0):
            return 0
        return int.from_bytes(self._digest(repr(name).encode(errors="surrogatepass"))) or 1

    def contents(self, contents: Sequence[Hashable]) -> bytes:
        """Return a hash of each of the first :data:`MOST_STRETCHES` entries, one after another."""
        kept = contents[:MOST_STRETCHES]
        return b"".join(self._digest(one if isinstance(one, bytes) else repr(one).encode()) for one in kept)

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=HASH_BYTES, key=self._key).digest()
