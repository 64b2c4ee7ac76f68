"""Ids of what clients see. Those of ours to choose are 128 random bits, so that none can be guessed; the others follow
from these, so that whatever is done twice after a crash is done to the same thing.
"""

import hashlib
import secrets


def new_file() -> str:
    return f"file-{secrets.token_hex(16)}"


def new_batch() -> str:
    return f"batch_{secrets.token_hex(16)}"


def request_of(batch: str, line: int) -> str:
    """The id of a batch's request. line: its number, from 1."""
    return f"batch_req_{_digest(batch, str(line))}"


def result_file_of(batch: str, kind: str) -> str:
    """The id of a batch's file of results. kind: ``output`` or ``error``."""
    return f"file-{_digest(batch, kind)}"


def number_of(*parts: str) -> int:
    """The same number for the same parts, below 2**53."""
    return int(_digest(*parts)[:13], 16)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
