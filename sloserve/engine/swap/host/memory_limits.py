"""Memory that this host has left, checked before a model is loaded, not by the kernel's OOM killer.

A host pool is touched page by page at its start, so what it takes must be there. Two limits hold: the memory that the
kernel calls available, and the limit of each control group which this process is in (a container's limit is one). The
limit on locked memory is a warning only: NVIDIA's driver pins memory without counting it there.
"""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sloserve.core.errors import ConfigError
from sloserve.core.json_lines import lines_of

GIB: Final = 2**30
KEPT_FREE_BYTES: Final = 2 * GIB
"""Bytes that a pool must leave for vLLM's own processes, and for the page cache through which weights are read."""

_CAP_IPC_LOCK: Final = 14  # capabilities(7): its bit; a process with it may lock any amount
_CGROUPS: Final = "sys/fs/cgroup"
_NO_LIMIT: Final = 2**60
"""A control group (v1) without a limit has one near 2**63."""


class MemoryRoom(NamedTuple):
    """Bytes that may still be taken, and the limit that says so."""

    bytes: int
    limit: str


def memory_room(root: Path = Path("/")) -> MemoryRoom | None:
    """Return what is left within the tightest limit; ``None`` if no limit can be read.

    Args:
        root: Folder above ``proc`` and ``sys``.
    """
    return min([*_available(root), *_cgroups(root)], default=None)


def check_room(pool_bytes: int, asked: str, *, kept_free_bytes: int = KEPT_FREE_BYTES, root: Path = Path("/")) -> None:
    """Raise ConfigError if this host cannot hold a pool of ``pool_bytes`` bytes.

    Args:
        pool_bytes: Bytes that are still to be taken.
        asked: The option that asks for them, with its value, as the operator wrote it.
        kept_free_bytes: Bytes that must remain.
        root: Folder above ``proc`` and ``sys``. A limit that cannot be read there holds nothing back.
    """
    room = memory_room(root)
    if room is None or pool_bytes <= room.bytes - kept_free_bytes:
        return
    most = max(room.bytes - kept_free_bytes, 0) / GIB
    vllm = f", of which vLLM needs {kept_free_bytes / GIB:.0f} GiB for itself" if kept_free_bytes else ""
    advice = f"give at most {most:.1f} GiB, or raise that limit" if most >= 0.1 else "raise that limit"
    raise ConfigError(f"{asked}: {room.bytes / GIB:.1f} GiB are free within {room.limit}{vllm}; {advice}")


def memlock_warning(pinned_bytes: int, root: Path = Path("/")) -> str | None:
    """Return a warning if the limit on locked memory is below what one rank pins; ``None`` otherwise."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY or pinned_bytes <= limit or _may_lock(root):
        return None
    return (
        f"the limit on locked memory is {limit / GIB:.3g} GiB, and each rank pins {pinned_bytes / GIB:.3g} GiB; a "
        "driver that counts pinned memory there leaves the pool unpinned, and copies take longer; "
        "raise it with `ulimit -l unlimited`, or --ulimit memlock=-1 of docker run"
    )


def _available(root: Path) -> Iterator[MemoryRoom]:
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield MemoryRoom(int(value.split()[0]) * 1024, "this host's available memory (MemAvailable)")


def _cgroups(root: Path) -> Iterator[MemoryRoom]:
    """Yield the room left in each control group with a limit, from this process's own to the topmost visible one."""
    for line in _lines(root / "proc/self/cgroup"):  # cgroups(7): hierarchy, controllers, path
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _up(root / _CGROUPS, path, ("memory.max", "memory.high"), "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / _CGROUPS / "memory"
            yield from _up(base, path, ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def _up(base: Path, path: str, limits: tuple[str, ...], usage: str, reclaimable: str) -> Iterator[MemoryRoom]:
    """Yield the room left in a group and the groups above it.

    ``path`` may be as the host sees it, and stand for ``base`` itself: folders that do not exist here are passed over.
    """
    group = base / path.lstrip("/")
    for folder in (group, *group.parents):
        used = next((int(line) for line in _lines(folder / usage)), 0)
        for line in _lines(folder / "memory.stat"):
            name, _, value = line.partition(" ")
            used -= int(value) if name == reclaimable else 0
        for name in limits:
            for text in _lines(folder / name):
                if text != "max" and int(text) < _NO_LIMIT:
                    yield MemoryRoom(int(text) - used, f"the memory limit of a control group, {folder / name}")
        if folder == base:
            return


def _may_lock(root: Path) -> bool:
    return any(
        line.startswith("CapEff:") and int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1
        for line in _lines(root / "proc/self/status")
    )


def _lines(file: Path) -> list[str]:
    try:
        return lines_of(file.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return []
