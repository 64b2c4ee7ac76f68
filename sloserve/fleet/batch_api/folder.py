"""The bytes of files, in a folder. A file's name is its id, chosen by the fleet: no name from a client is a path."""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar, Final

from sloserve.core.errors import ConfigError, StoreFull

ID: Final = re.compile(r"file-[0-9a-f]{32}")
_HALF: Final = ".part"
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""Error numbers of file systems without hard links."""
_NO_SPACE: Final = (28, 122)  # ENOSPC, EDQUOT


def checked(id: str) -> str:
    """Return the id itself. Raises: ValueError for text that is not the id of a file."""
    if not ID.fullmatch(id):
        raise ValueError(f"{id!r} is not the id of a file")
    return id


@contextmanager
def reporting_full(what: str) -> Iterator[None]:
    """Raise StoreFull in place of the system's error if the disk is full; ``what`` names what is on the disk."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise StoreFull(f"the disk of {what} is full; free some of it") from error
        raise


class Folder:
    """Files in a folder; see :class:`sloserve.fleet.batch_api.files.Files`. A written file survives a power cut."""

    MARK: ClassVar = "fleet-mark"
    """Name of the file that contains the mark."""

    def __init__(self, path: Path) -> None:
        """Make the folder, for its owner alone, if it does not exist. Raises: ConfigError where it cannot be made."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the folder of files {path} cannot be made: {error.strerror}") from None
        self._path = path

    @contextmanager
    def writing(self, id: str) -> Iterator[BinaryIO]:
        """Write a new file in place of any with this id.

        Raises: StoreFull where the disk is full; the file does not exist then.
        """
        # The name is unique: another gateway may be writing the same file.
        part = self._file(id).with_suffix(f".{secrets.token_hex(4)}{_HALF}")
        try:
            with reporting_full("the folder of files"):
                with part.open("wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(self._file(id))
                self._sync()
        finally:
            part.unlink(missing_ok=True)

    def open(self, id: str) -> BinaryIO | None:
        """Open the file for reading, or return ``None`` if it does not exist."""
        try:
            return self._file(id).open("rb")
        except FileNotFoundError:
            return None

    def delete(self, id: str) -> None:
        self._file(id).unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        """Return the free bytes of the disk; a quota of the user may leave fewer."""
        return shutil.disk_usage(self._path).free

    def keep_only(self, is_known: Callable[[str], bool], before_s: float) -> None:
        """Delete what crashes left: half files, and files in the folder without a row in the store.

        Args:
            is_known: Says whether the store has a row for an id.
            before_s: Only files last written before this time, in epoch seconds, are deleted; another gateway may be
                writing the others.
        """
        for file in self._path.iterdir():
            is_half = file.suffix == _HALF and ID.fullmatch(file.name.partition(".")[0])
            if (is_half or ID.fullmatch(file.name)) and _written_s(file) < before_s:
                if is_half or not is_known(file.name):
                    file.unlink(missing_ok=True)

    def mark(self, new: str | None) -> str | None:
        """Write the mark under a temporary name, then link it: a gateway that starts meanwhile reads it whole."""
        mark = self._path / self.MARK
        if new is not None and not mark.exists():
            scratch = self._path / f"{self.MARK}.{secrets.token_hex(4)}"
            try:
                with reporting_full("the folder of files"):
                    with scratch.open("x", encoding="utf-8") as file:
                        file.write(new)
                        file.flush()
                        os.fsync(file.fileno())
                    try:
                        mark.hardlink_to(scratch)
                    except FileExistsError:
                        pass
                    except OSError as error:
                        if error.errno not in _NO_LINKS:
                            raise
                        scratch.replace(mark)
                    self._sync()
            finally:
                scratch.unlink(missing_ok=True)
        try:
            return mark.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None

    def _file(self, id: str) -> Path:
        return self._path / checked(id)

    def _sync(self) -> None:
        folder = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _written_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # another gateway has just finished it
        return float("inf")
