"""The store in one file, for a fleet on one machine. Processes of this host share it; its clock is this host's."""

import contextlib
import functools
import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from sloserve.core.clock import Clock, SystemClock
from sloserve.core.errors import ConfigError, StoreAway, StoreFull
from sloserve.fleet.store.database import GIVEN, Params

_BUSY_S: Final = 10.0
"""Seconds for which a writer waits for others of this host before it gives up. A write takes about a millisecond."""
_OCTAL = re.compile(rb"\\([0-3][0-7]{2})")
"""A byte of a path, such as a space, in the octal form that /proc/mounts uses."""
_NETWORK: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2"}
    | {"pvfs2", "smb3", "smbfs", "virtiofs"}
)
"""Kinds of file systems on which SQLite's locks and its shared memory may not hold between hosts."""
_WORDS: Final = {
    "SERIAL_KEY": "integer PRIMARY KEY AUTOINCREMENT",
    "BYTES": "blob",
    "LOCKING_NEW_ROWS": "",
    "LOCKING_REQUESTS": "",
    "NAMES_OF_TABLES": "sqlite_master",
}
_INSERTED: Final = re.compile(r"\bSELECT\b([^()]*(?:\(\)[^()]*)*)\bFROM GIVEN\([^()]+\)(?:\s+WHERE true)?")
_FULL: Final = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC")


class SqliteSession:
    """The statements of a transaction; see :class:`sloserve.fleet.store.database.Session`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, sql: str, **params: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(_spelt(sql), params).fetchall()

    def change(self, sql: str, **params: Any) -> int:
        return self._connection.execute(_spelt(sql), params).rowcount

    def given(self, sql: str, params: Sequence[Params]) -> list[tuple[Any, ...]]:
        sql, returned = _given(sql)
        if not returned:
            self._connection.executemany(sql, params)
            return []
        changed = [one for one in params if self._connection.execute(sql, one).rowcount]
        return [tuple(one[name] for name in returned) for one in changed]


class SqliteDatabase:
    """A database in a SQLite file, with one connection for writers and one for readers.

    See :class:`sloserve.fleet.store.database.Database`.
    """

    def __init__(self, path: Path, clock: Clock | None = None, mounts: Path = Path("/proc/self/mountinfo")) -> None:
        """Open the file, and make it if it does not exist.

        Args:
            path: Path of the database file, in a folder that exists.
            clock: Clock of the store.
            mounts: File in which the kernel lists file systems.

        Raises:
            ConfigError: a network file system, or a file that cannot be opened or is no database.
        """
        kind = _network_kind(path.resolve(), mounts)
        if kind is not None:
            raise ConfigError(
                f"the store {path} lies on a network file system ({kind}), where SQLite may lose what it has written; "
                "give a file on a local disk, or a postgresql:// address"
            )
        self._clock = clock or SystemClock()
        self._path = path
        try:
            # It holds prompts and responses; what SQLite puts beside it has the same rights.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._writer, self._reader = self._opened(), self._opened()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"the store {path} cannot be opened: {error}; give the path of a file to write") from None
        self._write_lock, self._read_lock = threading.Lock(), threading.Lock()

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        connection.create_function("store_now", 0, self._clock.now_s)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[SqliteSession]:
        with self._write_lock, self._in(self._writer, "BEGIN IMMEDIATE") as session:
            yield session

    alone = transaction  # a writer is

    @contextlib.contextmanager
    def reading(self) -> Iterator[SqliteSession]:
        with self._read_lock, self._in(self._reader, "BEGIN") as session:
            yield session

    @contextlib.contextmanager
    def _in(self, connection: sqlite3.Connection, begin: str) -> Iterator[SqliteSession]:
        try:
            connection.execute(begin)
            try:
                yield SqliteSession(connection)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except (sqlite3.OperationalError, sqlite3.ProgrammingError) as error:
            name = getattr(error, "sqlite_errorname", "")
            if name in _FULL:
                raise StoreFull(f"the disk of the store {self._path} is full ({error}); free some of it") from error
            if isinstance(error, sqlite3.ProgrammingError) and "closed" not in str(error):
                raise
            if name == "SQLITE_ERROR":
                raise  # a statement is wrong
            raise StoreAway(f"the store {self._path} does not respond: {error}") from error

    def close(self) -> None:
        with self._write_lock, self._read_lock:
            self._writer.close()
            self._reader.close()


@functools.cache
def _given(sql: str) -> tuple[str, list[str]]:
    """Return a statement that is run with one row of parameters after another, and the columns that it returns.

    SQLite would make a table for GIVEN, another one for RETURNING, and prepare to undo a part of INSERT ... SELECT,
    each time: together they take longer than the insertion.
    """
    sql, _, returning = sql.partition(" RETURNING ")
    sql = _INSERTED.sub(r"VALUES (\1)", sql)
    sql = GIVEN.sub(lambda found: "" if found[1] == "FROM" else f":{found[2].split()[0]}", sql)
    returned = [column.strip().split(".")[-1] for column in returning.split(",") if column]
    return _spelt(re.sub(r"\bgiven\.", ":", sql)), returned


@functools.lru_cache(1_024)
def _spelt(sql: str) -> str:
    return re.sub("|".join(_WORDS), lambda word: _WORDS[word.group()], sql)


def _network_kind(path: Path, mounts: Path) -> str | None:
    """Return the kind of network file system that holds ``path``, or ``None`` if it is local or unknown."""
    best, kind = -1, ""
    try:
        lines = mounts.read_bytes().split(b"\n")
    except OSError:
        return None
    for line in filter(None, lines):  # proc(5): ... mount point (fifth) ... - kind source options
        fields, _, rest = line.partition(b" - ")
        point = os.fsdecode(_OCTAL.sub(lambda code: bytes([int(code[1], 8)]), fields.split(b" ")[4]))
        if path.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), rest.split(b" ")[0].decode()
    return kind if kind in _NETWORK or kind.startswith("fuse.") else None
