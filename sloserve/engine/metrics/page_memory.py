"""What every page looks like: one small memory-mapped file per process, which that process writes and others read.

No process waits and no message is sent. Each figure is one aligned slot of eight bytes, written by one store, so no
value is ever torn. A reading may mix values of two adjacent moments, which harms neither counters nor gauges.

Layout: magic, version, sizes, the fixed facts as JSON, scratch bytes; then slots of float64 (counts are exact to 2**53)
and slots of uint64. The size is fixed when the page is made. Readers skip files of another version.
"""

import json
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sloserve.core.arrays import FloatArray
from sloserve.engine.metrics import page_folder
from sloserve.engine.metrics.page_folder import PageFile

Page = TypeVar("Page")

_MAGIC, _VERSION = b"sloserve", 10
_PROLOGUE = struct.Struct("<8sIIIII")  # magic, version, bytes of the JSON, scratch bytes, slots of either kind


@dataclass(frozen=True)
class PageMemory:
    """A page as its one writer, or a reader, has it in memory.

    A reader's arrays cannot be written, except for a page on which readers leave something for its writer.
    """

    path: Path
    facts: Mapping[str, Any]
    scratch: memoryview
    floats: FloatArray
    words: NDArray[np.uint64]

    @staticmethod
    def create(
        kind: str, rank: int, facts: Mapping[str, Any], *, floats: int, words: int, scratch: int, folder: Path | None
    ) -> "PageMemory":
        """Create a page of this process, all zeros but for ``facts``.

        Pages left behind by other processes are removed at the same time.

        Args:
            kind: Kind of the page, part of its file's name.
            rank: Rank of this process.
            facts: Facts that stay fixed; safe to write as JSON.
            floats: Number of slots of float64.
            words: Number of slots of uint64.
            scratch: Bytes for text.
            folder: Folder of the file; ``None`` for the usual one.

        Raises: OSError when no file can be made.
        """
        folder = page_folder.page_folder() if folder is None else folder
        page_folder.sweep(folder)
        text = json.dumps(facts).encode()
        content = bytearray(_slots_at(len(text), scratch) + 8 * (floats + words))
        _PROLOGUE.pack_into(content, 0, _MAGIC, _VERSION, len(text), scratch, floats, words)
        content[_PROLOGUE.size : _PROLOGUE.size + len(text)] = text
        path, memory = page_folder.create(folder, kind, rank, bytes(content))
        return _view(path, memory)

    @staticmethod
    def open(file: PageFile, *, writes: bool = False) -> "PageMemory":
        """Open a page.

        Args:
            file: File of the page.
            writes: Whether the reader may write.

        Raises: OSError, or ValueError for a file that is no page of this version.
        """
        access = mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ
        with open(file.path, "r+b" if writes else "rb") as opened:
            return _view(file.path, mmap.mmap(opened.fileno(), 0, access=access))

    def close(self) -> None:
        """Remove the page; readers that have it mapped keep its last state."""
        self.path.unlink(missing_ok=True)


def found(kind: str, read: Callable[[PageFile], Page], folder: Path | None = None) -> list[Page]:
    """Return the pages of this server's processes of a kind, by rank.

    There are none if the processes run on another host, or made none. The call is fast enough for each scrape, by which
    processes that start late are found.

    Raises: OSError.
    """
    pages = []
    for file in page_folder.page_files(page_folder.page_folder() if folder is None else folder, kind):
        try:
            pages.append(read(file))
        except (OSError, ValueError):
            continue  # it has just gone, or is another release's
    return pages


def _slots_at(text_bytes: int, scratch: int) -> int:
    return -(-(_PROLOGUE.size + text_bytes + scratch) // 8) * 8


def _view(path: Path, memory: mmap.mmap) -> PageMemory:
    magic, version, text_bytes, scratch, floats, words = _PROLOGUE.unpack_from(memory)
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError(f"{path}: not a page of version {_VERSION}")
    text_end = _PROLOGUE.size + text_bytes
    at = _slots_at(text_bytes, scratch)
    return PageMemory(
        path,
        json.loads(memory[_PROLOGUE.size : text_end]),
        memoryview(memory)[text_end : text_end + scratch],
        np.frombuffer(memory, np.float64, floats, at),
        np.frombuffer(memory, np.uint64, words, at + 8 * floats),
    )
