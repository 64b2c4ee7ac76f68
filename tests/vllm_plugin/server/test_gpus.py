"""GPUs are read as the driver reports them; what it does not report is left out, and a host without one has none."""

from types import SimpleNamespace
from typing import Any

import pytest

from sloserve.engine.metrics.load_sampler import MOST_GPUS, GpuFigures
from sloserve.vllm_plugin.server.gpus import Gpus, gpus_of


class Nvml:
    """Stands for NVIDIA's library on a host with some GPUs."""

    def __init__(self, gpus: int, fails: tuple[str, ...] = ()) -> None:
        self.gpus, self.fails, self.begun = gpus, fails, 0

    def __getattr__(self, name: str) -> Any:
        of = {
            "nvmlDeviceGetCount": self.gpus,
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=60 << 30, total=80 << 30),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetPowerUsage": 612_345,
            "nvmlDeviceGetTotalEnergyConsumption": 9_000_000,
            "nvmlDeviceGetName": b"NVIDIA H100",
        }

        def call(*args: Any) -> Any:
            if name in self.fails:
                raise RuntimeError("Not Supported")
            if name == "nvmlInit":
                self.begun += 1
            return (name, *args) if name.startswith("nvmlDeviceGetHandle") else of.get(name)

        return call


def test_a_gpu_shows_memory_utilisation_power_and_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = Nvml(8)
    gpus = Gpus(2, nvml)
    assert list(gpus()) == [GpuFigures("NVIDIA H100", 60 << 30, 80 << 30, 0.97, 612.345, 9000.0)] * 2
    gpus()
    assert nvml.begun == 1
    assert len(Gpus(99, Nvml(99))()) == MOST_GPUS


def test_only_the_gpus_of_this_server_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-12ab,5")
    gpus = Gpus(2, Nvml(8))
    gpus()
    assert gpus._handles == [("nvmlDeviceGetHandleByIndex", 3), ("nvmlDeviceGetHandleByUUID", "GPU-12ab")]


def test_what_a_gpu_does_not_report_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fails = "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetName"
    (gpu,) = Gpus(1, Nvml(1, fails))()
    assert (gpu.name, gpu.busy, gpu.joules, gpu.power_w) == ("GPU", None, None, 612.345)


def test_a_host_without_a_driver_has_no_gpus_and_is_asked_once() -> None:
    nvml = Nvml(1, ("nvmlInit",))
    gpus = Gpus(1, nvml)
    assert list(gpus()) == []
    nvml.fails = ()
    assert list(gpus()) == [] and nvml.begun == 0


def test_the_gpus_of_all_local_engines_count() -> None:
    assert gpus_of(SimpleNamespace(world_size=4, data_parallel_size_local=2)) == 8
    assert gpus_of(None) == 1
