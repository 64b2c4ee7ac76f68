"""Ids that clients see.

Ids that the fleet chooses are 128 random bits, so that none can be guessed. The others are derived from them, so that
work that is repeated after a crash is done to the same thing.
"""

import hashlib
import secrets


def new_file() -> str:
    return f"file-{secrets.token_hex(16)}"


def new_batch() -> str:
    return f"batch_{secrets.token_hex(16)}"


def request_of(batch: str, line: int) -> str:
    """Return the id of a batch's request on this ``line``, counted from 1."""
    return f"batch_req_{_digest(batch, str(line))}"


def result_file_of(batch: str, kind: str) -> str:
    """Return the id of a batch's file of results of this ``kind``, ``output`` or ``error``."""
    return f"file-{_digest(batch, kind)}"


def confirmation_file_of(batch: str) -> str:
    """Return the id of the file that says that a batch's client knows that it is kept."""
    return result_file_of(batch, "confirmation")


def number_of(*parts: str) -> int:
    """Return a number below 2**53 that is the same for the same parts."""
    return int(_digest(*parts)[:13], 16)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
