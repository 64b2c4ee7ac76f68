"""Choose what copies KV blocks on this GPU: the library of csrc/cuda, or vLLM's op, whichever is faster.

That depends on the model's blocks and on the machine, so both are timed once, at the start, on the cache itself while
nothing uses it. What counts is how long a store holds the engine up, and how long a load takes.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sloserve.core.errors import ConfigError
from sloserve.core.kernels.kv_copy import Region, block_bytes
from sloserve.engine.swap.host.cuda_copier import CudaCopier, Transfer
from sloserve.engine.swap.host.cuda_library import MOST_STAGING_BYTES, SLICES, CudaTransfer, built_library
from sloserve.engine.swap.host.host_pool import CudaPinner, HostPool, cpus_beside
from sloserve.engine.swap.host.memory_limits import GIB
from sloserve.engine.swap.host.op_transfer import OpTransfer

logger = logging.getLogger(__name__)

DIRECT_BYTES: Final = 64 * 2**10
"""Size from which blocks of one run go without staging: the copy engine is then at full speed."""

TRIAL_BYTES: Final = 64 * 2**20
TRIALS: Final = 3
_TRIAL_LIMIT_S: Final = 10.0
_MIB: Final = 2**20


def staging_bytes_for(regions: Sequence[Region]) -> int:
    """Return the bytes of staging memory that copies of these blocks take on the GPU.

    None is needed where a block is one long run.
    """
    return 0 if len(regions) == 1 and regions[0].bytes >= DIRECT_BYTES else MOST_STAGING_BYTES


def check_staging(staging_bytes: int, free_bytes: int, total_bytes: int, utilization: float | None) -> None:
    """Raise ConfigError if the staging memory does not fit into what vLLM leaves.

    Staging memory is taken beside the KV cache, which vLLM has sized before. What is free within vLLM's share is for
    activations and CUDA graphs.

    Args:
        staging_bytes: Size of the staging memory.
        free_bytes: Free memory of the GPU, now.
        total_bytes: Memory of the GPU.
        utilization: vLLM's gpu_memory_utilization; ``None`` if the size of the KV cache was given in bytes.
    """
    left = free_bytes if utilization is None else min(free_bytes, round((1.0 - utilization) * total_bytes))
    missing = staging_bytes - left
    if missing <= 0:
        return
    if utilization is None:
        remedy = f"give --kv-cache-memory-bytes {math.ceil(missing / _MIB)} MiB less"
    else:
        lower = math.floor((utilization - missing / total_bytes) * 1000) / 1000
        remedy = f"lower --gpu-memory-utilization from {utilization:g} to {max(lower, 0.0):g}"
    raise ConfigError(
        f"swapping needs {staging_bytes // _MIB} MiB of the GPU for staging, and vLLM leaves {left // _MIB} MiB of "
        f"{total_bytes / GIB:.1f} GiB; {remedy}, or leave --swap-space-gib out"
    )


class _Timing(NamedTuple):
    """Seconds for which a store held the engine up, until the store was on the host, and that a load took."""

    held_s: float
    store_s: float
    load_s: float


def timing(transfer: Transfer, device_ids: ArrayLike, host_ids: ArrayLike, engine_done: Callable[[], None]) -> _Timing:
    """Copy blocks out and in again, after which the cache holds what it held, and return how long that took.

    Args:
        transfer: What copies.
        device_ids: Blocks on the device.
        host_ids: Blocks on the host, in the same order.
        engine_done: Waits until the engine's stream has nothing more to do.

    Raises: RuntimeError where a copy fails or does not end.
    """
    engine_done()
    begin_s = time.perf_counter()
    store = transfer.store(device_ids, host_ids)
    engine_done()
    held_s = time.perf_counter() - begin_s
    _wait(transfer, store)
    store_s = time.perf_counter() - begin_s
    begin_s = time.perf_counter()
    _wait(transfer, transfer.load(device_ids, host_ids))
    return _Timing(held_s, store_s, time.perf_counter() - begin_s)


def _wait(transfer: Transfer, ticket: int) -> None:
    until_s = time.perf_counter() + _TRIAL_LIMIT_S
    while ticket not in {one.ticket for one in transfer.ended()}:
        if time.perf_counter() > until_s:
            raise RuntimeError(f"a copy did not end within {_TRIAL_LIMIT_S:.0f} s")


def faster(
    transfers: dict[str, Transfer],
    regions: Sequence[Region],
    num_blocks: int,
    pool_blocks: int,
    engine_done: Callable[[], None],
) -> str:
    """Return the name of the transfer that is faster with these blocks.

    The others are closed, and so is one that fails.

    Raises: ConfigError where all fail.
    """
    size = block_bytes(regions)
    n = max(min(TRIAL_BYTES // size, num_blocks, pool_blocks), 1)
    # These are like the blocks of a request that were given one by one; on the host they lie side by side.
    device_ids, host_ids = np.arange(num_blocks)[:: max(num_blocks // n, 1)][:n][::-1], np.arange(n)
    timings: dict[str, list[_Timing]] = {name: [] for name in transfers}
    errors = dict[str, str]()
    for _ in range(TRIALS):
        for name in [name for name in transfers if name not in errors]:
            try:
                timings[name].append(timing(transfers[name], device_ids, host_ids, engine_done))
            except Exception as error:
                errors[name] = str(error)
    rates = []
    best = dict[str, _Timing]()
    for name, of in timings.items():
        if name in errors:
            rates.append(f"{name} fails ({errors[name]})")
            continue
        best[name] = _Timing(*(float(min(column)) for column in zip(*of, strict=True)))
        held_s, store_s, load_s = best[name]
        rates.append(
            f"{name} {n * size / store_s / 1e9:.1f} GB/s out and {n * size / load_s / 1e9:.1f} in, "
            f"engine held up for {held_s * 1e3:.2f} ms"
        )
    if not best:
        raise ConfigError(
            f"KV cannot be swapped: {'; '.join(rates) or 'no copier works here'}. Leave --swap-space-gib out"
        )
    chosen = min(best, key=lambda name: best[name].held_s + best[name].load_s)
    for name, transfer in transfers.items():
        if name != chosen:
            transfer.close()
    logger.info(
        "sloserve: KV blocks of %d KiB in %d runs are copied by %s; %.0f MiB: %s; %d MiB of staging memory",
        size // 1024,
        len(regions),
        chosen,
        n * size / _MIB,
        "; ".join(rates),
        transfers[chosen].staging_bytes // _MIB,
    )
    return chosen


def gpu_copier(
    regions: Sequence[Region], num_blocks: int, pool: HostPool, device: Any, utilization: float | None
) -> CudaCopier:
    """Return the faster of the two copiers for a cache on this GPU.

    Args:
        regions: The parts of a block.
        num_blocks: Number of blocks of the cache.
        pool: The host pool.
        device: The GPU, as a ``torch.device``.
        utilization: vLLM's gpu_memory_utilization, as for :func:`check_staging`.

    Raises: ConfigError where staging memory does not fit, or nothing can copy.
    """
    import torch

    cuda = torch.cuda
    with cuda.device(device):
        makers: Mapping[str, Callable[[], Transfer]] = {
            "sloserve's kernels": lambda: _kernels(regions, num_blocks, pool, cuda, utilization),
            "vLLM's swap_blocks_batch": lambda: _op(regions, pool, cuda, torch.from_numpy),
        }
        transfers = dict[str, Transfer]()
        for name, make in makers.items():
            try:
                transfers[name] = make()
            except (OSError, ImportError, RuntimeError) as error:
                logger.warning("sloserve: KV blocks are not copied by %s: %s", name, error)
        chosen = faster(transfers, regions, num_blocks, pool.blocks, cuda.current_stream().synchronize)
    return CudaCopier(transfers[chosen])


def _kernels(
    regions: Sequence[Region], num_blocks: int, pool: HostPool, cuda: Any, utilization: float | None
) -> Transfer:
    library, staging = built_library(), staging_bytes_for(regions)
    if staging and (size := block_bytes(regions)) * SLICES > staging:
        raise OSError(f"a block of {size} bytes is above {staging // SLICES}, a slice of staging memory")
    free_bytes, total_bytes = cuda.mem_get_info()
    check_staging(staging, free_bytes, total_bytes, utilization)
    device, stream = cuda.current_device(), cuda.current_stream
    return CudaTransfer(
        library,
        device,
        regions,
        num_blocks,
        pool,
        staging_bytes=staging,
        compute=lambda: int(stream().cuda_stream),
    )


def _op(regions: Sequence[Region], pool: HostPool, cuda: Any, tensor: Callable[..., Any]) -> Transfer:
    from vllm._custom_ops import swap_blocks_batch

    return OpTransfer(swap_blocks_batch, regions, pool, cuda, tensor)


def gpu_pool(blocks: int, size: int, device: Any) -> HostPool:
    """Return a pool of pinned blocks on the NUMA node of this GPU.

    Args:
        blocks: Number of blocks.
        size: Bytes of a block.
        device: The GPU, as a ``torch.device``.
    """
    import torch

    try:
        pinner = CudaPinner()
    except OSError as error:  # another maker's GPU
        logger.warning("sloserve: the host pool is not pinned, and copies take longer: %s", error)
        return HostPool(blocks, size)
    of = torch.cuda.get_device_properties(device)
    with torch.cuda.device(device):
        return HostPool(
            blocks, size, pinner, cpus_beside(f"{of.pci_domain_id:04x}:{of.pci_bus_id:02x}:{of.pci_device_id:02x}.0")
        )
