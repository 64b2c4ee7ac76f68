"""Read what the NVIDIA driver reports of the GPUs of this server: memory, utilisation, power and energy.

Nothing is set. Without an NVIDIA driver there are no GPUs. A figure that a GPU does not report, as under MIG or on some
virtual machines, is ``None``.
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from sloserve.engine.metrics.load_sampler import MOST_GPUS, GpuFigures

logger = logging.getLogger(__name__)

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class Gpus:
    """The GPUs that the engines of this host use.

    Args:
        count: Number of GPUs that they use.
        nvml: NVIDIA's library, as a module; ``None`` for the one that vLLM ships.
    """

    def __init__(self, count: int, nvml: Any = None) -> None:
        self._count, self._nvml = count, nvml
        self._handles: list[Any] | None = None

    def __call__(self) -> Sequence[GpuFigures]:
        """Return the GPUs as they are now. It may take long where the driver does, and never raises."""
        if self._handles is None:
            try:
                self._handles = self._found()
            except Exception as error:  # there is no driver, or it refuses
                logger.info("the GPUs are not shown to watchers: %s", error)
                self._handles = []
        return [self._read(handle) for handle in self._handles]

    def _found(self) -> list[Any]:
        if self._nvml is None:
            from vllm.third_party import pynvml

            self._nvml = pynvml
        nvml = self._nvml
        nvml.nvmlInit()
        visible = [name.strip() for name in os.environ.get(_VISIBLE, "").split(",") if name.strip()]
        names = (visible or [str(i) for i in range(nvml.nvmlDeviceGetCount())])[: min(self._count, MOST_GPUS)]
        return [
            nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
            for name in names
        ]

    def _read(self, handle: Any) -> GpuFigures:
        nvml = self._nvml
        memory = _or_none(nvml.nvmlDeviceGetMemoryInfo, handle)
        used = _or_none(nvml.nvmlDeviceGetUtilizationRates, handle)
        power_mw = _or_none(nvml.nvmlDeviceGetPowerUsage, handle)
        energy_mj = _or_none(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        name = _or_none(nvml.nvmlDeviceGetName, handle)
        return GpuFigures(
            name=name.decode(errors="replace") if isinstance(name, bytes) else str(name or "GPU")[:64],
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_bytes=None if memory is None else int(memory.total),
            busy=None if used is None else used.gpu / 100.0,
            power_w=None if power_mw is None else power_mw / 1e3,
            joules=None if energy_mj is None else energy_mj / 1e3,
        )


def _or_none(read: Callable[[Any], Any], handle: Any) -> Any:
    try:
        return read(handle)
    except Exception:
        return None


def gpus_of(parallel_config: Any) -> int:
    """Return how many GPUs the engines of this host use.

    Args:
        parallel_config: vLLM's configuration of parallelism.
    """
    each = int(getattr(parallel_config, "world_size", 1))
    return each * max(int(getattr(parallel_config, "data_parallel_size_local", 1)), 1)
