"""The bytes of files, in a folder. A file's name is its id, chosen by the fleet: no name from a client is a path."""

import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, ClassVar, Final

from sloserve.core.errors import ConfigError, StoreAway, StoreFull

ID: Final = re.compile(r"file-[0-9a-f]{32}")
_HALF: Final = ".part"
_HALF_FILE: Final = re.compile(rf"{ID.pattern}\.([0-9a-f]{{16}})\.[0-9a-f]{{8}}\.part")
"""Name of a half file, with its writer."""
_OLD_HALF_FILE: Final = re.compile(rf"{ID.pattern}(\.[0-9a-f]{{8}})?\.part")
"""Name of a half file by a gateway of an older version, which does not name its writer."""
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

    def __init__(self, path: Path, member: str = "") -> None:
        """Make the folder, for its owner alone, if it does not exist.

        Args:
            path: The folder.
            member: Name of the member that writes, by which others know whether it is alive.

        Raises: ConfigError where it cannot be made.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the folder of files {path} cannot be made: {error.strerror}") from None
        self._path, self._holder = path, _holder(member)
        self._writing: set[str] = set()
        """Names of the half files that are being written now."""

    @contextmanager
    def writing(self, id: str) -> Iterator[BinaryIO]:
        """Write a new file in place of any with this id.

        Raises: StoreFull where the disk is full, and StoreAway where others took this member for gone and deleted the
        half file; the file does not exist then.
        """
        # The name is unique: another gateway may be writing the same file. See _HALF_FILE.
        part = self._file(id).with_suffix(f".{self._holder}.{secrets.token_hex(4)}{_HALF}")
        self._writing.add(part.name)
        try:
            with reporting_full("the folder of files"):
                with part.open("wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                try:
                    part.replace(self._file(id))
                except FileNotFoundError as error:
                    text = f"{part} was deleted while it was written: this member gave no sign of life for too long"
                    raise StoreAway(text) from error
                self._sync()
        finally:
            part.unlink(missing_ok=True)
            self._writing.discard(part.name)

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

    def keep_only(self, is_known: Callable[[str], bool], before_s: float, alive: Collection[str] = ()) -> None:
        """Delete what crashes left: half files, and files in the folder without a row in the store.

        Args:
            is_known: Says whether the store has a row for an id.
            before_s: Only files last written before this time, in epoch seconds, are deleted; another gateway may be
                writing the others. This does not hold for half files that name their writer.
            alive: Names of the members that are alive, who may be writing half files.
        """
        holders = {_holder(member) for member in alive} - {self._holder}
        for file in self._path.iterdir():
            if half := _HALF_FILE.fullmatch(file.name):
                is_left = half[1] not in holders and file.name not in self._writing
            elif ID.fullmatch(file.name):
                is_left = _written_s(file) < before_s and not is_known(file.name)
            else:
                is_left = bool(_OLD_HALF_FILE.fullmatch(file.name)) and _written_s(file) < before_s
            if is_left:
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


def _holder(member: str) -> str:
    """Return what a member's half files are named by; a member without a name gets one of its own."""
    return hashlib.sha256(member.encode()).hexdigest()[:16] if member else secrets.token_hex(8)


def _written_s(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:  # another gateway has just finished it
        return float("inf")
