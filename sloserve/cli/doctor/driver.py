"""NVIDIA's driver, asked through its library ``libcuda.so.1``: its CUDA version and its devices."""

import ctypes
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"
_NO_DEVICE = 100
_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Args:
        name: Name of the device.
        memory_bytes: Size of its memory.
        capability: Compute capability of its architecture, such as (9, 0).
    """

    name: str
    memory_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver.

    Args:
        cuda: The newest CUDA that it runs, such as (13, 0).
        gpus: The devices that it sees.
    """

    cuda: tuple[int, int]
    gpus: tuple[Gpu, ...]


class DriverError(Exception):
    """The driver is there and does not work."""


def ask(library: str = LIBRARY) -> Driver | None:
    """Return what the driver reports, or ``None`` if there is no driver.

    Raises: DriverError with the driver's message.
    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return None
    found = ctypes.c_int()
    _checked(cuda, cuda.cuDriverGetVersion(ctypes.byref(found)))
    number = (found.value // 1000, found.value % 1000 // 10)
    if (status := cuda.cuInit(0)) == _NO_DEVICE:
        return Driver(number, ())
    _checked(cuda, status)
    _checked(cuda, cuda.cuDeviceGetCount(ctypes.byref(found)))
    return Driver(number, tuple(_gpu(cuda, i) for i in range(found.value)))


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, memory = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_size_t()
    _checked(cuda, cuda.cuDeviceGet(ctypes.byref(device), index))
    _checked(cuda, cuda.cuDeviceGetName(name, _NAME_BYTES, device))
    _checked(cuda, cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device))
    _checked(cuda, cuda.cuDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), device))
    return Gpu(name.value.decode(errors="replace"), memory.value, (major.value, minor.value))


def _checked(cuda: ctypes.CDLL, status: int) -> None:
    if status == 0:
        return
    text = ctypes.c_char_p()
    cuda.cuGetErrorString(status, ctypes.byref(text))
    raise DriverError(f"error {status}" if text.value is None else f"{text.value.decode()} (error {status})")
