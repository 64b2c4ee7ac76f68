"""What the readers share: opening a file, plain or gzipped, the raw rows they hand back, and the limits of a value."""

import gzip
import io
import reprlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.errors import ConfigError
from sloserve.core.request import PREFIX_BLOCK_TOKENS

MAX_TOKENS = 10_000_000
"""Longest prompt or output a row may state; longer than any model's context, so a typing error."""

MAX_ARRIVAL_S = 10 * 365 * 86_400.0
"""Latest arrival a row may state, seconds: ten years. Epoch times in place of durations lie beyond it."""

TOKENS_ALLOWED = f"a whole number of tokens from 1 to {MAX_TOKENS}"

GZIP_MAGIC = b"\x1f\x8b"

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


@dataclass(frozen=True, slots=True, eq=False)
class RawRows:
    """The rows of a file in its own order, checked; all columns ``[rows]``.

    arrival_s: ``None`` for a file of lengths only. prefix_ids: ``None`` for a file without them.
    """

    arrival_s: FloatArray | None
    prompt_tokens: IntArray
    output_tokens: IntArray
    task: list[str]
    prefix_ids: list[tuple[int, ...]] | None = None


@contextmanager
def open_trace(path: Path) -> Iterator[TextIO]:
    """The file as text lines, unzipped if it is gzip by its first bytes.

    Raises: ConfigError when it cannot be opened, or, while it is read, is no text or a damaged gzip file.
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
    """The one message about a malformed value, which is shortened if it is long."""
    return ConfigError(f"{path}:{line}: column {column!r}: {_SHORT.repr(value)} is not {allowed}")


def check_prefix_ids(path: Path, line: int, column: str, ids: tuple[int, ...], prompt_tokens: int) -> None:
    """Raises ConfigError for a prompt with more ids than 512-token blocks: its ids stand for blocks of another size."""
    blocks = -(-prompt_tokens // PREFIX_BLOCK_TOKENS)
    if len(ids) > blocks:
        raise bad_cell(
            path,
            line,
            column,
            f"{len(ids)} ids",
            f"possible for {prompt_tokens} prompt tokens, which fill {blocks} blocks of {PREFIX_BLOCK_TOKENS}",
        )
