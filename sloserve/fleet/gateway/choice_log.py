"""Writes the log of choices: on a thread of its own, in files of bounded size, and never at the cost of serving.

If a line cannot be written, for example because the disk is full, the log ends with one warning, and requests are
served on. Lines that come faster than the disk takes them are dropped and counted.
"""

import errno
import itertools
import logging
import os
import queue
import secrets
import stat
import threading
from pathlib import Path
from typing import Final

import msgspec

from sloserve.core.file_lock import close_lock, has_locked, open_to_lock
from sloserve.fleet.router.choice_records import ChoiceLine, RunLine

logger = logging.getLogger(__name__)

MOST_WAITING: Final = 4096
"""Most lines that wait for the disk."""
FILES: Final = 4
"""Number of files among which the size of the log is divided: the one being written, and older ones."""
_MODE: Final = 0o600
_encode = msgspec.json.Encoder().encode


class ChoiceLog:
    """The log of one gateway.

    Args:
        path: Path of the file that is written; older files have ``.1``, ``.2``, ``.3`` after it.
        most_bytes: Most bytes of all files.
        about: What the run's line says; its ``run`` is replaced by a random name.
    """

    def __init__(self, path: Path, most_bytes: int, about: RunLine) -> None:
        self._path, self._most_bytes = path, most_bytes // FILES
        self._about = msgspec.structs.replace(about, run=secrets.token_hex(8))
        self._waiting: queue.Queue[ChoiceLine | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="sloserve-choice-log", daemon=True)
        self._begun = False
        self.has_ended = False
        """Whether nothing is written any more, since writing failed or the log was closed."""

    def add(self, line: ChoiceLine) -> bool:
        """Accept a line for writing; return whether it was accepted. Never blocks and never raises."""
        if self.has_ended:
            return False
        if not self._begun:
            self._begun = True
            try:
                self._thread.start()
            except Exception as error:  # too many threads, for example, which must fail no request
                self.has_ended = True
                logger.warning("choices are not logged: cannot start the thread that writes %s: %s", self._path, error)
                return False
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Write what waits, and close the file. A disk that hangs is not waited for longer than a few seconds."""
        if self._begun and not self.has_ended:
            try:
                self._waiting.put(None, timeout=2.0)
            except queue.Full:
                pass
            self._thread.join(timeout=5.0)
        self.has_ended = True

    def _run(self) -> None:
        try:
            lock = open_to_lock(self._path.with_name(self._path.name + ".lock"))
            try:
                if has_locked(lock):
                    self._write_all()
                else:
                    logger.warning("choices are not logged: another gateway writes %s; give each its own", self._path)
            finally:
                close_lock(lock)
        except Exception as error:
            logger.warning("choices are no longer logged: cannot write %s: %s", self._path, error)
        finally:
            self.has_ended = True

    def _write_all(self) -> None:
        files = _RotatingFiles(self._path, self._most_bytes, _encode(self._about) + b"\n")
        try:
            while (line := self._waiting.get()) is not None and not self.has_ended:
                files.write(_encode(line) + b"\n")
        finally:
            files.close()


class _RotatingFiles:
    """A file that only its user may read, and older ones beside it; each begins with the same line.

    Unlike the standard library's rotating handler it has no buffer, which a failed write would leave behind.

    Args:
        path: Path of the file that is written.
        most_bytes: Most bytes of each file.
        first: Line with which each file, and each use of it, begins.
    """

    def __init__(self, path: Path, most_bytes: int, first: bytes) -> None:
        self._path, self._most_bytes, self._first = path, most_bytes, first
        self._fd, self._size = -1, 0
        self._open()

    def write(self, line: bytes) -> None:
        """Write a line. Raises: OSError if it cannot be written whole."""
        if self._size + len(line) > self._most_bytes:
            self._rotate()
        self._size += len(line)
        if os.write(self._fd, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd = os.open(self._path, flags, _MODE)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise OSError(errno.EINVAL, "not a regular file")
        os.fchmod(self._fd, _MODE)
        self._size = found.st_size
        is_torn = self._size > 0 and os.pread(self._fd, 1, self._size - 1) != b"\n"
        begin = b"\n" * is_torn + self._first
        self._size += len(begin)
        os.write(self._fd, begin)

    def _rotate(self) -> None:
        self.close()
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{i}") for i in range(1, FILES))]
        for newer, older in reversed(list(itertools.pairwise(names))):
            if newer.exists():
                newer.replace(older)
        self._open()
