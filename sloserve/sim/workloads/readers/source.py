"""The parts that readers share: opening a file, plain or gzipped, the raw rows, and the limits of a value."""

import gzip
import io
import logging
import reprlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.errors import ConfigError
from sloserve.core.request import PREFIX_BLOCK_TOKENS

MAX_TOKENS = 10_000_000
"""The most tokens of a prompt or output that a row may state; more than any model's context is a typing error."""

MAX_ARRIVAL_S = 10 * 365 * 86_400.0
"""The latest arrival that a row may state, in seconds: ten years; epoch times in place of durations lie beyond it."""

TOKENS_ALLOWED = f"a whole number of tokens from 0 to {MAX_TOKENS}"
"""The allowed values of a token count.

Rows with 0 tokens are read, and left out by one rule for all formats (:meth:`RawRows.served`).
"""

logger = logging.getLogger(__name__)

GZIP_MAGIC = b"\x1f\x8b"

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


@dataclass(frozen=True, slots=True, eq=False)
class RawRows:
    """The rows of a file in its own order, checked; all columns ``[rows]``.

    Args:
        arrival_s: Arrivals in seconds; ``None`` for a file of lengths only.
        prompt_tokens: Tokens of each prompt, which may be 0.
        output_tokens: Tokens of each output, which may be 0.
        task: The label of each row.
        prefix_ids: Ids of the blocks of each prompt; ``None`` for a file without them.
        lines: Line number of each row; ``None`` where no later check names a line.
        unit: Unit of the arrivals as the file states them.
        block_tokens: Tokens that one of ``prefix_ids`` stands for in this format.
        tenant: Name of the tenant of each row, empty for none; ``None`` for a file without tenants.
    """

    arrival_s: FloatArray | None
    prompt_tokens: IntArray
    output_tokens: IntArray
    task: list[str]
    prefix_ids: list[tuple[int, ...]] | None = None
    lines: list[int] | None = None
    unit: str = "seconds"
    block_tokens: int = PREFIX_BLOCK_TOKENS
    tenant: list[str] | None = None

    def served(self, path: Path) -> "RawRows":
        """Return the rows that have at least one token of prompt and output; count the others in one warning.

        Raises: ConfigError where that leaves no row.
        """
        kept = np.flatnonzero((self.prompt_tokens > 0) & (self.output_tokens > 0))
        rows, left_out = self.prompt_tokens.size, self.prompt_tokens.size - kept.size
        if not left_out:
            return self
        if not kept.size:
            raise ConfigError(
                f"{path}: all {rows} requests have a prompt or an output of 0 tokens; at least 1 is needed"
            )
        logger.warning(
            "%s: left out %d of %d requests, which have a prompt or an output of 0 tokens", path, left_out, rows
        )
        return replace(
            self,
            arrival_s=None if self.arrival_s is None else self.arrival_s[kept],
            prompt_tokens=self.prompt_tokens[kept],
            output_tokens=self.output_tokens[kept],
            task=[self.task[i] for i in kept],
            prefix_ids=None if self.prefix_ids is None else [self.prefix_ids[i] for i in kept],
            lines=None if self.lines is None else [self.lines[i] for i in kept],
            tenant=None if self.tenant is None else [self.tenant[i] for i in kept],
        )


@contextmanager
def open_trace(path: Path) -> Iterator[TextIO]:
    """Open the file as text lines, unzipped if its first bytes show that it is gzip.

    Raises: ConfigError when the file cannot be opened, or, while it is read, is no text or a damaged gzip file.
    """
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == GZIP_MAGIC
            raw.seek(0)
            binary = gzip.GzipFile(fileobj=raw) if zipped else raw
            with io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as text:
                yield text
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: is not UTF-8 text (byte {error.start}: {error.reason}); a trace is CSV or JSON lines"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path}: is a damaged gzip file ({error})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None


def bad_cell(path: Path, line: int, column: str, value: object, allowed: str) -> ConfigError:
    """Return the error for a malformed value, which is shortened if it is long."""
    return ConfigError(f"{path}:{line}: column {column!r}: {_SHORT.repr(value)} is not {allowed}")


def stem(path: Path) -> str:
    """Return the file's name without the endings of traces."""
    return path.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".jsonl").removesuffix(".json")
