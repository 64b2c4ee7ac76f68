"""Checks of ``sloserve doctor`` on swap space: free memory, the limit of locked memory, the compiled copies."""

import resource
from collections.abc import Iterator
from pathlib import Path

from sloserve.cli.doctor.finding import Finding, absent, fault, ok, warning
from sloserve.engine.swap.host.memory_limits import GIB, KEPT_FREE_BYTES, memlock_warning, memory_room


def memory(root: Path = Path("/")) -> Iterator[Finding]:
    room = memory_room(root)
    if room is None:
        yield absent("memory", "cannot be read from /proc/meminfo")
    elif room.bytes < KEPT_FREE_BYTES:
        needed = f"vLLM's own processes need {KEPT_FREE_BYTES / GIB:.0f} GiB beside the weights; raise that limit"
        yield fault("memory", f"{room.bytes / GIB:.1f} GiB free within {room.limit}", needed)
    else:
        yield ok("memory", f"{room.bytes / GIB:.1f} GiB free within {room.limit}")


def locked_memory(root: Path = Path("/")) -> Iterator[Finding]:
    """Yield whether the memory of one GiB of ``--swap-space-gib`` may be locked."""
    problem = memlock_warning(GIB, root)
    if problem is None:
        yield ok("locked memory", "not limited for this process")
    else:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] / GIB
        remedy = "for --swap-space-gib on a GPU: ulimit -l unlimited, or --ulimit memlock=-1 of docker run"
        yield warning("locked memory", f"{limit:.3g} GiB", remedy)


def kv_copies() -> Iterator[Finding]:
    """Yield whether the library works with which ``--swap-space-gib`` copies KV blocks of a GPU."""
    try:
        from sloserve.engine.swap.host.cuda_library import built_library  # here: the extension it needs may not load

        built_library()
    except (OSError, ImportError) as error:
        yield absent("KV copies on GPU", str(error), "for --swap-space-gib alone, which uses vLLM's method without it")
    else:
        yield ok("KV copies on GPU", "built, for --swap-space-gib")
