"""Folders of the user who runs a process, who may have no home: a container runs as any user, known to it or not.

Then ``Path.home()`` raises, or is ``/``, which only root may write.
"""

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from sloserve.core.errors import ConfigError

MOST_SOCKET_BYTES: Final = 107
"""Longest path of a unix socket."""
_MOST_FOLDER_BYTES: Final = MOST_SOCKET_BYTES - 32
"""Longest path of a folder of unix sockets: the name of a socket takes up to 32 bytes."""


def home() -> Path | None:
    """Return the user's home folder; None for a user who has none."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def user_folder(variable: str, below_home: str) -> Path:
    """Return a folder named ``sloserve`` for data of one kind; create it if it does not exist.

    It stands below the folder that the environment's ``variable`` names, else below the home folder, else below the
    temporary folder, where only this user may write it.

    Args:
        variable: Name of a variable of the XDG base directories, such as XDG_CACHE_HOME.
        below_home: Default path of that folder below the home folder, such as ``.cache``.

    Raises:
        ConfigError: None of these folders can be created.
    """
    named = os.environ.get(variable)
    at_home = home()
    if named or at_home is not None:
        folder = (Path(named) if named else Path(str(at_home)) / below_home) / "sloserve"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):  # as where root made it
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return folder
        except OSError as error:
            if named:
                raise ConfigError(
                    f"{variable} {named}: cannot be written: {error.strerror}; name a folder that can be written"
                ) from None
    return _temporary(variable)


def socket_folder() -> Path:
    """Make a folder of unix sockets that this user alone may enter.

    It stands in the folder that XDG_RUNTIME_DIR names, or in a temporary folder where that path is too long for the
    path of a socket.

    Raises:
        ConfigError: None of these folders can be written.
    """
    why = []
    for parent in dict.fromkeys((os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(), "/tmp")):
        size = len(os.fsencode(parent)) + len("/slo-12345678")
        if size > _MOST_FOLDER_BYTES:
            why.append(f"{parent} is too long by {size - _MOST_FOLDER_BYTES} bytes for the path of a socket")
            continue
        try:
            return Path(tempfile.mkdtemp(prefix="slo-", dir=parent))  # mode 0700
        except OSError as error:
            why.append(f"{parent} cannot be written: {error.strerror}")
    raise ConfigError(f"no folder for sockets: {'; '.join(why)}; set XDG_RUNTIME_DIR to a short folder of this user")


def folder_for_sockets(variable: str, name_bytes: int) -> str:
    """Return the path of a folder in which another library may create unix sockets.

    It is the folder that the environment's ``variable`` names, else the temporary folder, or, where that path is too
    long for the path of a socket, the folder that XDG_RUNTIME_DIR names, or ``/tmp``.

    Args:
        variable: Name of the library's variable.
        name_bytes: Bytes that the library adds to the folder's path.

    Raises:
        ConfigError: The named folder's path is too long, or none of the others can be used.
    """
    most = MOST_SOCKET_BYTES - name_bytes
    if named := os.environ.get(variable):
        if (size := len(os.fsencode(named))) > most:
            raise ConfigError(
                f"{variable} {named}: its {size} bytes are too many for the path of a socket, which leaves {most} to "
                "its folder; name a shorter folder"
            )
        return named
    why = []
    for folder in dict.fromkeys((tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR") or "/tmp", "/tmp")):
        if (size := len(os.fsencode(folder))) > most:
            why.append(f"{folder} is too long by {size - most} bytes for the path of a socket")
        elif not os.access(folder, os.W_OK | os.X_OK):
            why.append(f"{folder} cannot be written")
        else:
            return folder
    raise ConfigError(f"no folder for sockets: {'; '.join(why)}; set {variable} or TMPDIR to a short folder")


def _temporary(variable: str) -> Path:
    folder = Path(tempfile.gettempdir()) / f"sloserve-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(
            f"no home folder, and {folder} cannot be made: {error.strerror}; set {variable} to a folder that can be "
            "written"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(
            f"no home folder, and {folder} may be written by others; set {variable} to a folder of this user"
        )
    return folder
