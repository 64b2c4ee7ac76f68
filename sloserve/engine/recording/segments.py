"""Segments of a recording: files of bounded size, each a header and frames with a checksum.

A frame is a batch of events, compressed, behind its length and CRC. A process that is killed leaves a torn frame at the
end of its last segment; a reader drops it, and whatever follows the first frame that does not check. Only the user of
the server can read the files. When all segments together reach their bound, the oldest is removed.
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from sloserve.core.errors import ConfigError
from sloserve.engine.recording.events import FORMAT, Event, SegmentHead

MAGIC: Final = b"sloserve recording 1\n"
SUFFIX: Final = ".slorec"
PARTS: Final = 8
"""Segments among which the bound is divided, so that at least seven eighths of it are kept."""
MOST_FRAME_BYTES: Final = 1 << 24
"""Most bytes of a frame, compressed or not; a longer one was not written by a recorder."""
_FRAME: Final = struct.Struct("<II")
_ENCODE: Final = msgspec.msgpack.Encoder()
_DECODE: Final = msgspec.msgpack.Decoder(list[Event])


def frame_of(events: Sequence[Event]) -> bytes:
    """Return events as one frame."""
    payload = zlib.compress(_ENCODE.encode(events), 1)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


class SegmentWriter:
    """Writes one recording.

    Args:
        folder: Folder of the segments; it is created if it does not exist.
        stem: Beginning of the names of the files, which is this recording's own.
        most_bytes: Most bytes of all segments together.

    Raises: OSError if the first segment cannot be created.
    """

    def __init__(self, folder: Path, stem: str, most_bytes: int) -> None:
        self._folder, self._stem, self._each_bytes = folder, stem, max(most_bytes // PARTS, 1)
        self._paths: list[Path] = []
        self._number = self._written = 0
        self._fd = -1
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._open()

    def write(self, events: Sequence[Event], head: Callable[[], SegmentHead]) -> bool:
        """Append a frame; begin another segment if this one is full.

        A frame that no segment has room for is not written, so that the bound of the recording holds.

        Args:
            events: Events of the frame.
            head: Function that returns the facts with which a segment begins.

        Returns: whether the frame was written.

        Raises: OSError, after which nothing more may be written.
        """
        frame = frame_of(events)
        if len(frame) > self._each_bytes:
            return False
        if self._written and self._written + len(frame) > self._each_bytes:
            os.close(self._fd)
            self._open()
        if not self._written:
            frame = MAGIC + frame_of([head()]) + frame
        _write_all(self._fd, frame)
        self._written += len(frame)
        return True

    def close(self) -> None:
        """Close the last segment; a second call has no effect."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._fd = -1
        while len(self._paths) >= PARTS:
            self._paths.pop(0).unlink(missing_ok=True)
        path = self._folder / f"{self._stem}-{self._number:06d}{SUFFIX}"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._paths.append(path)
        self._number, self._written = self._number + 1, 0


def read_segment(path: Path) -> Iterator[Event]:
    """Yield the events of a segment up to the first frame that is torn or damaged.

    Raises: ConfigError for a file that is no segment or has another format; OSError.
    """
    with path.open("rb") as file:
        begins = file.read(len(MAGIC))
        if begins != MAGIC and MAGIC.startswith(begins):
            return  # nothing was written yet, or the process was killed while it wrote the first bytes
        if begins != MAGIC:
            raise ConfigError(f"{path}: is not a segment of a recording of sloserve")
        is_first = True
        while len(header := file.read(_FRAME.size)) == _FRAME.size:
            length, crc = _FRAME.unpack(header)
            events = None if length > MOST_FRAME_BYTES else _events(file.read(length), length, crc)
            if events is None:
                return
            if is_first and not (events and isinstance(events[0], SegmentHead) and events[0].format == FORMAT):
                raise ConfigError(
                    f"{path}: does not begin with facts of format {FORMAT}; record and read with one version"
                )
            is_first = False
            yield from events


def _events(payload: bytes, length: int, crc: int) -> list[Event] | None:
    """Return the events of a frame; ``None`` for one that is torn or damaged."""
    if len(payload) < length or zlib.crc32(payload) != crc:
        return None
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(payload, MOST_FRAME_BYTES)
        return None if inflate.unconsumed_tail else _DECODE.decode(plain)
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
