"""The folder with the pages of this host's engines and API processes, and the owner of each page.

A page is a file of its writer: the name says which process that is, since when it runs, which process started it, its
rank and its kind. So a page is found, and known to be orphaned, without opening it, and no two processes share one. No
identifier of vLLM's would do: an engine process gives its configuration a new ``instance_id`` when it starts, and each
of several API processes has its own.
"""

import errno
import itertools
import mmap
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

ENGINE, API, LIVE, TENANTS, TASKS = ".engine", ".api", ".live", ".tenants", ".tasks"
"""Kinds of pages. An engine has ENGINE and LIVE; API processes have the others, only where a server has several."""
_LOCK = ".lock"
_SETTINGS = ".settings"

UNFINISHED = ".new"
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class PageFile:
    """One process' file.

    Args:
        started: Clock ticks from boot to the start of process ``pid``, which tell it from a later process of that
            number.
        parent: Id of the process that started it.
    """

    path: Path
    pid: int
    started: int
    parent: int
    rank: int

    @staticmethod
    def named(path: Path) -> "PageFile | None":
        """Return the file as its name describes it, or ``None`` for a file that is not ours."""
        try:
            pid, started, parent, rank, _ = (int(part) for part in path.stem.split("-"))
        except ValueError:
            return None
        return (
            PageFile(path, pid, started, parent, rank)
            if path.suffix in (ENGINE, API, LIVE, TENANTS, TASKS, _LOCK, _SETTINGS, UNFINISHED)
            else None
        )

    @property
    def is_alive(self) -> bool:
        """Whether its writer still runs."""
        return _started(self.pid) == self.started

    @property
    def is_of_this_server(self) -> bool:
        """Whether its writer is this process, or was started by it or by this process' own parent.

        Each of several API processes is a child of the process that also started the engines.
        """
        return os.getpid() in (self.pid, self.parent) or os.getppid() == self.parent


def page_folder() -> Path:
    """Return the folder of this user's pages; create it if it does not exist.

    It is in memory where the system has ``/dev/shm``: a store to a file on a disk may wait while the page is written
    back. Process numbers mean something within one PID namespace, so each has its own folder.

    Raises: OSError when it cannot be created, or another user could write there.
    """
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    try:
        namespace = f"-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # no Linux
        namespace = ""
    folder = base / f"sloserve-{os.getuid()}{namespace}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only user {os.getuid()} can enter; remove it")
    return folder


def create(folder: Path, kind: str, rank: int, content: bytes) -> tuple[Path, mmap.mmap]:
    """Create a page file of this process that begins with ``content``; return its path and its memory.

    Only this user can read it.

    Raises: OSError, also when the file system has no room: a store to a page without room behind it would be fatal.
    """
    pid = os.getpid()
    unfinished = folder / f"{pid}-{_started(pid) or 0}-{os.getppid()}-{rank}-{next(_serial)}{UNFINISHED}"
    fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if os.write(fd, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(unfinished))
        memory = mmap.mmap(fd, len(content))
    except OSError:
        unfinished.unlink()
        raise
    finally:
        os.close(fd)
    path = unfinished.with_suffix(kind)
    unfinished.rename(path)
    return path, memory


def lock_file(folder: Path) -> Path:
    """Return the file that one of several API processes locks at a time; it goes with the process that started them."""
    return _of_starter(folder, _LOCK)


def settings_file(folder: Path) -> Path:
    """Return the file with settings that one of several API processes publishes; it goes as the lock file does."""
    return _of_starter(folder, _SETTINGS)


def _of_starter(folder: Path, kind: str) -> Path:
    parent = os.getppid()
    return folder / f"{parent}-{_started(parent) or 0}-{parent}-0-0{kind}"


def page_files(folder: Path, kind: str) -> list[PageFile]:
    """Return the finished pages of this server's processes of a kind, by rank."""
    found = [file for file in _all(folder) if file.path.suffix == kind and file.is_of_this_server]
    return sorted(found, key=lambda file: (file.rank, file.path.name))


def sweep(folder: Path) -> None:
    """Remove what ended processes left behind."""
    for file in _all(folder):
        if not file.is_alive:
            file.path.unlink(missing_ok=True)


def remove_started_here(folder: Path) -> None:
    """Remove the pages of this process and of the processes that it started, alive or not."""
    for file in _all(folder):
        if os.getpid() in (file.pid, file.parent):
            file.path.unlink(missing_ok=True)


def _all(folder: Path) -> list[PageFile]:
    return [file for path in folder.iterdir() if (file := PageFile.named(path)) is not None]


def _started(pid: int) -> int | None:
    """Return when process ``pid`` began, in clock ticks since boot; ``None`` if it has ended, waited for or not.

    Without ``/proc`` it is 0 for every living process.
    """
    if not os.path.isdir("/proc/self"):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return 0
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # proc(5): the name, in brackets, may hold anything; the third field is the state, the 22nd the start.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
