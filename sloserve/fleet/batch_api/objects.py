"""The bytes of files in object storage, by obstore: what is written or read passes through memory in parts."""

import io
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore, from_url

from sloserve.core.errors import ConfigError, StoreAway
from sloserve.fleet.batch_api.folder import ID, Folder, checked

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer
    from obstore import WritableFile

_READ_BYTES: Final = 4 << 20
_PART_BYTES: Final = 8 << 20
"""Bytes of one part of an upload: with S3's 10,000 parts a file may have 80 GB."""
_PARTS_AT_ONCE: Final = 2
_WRITTEN_BYTES: Final = 1 << 20
"""Bytes that are gathered before obstore is called, so that it is not called for each line."""
_TRIES_S: Final = 10
"""Seconds for which a failed request is sent again; each attempt ends within 30 s, obstore's own limit."""
_LISTED: Final = 1_000


class ObjectFiles:
    """Files as objects, each under its id as the key. See :class:`sloserve.fleet.batch_api.files.Files`.

    An unfinished file does not exist; the bucket itself must delete the parts that were sent (by a lifecycle rule).
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @contextmanager
    def writing(self, id: str) -> Iterator[BinaryIO]:
        with _reporting_away():
            made = obstore.open_writer(
                self._store, checked(id), buffer_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
        raw = _Written(made)
        file = io.BufferedWriter(raw, _WRITTEN_BYTES)
        try:
            yield cast(BinaryIO, file)
            file.flush()
            with _reporting_away():
                made.close()
        finally:
            raw.is_over = True  # a failed write drops what is left in its buffer
            file.close()

    def open(self, id: str) -> BinaryIO | None:
        try:
            with _reporting_away(but=FileNotFoundError):
                size = obstore.head(self._store, checked(id))["size"]
        except FileNotFoundError:
            return None
        return cast(BinaryIO, io.BufferedReader(_Read(self._store, id, size), _READ_BYTES))

    def delete(self, id: str) -> None:
        with suppress(FileNotFoundError), _reporting_away(but=FileNotFoundError):
            obstore.delete(self._store, checked(id))

    def free_bytes(self) -> None:
        """Return ``None``: object storage has no limit that could be asked for."""

    def keep_only(self, is_known: Callable[[str], bool], before_s: float, alive: Collection[str] = ()) -> None:
        with _reporting_away():
            for part in obstore.list(self._store, chunk_size=_LISTED):
                for found in part:
                    id, written_s = found["path"], found["last_modified"].timestamp()
                    if ID.fullmatch(id) and written_s < before_s and not is_known(id):
                        self.delete(id)

    def mark(self, new: str | None) -> str | None:
        if new is not None:
            with suppress(AlreadyExistsError), _reporting_away(but=AlreadyExistsError):
                obstore.put(self._store, Folder.MARK, new.encode(), mode="create")
        try:
            with _reporting_away(but=FileNotFoundError):
                found = obstore.get(self._store, Folder.MARK).bytes()
        except FileNotFoundError:
            return None
        return bytes(found).decode(errors="replace").strip()


class _Written(io.RawIOBase):
    """An object that is being written."""

    def __init__(self, made: "WritableFile") -> None:
        super().__init__()
        self._made, self.is_over = made, False

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        if self.is_over:
            return memoryview(data).nbytes
        with _reporting_away():
            return self._made.write(bytes(data))


class _Read(io.RawIOBase):
    """An object, read by ranges: the storage would end a connection that waits for its reader's next turn."""

    def __init__(self, store: ObjectStore, id: str, size: int) -> None:
        super().__init__()
        self._store, self._id, self._size, self._at = store, id, size, 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        into = memoryview(buffer)
        length = min(len(into), self._size - self._at)
        if not length:
            return 0
        with _reporting_away():
            found = obstore.get_range(self._store, self._id, start=self._at, length=length)
        into[: len(found)] = memoryview(found)
        self._at += len(found)
        return len(found)


def open_objects(address: str) -> ObjectFiles:
    """Open the objects below ``s3://BUCKET/PREFIX`` and the like. Keys and endpoints come from the environment.

    Raises: ConfigError for an address or an environment that is wrong.
    """
    try:
        store = from_url(
            address,
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=_TRIES_S)},
        )
    except (BaseError, ValueError) as error:
        raise ConfigError(f"files: {address} cannot be opened: {_first_line(error)}") from None
    return ObjectFiles(store)


@contextmanager
def _reporting_away(but: type[Exception] | None = None) -> Iterator[None]:
    """Raise StoreAway in place of obstore's errors. Do not replace errors of class ``but``."""
    try:
        yield
    except (BaseError, OSError) as error:
        if but is not None and isinstance(error, but):
            raise
        raise StoreAway(f"the object storage of files does not respond as it should: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
