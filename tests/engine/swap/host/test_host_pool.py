"""The memory of a host pool: pinned whole or not at all, near its GPU, and given back."""

import logging
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from sloserve.core.errors import ConfigError
from sloserve.engine.swap.host import host_pool
from sloserve.engine.swap.host.host_pool import CudaPinner, HostPool, cpus_beside

PAGE = mmap.PAGESIZE


class FakePinner:
    """Pins at most ``most`` slices, and remembers them."""

    def __init__(self, most: int = 10**6) -> None:
        self.most = most
        self.held: dict[int, int] = {}
        self.calls = 0

    def pin(self, address: int, size: int) -> None:
        if len(self.held) == self.most:
            raise OSError("out of memory (2)")
        self.held[address] = size
        self.calls += 1

    def unpin(self, address: int) -> None:
        del self.held[address]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_pool, "SLICE_BYTES", 4 * PAGE)


@pytest.mark.parametrize(
    ("blocks", "block_bytes", "slice_blocks"),
    [(10, PAGE, 4), (100, PAGE // 2, 8), (7, 3 * PAGE, 1), (9, PAGE + PAGE // 2, 2), (5, PAGE + 1, 5), (0, PAGE, 1)],
)
def test_slices_cover_all_of_it_in_whole_blocks_and_pages(blocks: int, block_bytes: int, slice_blocks: int) -> None:
    pinner = FakePinner()
    pool = HostPool(blocks, block_bytes, pinner)
    assert (pool.pinned, pool.slice_blocks) == (True, slice_blocks)
    assert pool.address % PAGE == 0 and pool.memory.shape == (blocks, block_bytes)
    starts = sorted(pinner.held)
    if blocks:
        assert sum(pinner.held.values()) == blocks * block_bytes
        assert [start - pool.address for start in starts] == [
            i * slice_blocks * block_bytes for i in range(len(starts))
        ]
        assert all((start - pool.address) % PAGE == 0 for start in starts)
    pool.close()
    pool.close()
    assert pinner.held == {}


def test_memory_that_is_not_there_any_more_is_a_sentence_and_not_the_oom_killer() -> None:
    with pytest.raises(ConfigError, match=r"^the swap space of this rank, 1.05e\+06 GiB: [\d.]+ GiB are free within"):
        HostPool(2**20, 2**30)


def test_a_block_is_where_the_pool_says() -> None:
    pool = HostPool(5, 3 * PAGE)
    assert not pool.pinned  # a CPU engine needs no pinning
    pool.memory[3] = 7
    assert np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * PAGE).from_address(pool.address + 9 * PAGE)).all()
    assert not pool.memory[[0, 1, 2, 4]].any()
    pool.close()


def test_what_cannot_be_pinned_whole_stays_pageable_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    pinner = FakePinner(most=2)
    with caplog.at_level(logging.INFO):
        pool = HostPool(20, PAGE, pinner)
    assert (pool.pinned, pinner.held, pinner.calls) == (False, {}, 2)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "out of memory (2)" in warning and "Give less --swap-space-gib" in warning
    pool.memory[19] = 1
    pool.close()


def test_progress_is_told_in_tenths(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        HostPool(400, PAGE, FakePinner()).close()
    assert len(caplog.records) == 10 and "pinned" in caplog.text


def test_pages_are_touched_on_the_cpus_beside_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    near = frozenset([min(allowed), 4095])
    seen: list[set[int]] = []

    class Watching(FakePinner):
        def pin(self, address: int, size: int) -> None:
            seen.append(os.sched_getaffinity(0))

        def unpin(self, address: int) -> None: ...

    HostPool(4, PAGE, Watching(), near).close()
    HostPool(4, PAGE, Watching(), frozenset([4095])).close()
    assert seen == [{min(allowed)}, allowed] and os.sched_getaffinity(0) == allowed


def test_cpus_beside_a_device_come_from_sysfs(tmp_path: Path) -> None:
    device = tmp_path / "sys/bus/pci/devices/0000:0a:00.0"
    device.mkdir(parents=True)
    assert cpus_beside("0000:0A:00.0", tmp_path) == frozenset()
    (device / "numa_node").write_text("1\n")
    (device / "local_cpulist").write_text("4-6,12\n")
    assert cpus_beside("0000:0A:00.0", tmp_path) == {4, 5, 6, 12}
    (device / "numa_node").write_text("-1\n")
    assert cpus_beside("0000:0A:00.0", tmp_path) == frozenset()


@pytest.mark.gpu
def test_a_gpu_reads_what_is_pinned() -> None:
    torch = pytest.importorskip("torch")
    torch.zeros(1, device="cuda")
    pool = HostPool(64, 2**20, CudaPinner())
    assert pool.pinned
    pool.memory[:] = np.arange(64, dtype=np.uint8)[:, None]
    host = torch.from_numpy(pool.memory)
    assert host.is_pinned() and (host.to("cuda", non_blocking=True).cpu() == host).all()
    del host
    pool.close()
