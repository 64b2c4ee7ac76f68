"""The host pool of one worker: memory taken once when the worker starts, and given back when it ends.

Block b lies at ``address + b * block_bytes``. Pages are touched by a thread on the CPUs beside the GPU, so that the
kernel places them near it (unless the operator set a memory policy, which holds). Beside a GPU they are pinned, slice
by slice, with a line in the log for each tenth. A slice is whole blocks and whole pages, and no transfer may cross from
one to the next: the driver takes each for memory of its own. Without pinning the pool works all the same; copies are
slower then, which is what the warning says.
"""

import contextlib
import ctypes
import logging
import math
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sloserve.engine.swap.host.memory_limits import GIB, check_room

logger = logging.getLogger(__name__)

SLICE_BYTES: Final = GIB
"""Bytes, about, that are touched and pinned at a time: a few tenths of a second for each slice."""


class Pinner(Protocol):
    """Makes memory accessible to a device for direct reads and writes."""

    def pin(self, address: int, size: int) -> None:
        """Pin memory.

        Raises: OSError if the driver refuses, with what it says.
        """

    def unpin(self, address: int) -> None:
        """Unpin memory at the ``address`` that was passed to :meth:`pin`.

        Raises: OSError.
        """


class HostPool:
    """Memory of ``blocks`` host blocks.

    ``slice_blocks`` is the number of blocks in a slice; ``pinned`` says whether all of the memory is pinned.
    """

    def __init__(
        self, blocks: int, block_bytes: int, pinner: Pinner | None = None, cpus: frozenset[int] = frozenset()
    ) -> None:
        """Allocate a pool and touch its memory.

        Args:
            blocks: Number of blocks.
            block_bytes: Bytes of a block.
            pinner: Pins the memory; ``None`` on a CPU engine.
            cpus: CPUs near the GPU, empty if they are not known.

        Raises: ConfigError if the host has no such memory any more, vLLM's own being taken; OSError if the system does
        not give that much address space.
        """
        self.blocks, self.block_bytes = blocks, block_bytes
        self.slice_blocks = _slice_blocks(blocks, block_bytes)
        size = blocks * block_bytes
        check_room(size, f"the swap space of this rank, {size / GIB:.3g} GiB", kept_free_bytes=0)
        self._memory: mmap.mmap | None = mmap.mmap(-1, max(size, 1))
        with contextlib.suppress(OSError, AttributeError, ValueError):
            self._memory.madvise(mmap.MADV_HUGEPAGE)  # fewer pages to touch and to pin; the kernel may have none
        bytes_ = np.frombuffer(self._memory, np.uint8)
        self.address = int(bytes_.ctypes.data)
        self._pinner, self._pinned = pinner, list[int]()
        self.pinned = pinner is not None
        what = "touched" if pinner is None else "touched and pinned"
        with _on(cpus):
            self._take(bytes_, _tenths(bytes_.size, what))

    @property
    def memory(self) -> NDArray[np.uint8]:
        """The bytes, ``[blocks, block_bytes]``. Do not keep them beyond :meth:`close`."""
        assert self._memory is not None
        size = self.blocks * self.block_bytes
        return np.frombuffer(self._memory, np.uint8, size).reshape(self.blocks, self.block_bytes)

    def close(self) -> None:
        """Give the memory back; no copy may run. A second call has no effect."""
        self._unpin()
        if self._memory is not None:
            with contextlib.suppress(BufferError):  # an array of it is still held, and frees it with itself
                self._memory.close()
            self._memory = None

    def _take(self, bytes_: NDArray[np.uint8], taken: Callable[[int], None]) -> None:
        step = self.slice_blocks * self.block_bytes
        for start in range(0, bytes_.size, max(step, 1)):
            piece = bytes_[start : start + step]
            piece[:: mmap.PAGESIZE] = 0
            if self._pinner is not None and self.pinned:
                try:
                    self._pinner.pin(self.address + start, piece.size)
                    self._pinned.append(self.address + start)
                except OSError as error:
                    self._stay_pageable(start, bytes_.size, error)
            taken(start + piece.size)

    def _stay_pageable(self, pinned_bytes: int, size: int, error: OSError) -> None:
        self.pinned = False
        self._unpin()
        logger.warning(
            "sloserve: of the host pool's %.1f GiB only %.1f could be pinned (%s); it stays pageable, and copies take "
            "longer. Give less --swap-space-gib, or raise the limit on locked memory (ulimit -l unlimited, "
            "--ulimit memlock=-1 of docker run)",
            size / GIB,
            pinned_bytes / GIB,
            error,
        )

    def _unpin(self) -> None:
        while self._pinned:
            address = self._pinned.pop()
            try:
                assert self._pinner is not None
                self._pinner.unpin(address)
            except OSError as error:
                logger.warning("sloserve: part of the host pool could not be unpinned: %s", error)


def _slice_blocks(blocks: int, block_bytes: int) -> int:
    """Return the blocks of a slice: whole pages together, as near to :data:`SLICE_BYTES` as possible, at most all."""
    whole = math.lcm(block_bytes, mmap.PAGESIZE)
    return min(max(SLICE_BYTES // whole, 1) * (whole // block_bytes), max(blocks, 1))


def _tenths(size: int, what: str) -> Callable[[int], None]:
    """Return a function that logs the progress, once for each tenth."""
    reported = 0

    def taken(so_far: int) -> None:
        nonlocal reported
        if so_far * 10 // size > reported:
            reported = so_far * 10 // size
            logger.info("sloserve: host pool: %.2f of %.2f GiB %s", so_far / GIB, size / GIB, what)

    return taken


@contextlib.contextmanager
def _on(cpus: frozenset[int]) -> Iterator[None]:
    """Run this thread on the CPUs of ``cpus`` that it may use, if there are any."""
    if not cpus or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    if not cpus & before:
        logger.info("sloserve: this process may not use any CPU near the GPU; the pool may be on a distant NUMA node")
        yield
        return
    os.sched_setaffinity(0, cpus & before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpus_beside(pci_id: str, root: Path = Path("/")) -> frozenset[int]:
    """Return the CPUs of the NUMA node of a PCI device (``0000:65:00.0``); empty if the kernel does not name it.

    Args:
        pci_id: Address of the device.
        root: Folder above ``sys``.
    """
    device = root / "sys/bus/pci/devices" / pci_id.lower()
    try:
        if int((device / "numa_node").read_text(encoding="utf-8")) < 0:
            return frozenset()
        ranges = [
            part.split("-")
            for part in (device / "local_cpulist").read_text(encoding="utf-8").strip().split(",")
            if part
        ]
        return frozenset(cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1))
    except (OSError, ValueError):
        return frozenset()


class CudaPinner:
    """CUDA's driver, in the context that torch made current. The driver keeps no error that torch would trip over."""

    def __init__(self) -> None:
        """Load the driver.

        Raises: OSError if there is no such driver.
        """
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._driver.cuMemHostRegister_v2.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        self._driver.cuMemHostUnregister.argtypes = (ctypes.c_void_p,)
        self._driver.cuGetErrorString.argtypes = (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))

    def pin(self, address: int, size: int) -> None:
        self._check(self._driver.cuMemHostRegister_v2(address, size, 0))

    def unpin(self, address: int) -> None:
        self._check(self._driver.cuMemHostUnregister(address))

    def _check(self, status: int) -> None:
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise OSError(f"CUDA: {(text.value or b'').decode() or 'unknown error'} ({status})")
