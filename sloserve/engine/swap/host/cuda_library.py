"""The compiled copies of KV blocks on a GPU (csrc/cuda), by ctypes: one library for every torch and Python.

It is there where the package was built with nvcc, and works where the driver is as new as the CUDA it was built with.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sloserve.core.arrays import IntArray
from sloserve.core.kernels import _csrc
from sloserve.core.kernels.kv_copy import Region
from sloserve.engine.swap.host.host_pool import HostPool

ABI: Final = 2
MOST_STAGING_BYTES: Final = 128 * 2**20
SLICES: Final = 8
"""Slices of staging memory, for both directions together; each holds one block at least."""

_Long = ctypes.c_int64
_Longs = ctypes.POINTER(_Long)


class _Region(ctypes.Structure):
    _fields_ = (("base", ctypes.c_uint64), ("stride", _Long), ("bytes", _Long))


class _EndedCopy(ctypes.Structure):
    _fields_ = (("ticket", _Long), ("bytes", _Long), ("to_host", _Long), ("link_s", ctypes.c_double))


class _Error(ctypes.Structure):
    _fields_ = (("text", ctypes.c_char * 512),)


class EndedCopy(NamedTuple):
    """A copy that is over.

    Args:
        link_s: Seconds for which the copy took up the link.
    """

    ticket: int
    to_host: bool
    bytes: int
    link_s: float


def built_library() -> ctypes.CDLL:
    """Return the library that this package was built with.

    Raises: OSError if there is none, or one of another version.
    """
    assert _csrc.__file__ is not None
    path = Path(_csrc.__file__).with_name("libsloserve_kv_cuda.so")
    if not path.exists():
        raise OSError("sloserve was built without nvcc, see docs/swap.md")
    return loaded(path)


def loaded(path: Path) -> ctypes.CDLL:
    """Load the library at ``path``.

    Raises: OSError if the file is no such library, or one of another version.
    """
    library = ctypes.CDLL(str(path))
    error, handle = ctypes.POINTER(_Error), ctypes.c_void_p
    copy = (handle, _Longs, _Longs, _Long, handle, error)
    for name, arguments in {
        "abi": (),
        "open": (_Long, ctypes.POINTER(_Region), _Long, _Long, handle, _Long, _Long, _Long, handle, error),
        "store": (*copy[:-1], _Long, error),
        "await_store": (handle, _Long, handle, error),
        "load": copy,
        "ended": (handle, ctypes.POINTER(_EndedCopy), _Long, error),
        "close": (handle,),
    }.items():
        function = getattr(library, f"sloserve_kv_{name}", None)
        if function is None:
            raise OSError(f"{path.name} has no function {name}")
        function.argtypes, function.restype = arguments, None if name == "close" else _Long
    if (found := library.sloserve_kv_abi()) != ABI:
        raise OSError(f"{path.name} is of version {found}, and {ABI} is needed; build sloserve again")
    return library


class CudaTransfer:
    """Copies of one rank through the library. Two threads must not use it at once."""

    def __init__(
        self,
        library: ctypes.CDLL,
        device: int,
        regions: Sequence[Region],
        num_blocks: int,
        pool: HostPool,
        *,
        staging_bytes: int,
        compute: Callable[[], int],
    ) -> None:
        """Open the library for one rank.

        Args:
            library: The library.
            device: Index of the GPU.
            regions: Runs of bytes of which a block consists.
            num_blocks: Number of blocks of the cache.
            pool: The host pool.
            staging_bytes: Most bytes of staging memory on the GPU, 0 for none.
            compute: Function that returns the engine's present stream.

        Raises: RuntimeError with what the library or the driver says.
        """
        self._library, self._compute = library, compute
        self._handle, self._error = ctypes.c_void_p(), _Error()
        rows = (_Region * len(regions))(*(_Region(*region) for region in regions))
        self.staging_bytes = self._checked(
            library.sloserve_kv_open(
                device,
                rows,
                len(rows),
                num_blocks,
                pool.address,
                pool.blocks,
                pool.slice_blocks,
                staging_bytes,
                ctypes.byref(self._handle),
                self._error,
            )
        )

    def store(self, device_ids: ArrayLike, host_ids: ArrayLike, *, beside: bool = False) -> int:
        """Begin to copy blocks to the host.

        Args:
            device_ids: Blocks of the cache.
            host_ids: Blocks of the pool, one for each.
            beside: Whether the engine's later work goes on beside the copy, until :meth:`await_store`.

        Returns: a ticket.
        Raises: RuntimeError, and no copy runs any more.
        """
        return self._begin(self._library.sloserve_kv_store, device_ids, host_ids, int(beside))

    def await_store(self, ticket: int) -> None:
        """Have the engine's later work wait until the blocks of a store, and of those before it, may be written.

        Raises: RuntimeError, and no copy runs any more.
        """
        self._checked(self._library.sloserve_kv_await_store(self._handle, ticket, self._compute(), self._error))

    def load(self, device_ids: ArrayLike, host_ids: ArrayLike) -> int:
        """Begin to copy blocks to the device; otherwise the same as :meth:`store`."""
        return self._begin(self._library.sloserve_kv_load, device_ids, host_ids)

    def ended(self) -> list[EndedCopy]:
        """Return the copies that are over, each of them once.

        Raises: RuntimeError if the GPU failed.
        """
        found, rows = list[EndedCopy](), (_EndedCopy * 32)()
        while True:
            n = self._checked(self._library.sloserve_kv_ended(self._handle, rows, len(rows), self._error))
            found += [EndedCopy(row.ticket, bool(row.to_host), row.bytes, row.link_s) for row in rows[:n]]
            if n < len(rows):
                return found

    def close(self) -> None:
        """Wait for the copies that run, and give the memory back. A second call has no effect."""
        if self._handle:
            self._library.sloserve_kv_close(self._handle)
            self._handle = ctypes.c_void_p()

    def _begin(self, call: Callable[..., int], device_ids: ArrayLike, host_ids: ArrayLike, *how: int) -> int:
        device, host = np.ascontiguousarray(device_ids, np.int64), np.ascontiguousarray(host_ids, np.int64)
        if device.shape != host.shape or device.ndim != 1:
            raise ValueError(
                f"host_ids: shape {host.shape} for device_ids of {device.shape}; there must be one for each"
            )
        return self._checked(
            call(self._handle, _pointer(device), _pointer(host), device.size, self._compute(), *how, self._error)
        )

    def _checked(self, result: Any) -> int:
        if result < 0:
            raise RuntimeError(self._error.text.decode(errors="replace"))
        return int(result)


def _pointer(ids: IntArray) -> Any:
    return ids.ctypes.data_as(_Longs)
