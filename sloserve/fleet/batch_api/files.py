"""Storage for the bytes of files: one small interface, implemented by a folder and by a bucket of object storage.

Gateways of one fleet must have the same files, or one serves what another cannot read. The store and the files hold the
same mark, by which a gateway with other files finds its mistake before it takes its first request.
"""

import re
import secrets
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from sloserve.core.errors import ConfigError, StoreAway, StoreFull
from sloserve.core.extras import not_installed
from sloserve.fleet.batch_api.folder import Folder
from sloserve.fleet.store.store import Store

SCHEMES: Final = ("s3", "gs", "az")
"""Schemes of object storage, for the interfaces of Amazon, Google and Azure."""
_MARK: Final = re.compile(r"[0-9a-f]{32}")


class Files(Protocol):
    """Files by ids that the fleet chooses: no name from a client is a path. Many threads may use it.

    Each method raises StoreAway where the files cannot be reached, and ValueError for text that is not the id of a
    file.
    """

    def writing(self, id: str) -> AbstractContextManager[BinaryIO]:
        """Write a new file in place of any with this id: it appears whole when the block ends, or never if it raises.

        Raises: StoreFull where there is no room.
        """

    def open(self, id: str) -> BinaryIO | None:
        """Open the file for reading, or return ``None`` if it does not exist."""

    def delete(self, id: str) -> None:
        """Delete the file; do nothing if it does not exist."""

    def free_bytes(self) -> int | None:
        """Return how many more bytes there is room for, or ``None`` if nothing limits them."""

    def keep_only(self, is_known: Callable[[str], bool], before_s: float, alive: Collection[str] = ()) -> None:
        """Delete what crashes left: half files, and files that have no row in the store.

        Args:
            is_known: Says whether the store has a row for an id.
            before_s: Only files last written before this time, in epoch seconds, are deleted; another gateway may be
                writing the others.
            alive: Names of the members that are alive: half files of any other member are deleted at once.
        """

    def mark(self, new: str | None) -> str | None:
        """Return the mark of these files, set to ``new`` if they had none; return ``None`` if neither exists."""


def open_files(address: str | Path, member: str = "") -> Files:
    """Open the files in the folder of this path, or at ``s3://BUCKET/PREFIX``, ``gs://...``, ``az://...``.

    Args:
        address: Path or address of the files.
        member: Name of the member of the fleet that writes them.

    Raises: ConfigError for a folder that cannot be made, a package that is not installed, or an address that is wrong.
    """
    scheme, is_url, _ = str(address).partition("://")
    if isinstance(address, Path) or not is_url:
        return Folder(Path(address), member)
    if scheme not in SCHEMES:
        allowed = ", ".join(f"{one}://..." for one in SCHEMES)
        raise ConfigError(f"files: unsupported scheme {scheme!r}; give the path of a folder, or {allowed}")
    try:
        from sloserve.fleet.batch_api.objects import open_objects
    except ImportError:
        raise not_installed(f"files: {scheme}://", "obstore", "s3") from None
    return open_objects(str(address))


def check_shared(files: Files, store: Store, address: str | Path) -> None:
    """Mark files and store as belonging to one fleet, if neither is marked.

    Raises: ConfigError where their marks differ, or the files cannot be used.
    """
    known = store.files_mark(None)
    try:
        found = files.mark(secrets.token_hex(16) if known is None else None)
    except (StoreAway, StoreFull, OSError) as error:
        raise ConfigError(f"{address}: files cannot be used: {error}") from None
    if found is not None and not _MARK.fullmatch(found):
        raise ConfigError(f"{address}: the mark of the fleet's files is not what was written; restore it from a backup")
    known = known or store.files_mark(found)
    if found != known:
        is_marked = "they have no mark" if found is None else f"their mark is {found}"
        raise ConfigError(
            f"{address}: these are not the files of the fleet's store: {is_marked}, and the store's is {known}; "
            "give all gateways the same folder, or an address such as s3://BUCKET/PREFIX, with files in the fleet's "
            f"file; if the files were moved or lost, write {known} into {Folder.MARK} there"
        )
