"""Whether a host holds a pool: every limit that can be set on it, read from a file system made for the test."""

import resource
from pathlib import Path

import pytest

from sloserve.core.errors import ConfigError
from sloserve.engine.swap.host.memory_limits import GIB, check_room, memlock_warning

FLAG = "--swap-space-gib 8"
MEMINFO = "MemTotal: 67108864 kB\nMemFree: 1048576 kB\nMemAvailable: {} kB\n"


def host(root: Path, available_gib: float = 64, **files: str) -> Path:
    """A file system with as much available memory, and ``files`` by their paths."""
    written = {"proc/meminfo": MEMINFO.format(int(available_gib * 2**20)), **files}
    for name, text in written.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/kubepods/pod1\n", "sys/fs/cgroup/kubepods/pod1/memory.max": "max\n"}
V1 = {"proc/self/cgroup": "9:cpu:/a\n8:memory:/docker/abc\n"}


@pytest.mark.parametrize(
    ("available_gib", "files", "message"),
    [
        (64, {}, None),
        (10, {}, None),
        (9.5, {}, "9.5 GiB are free within this host's available memory (MemAvailable), of which vLLM needs 2 GiB"),
        (1, {}, "for itself; raise that limit"),
        (64, V2, None),
        # The group above has the limit; what its page cache could give back is free.
        (
            64,
            V2
            | {
                "sys/fs/cgroup/kubepods/memory.max": f"{12 * GIB}\n",
                "sys/fs/cgroup/kubepods/memory.current": f"{6 * GIB}\n",
                "sys/fs/cgroup/kubepods/memory.stat": f"anon 5\ninactive_file {GIB}\nactive_file 7\n",
            },
            "7.0 GiB are free within the memory limit of a control group, ROOT/sys/fs/cgroup/kubepods/memory.max, "
            "of which vLLM needs 2 GiB for itself; give at most 5.0 GiB, or raise that limit",
        ),
        (64, V2 | {"sys/fs/cgroup/kubepods/pod1/memory.high": f"{5 * GIB}\n"}, "pod1/memory.high"),
        # In a container the path is the host's, and what it names is mounted at the top.
        (
            64,
            V1
            | {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{16 * GIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{10 * GIB}\n",
                "sys/fs/cgroup/memory/memory.stat": f"inactive_file 5\ntotal_inactive_file {2 * GIB}\n",
            },
            "8.0 GiB are free within the memory limit of a control group, ROOT/sys/fs/cgroup/memory/memory.limit_in",
        ),
        (64, V1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"}, None),
    ],
)
def test_a_pool_that_the_host_cannot_hold_is_refused_with_the_limit(
    available_gib: float, files: dict[str, str], message: str | None, tmp_path: Path
) -> None:
    root = host(tmp_path, available_gib, **files)
    if message is None:
        check_room(8 * GIB, FLAG, root=root)
        return
    with pytest.raises(ConfigError) as error:
        check_room(8 * GIB, FLAG, root=root)
    assert str(error.value).startswith(f"{FLAG}: ") and message.replace("ROOT", str(tmp_path)) in str(error.value)


def test_where_nothing_can_be_read_nothing_is_refused(tmp_path: Path) -> None:
    check_room(2**50, FLAG, root=tmp_path)


def test_a_low_limit_on_locked_memory_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 64 * 1024
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    none = {"proc/self/status": "Name:\tpython\nCapEff:\t00000000a80425fb\n"}
    assert "each rank pins 4 GiB" in (memlock_warning(4 * GIB, host(tmp_path, **none)) or "")
    assert memlock_warning(limit, tmp_path) is None
    locks = {"proc/self/status": "CapEff:\t000001ffffffffff\n"}
    assert memlock_warning(4 * GIB, host(tmp_path, **locks)) is None
    limit = resource.RLIM_INFINITY
    assert memlock_warning(4 * GIB, host(tmp_path, **none)) is None
