"""How fast are KV blocks copied between a cache and the host pool, against one copy of as many bytes?

Usage: python -m benchmarks.swap.copy_speed [--quick]

CPU: a cache of 32 layers, each a run of 4 to 256 KiB a block, blocks in random order in the cache and side by side in
the pool; GB/s of thread CPU time, against one memcpy, in turn. GPU, where there is one: such blocks by the kernels of
csrc/cuda and by vLLM's op, against one pinned transfer; whether they arrive whole, and what a decode step takes
meanwhile. Writes results/kv_copy.json.gz; ``--quick`` writes nothing.
"""

import ctypes
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.arguments import is_quick
from benchmarks.publish import RESULTS, write_result
from sloserve.core.kernels.kv_copy import Region, copy_blocks

SEED = 0
LAYERS = 32
RUN_KIB = (4, 8, 16, 32, 64, 128, 256)
TOTAL_BYTES = 256 * 2**20
ROUNDS = 9
GPU_RUN_KIB = (8, 32, 64, 256)
GPU_BYTES = 64 * 2**20
GPU_ROUNDS = 5
STEPS = 40


def rate(total: int, call: Callable[[], object]) -> float:
    """GB/s of thread CPU time."""
    began = time.thread_time()
    call()
    return total / (time.thread_time() - began) / 1e9


def cpu_row(run_kib: int, total_bytes: int, rounds: int) -> dict[str, Any]:
    run = run_kib * 1024
    blocks = total_bytes // LAYERS // run
    total = blocks * LAYERS * run
    cache, pool = np.ones(total, np.uint8), np.ones(total, np.uint8)
    at, to = cache.ctypes.data, pool.ctypes.data
    regions = [Region(at + layer * blocks * run, run, run) for layer in range(LAYERS)]
    device_ids, host_ids = np.random.default_rng(SEED).permutation(blocks), np.arange(blocks)
    memcpy = ctypes.CDLL(None).memcpy
    memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def copy(to_host: bool) -> None:
        copy_blocks(regions, blocks, to, blocks, device_ids, host_ids, to_host=to_host)

    rates: dict[str, list[float]] = {"memcpy": [], "out": [], "in": []}
    for _ in range(rounds):
        rates["memcpy"].append(rate(total, lambda: memcpy(to, at, total)))
        rates["out"].append(rate(total, lambda: copy(True)))
        rates["in"].append(rate(total, lambda: copy(False)))
    peak, out, back = (float(np.median(rates[name])) for name in ("memcpy", "out", "in"))
    return {
        "run_kib": run_kib,
        "memcpy_gb_per_s": round(peak, 2),
        "out_gb_per_s": round(out, 2),
        "in_gb_per_s": round(back, 2),
        "out_share": round(out / peak, 3),
        "in_share": round(back / peak, 3),
    }


def gpu_rows() -> list[dict[str, Any]] | str:
    """One row for each kind of block and copier; why there is none."""
    try:
        import torch
    except ImportError:
        return "not run: torch is not installed"
    if not torch.cuda.is_available():
        return "not run: no NVIDIA GPU on this machine"
    return [row for kib in GPU_RUN_KIB for one_run in (False, True) for row in _gpu_rows(torch, kib, one_run)]


def _gpu_rows(torch: Any, run_kib: int, one_run: bool) -> list[dict[str, Any]]:
    """one_run: a block is one run of bytes, as in a layout with the block outermost."""
    from vllm._custom_ops import swap_blocks_batch

    from sloserve.engine.swap.host.cuda_library import CudaTransfer, built_library
    from sloserve.engine.swap.host.op_transfer import OpTransfer
    from sloserve.vllm_plugin.swap.cuda_start import gpu_pool, staging_bytes_for, timing

    device, run = torch.device("cuda", torch.cuda.current_device()), run_kib * 1024
    blocks = GPU_BYTES // LAYERS // run
    shape = (2 * blocks, LAYERS * run) if one_run else (LAYERS, 2 * blocks, run)
    cache = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
    at, size = cache.data_ptr(), LAYERS * run
    regions = (
        [Region(at, size, size)] if one_run else [Region(at + i * 2 * blocks * run, run, run) for i in range(LAYERS)]
    )
    pool = gpu_pool(blocks, size, device)
    staging = staging_bytes_for(regions)
    engine = torch.cuda.current_stream
    transfers = {
        "kernels": CudaTransfer(
            built_library(),
            device.index,
            regions,
            2 * blocks,
            pool,
            staging_bytes=staging,
            compute=lambda: int(engine().cuda_stream),
        ),
        "swap_blocks_batch": OpTransfer(swap_blocks_batch, regions, pool, torch.cuda, torch.from_numpy),
    }
    ids, hosts = np.random.default_rng(SEED).permutation(2 * blocks)[:blocks], np.arange(blocks)
    kept = cache.clone()
    rows = []
    timings: dict[str, list[Any]] = {name: [] for name in transfers}
    peak = _pinned_peak(torch, device, blocks * size)
    for _ in range(GPU_ROUNDS):
        for name, transfer in transfers.items():
            timings[name].append(timing(transfer, ids, hosts, engine().synchronize))
    for name, transfer in transfers.items():
        held_s, store_s, load_s = (float(np.median(column)) for column in zip(*timings[name], strict=True))
        rows.append(
            {
                "run_kib": run_kib,
                "one_run": one_run,
                "copier": name,
                "equal": _equal(torch, transfer, cache, kept, ids, hosts, one_run),
                "out_gb_per_s": round(blocks * size / store_s / 1e9, 2),
                "in_gb_per_s": round(blocks * size / load_s / 1e9, 2),
                "pinned_gb_per_s": peak,
                "held_ms": round(held_s * 1e3, 3),
                **_step_ms(torch, device, lambda: transfer.store(ids, hosts), lambda: transfer.load(ids, hosts)),  # noqa: B023
            }
        )
    for transfer in transfers.values():
        transfer.close()
    pool.close()
    return rows


def _equal(torch: Any, transfer: Any, cache: Any, kept: Any, ids: Any, hosts: Any, one_run: bool) -> bool:
    """Whether blocks come back whole that were written over after their store began, and nothing else changes."""
    transfer.store(ids, hosts)
    cache.zero_()
    load = transfer.load(ids, hosts)
    while load not in {one.ticket for one in transfer.ended()}:
        pass
    expected = torch.zeros_like(kept)
    at = torch.from_numpy(ids).to(cache.device)
    if one_run:
        expected[at] = kept[at]
    else:
        expected[:, at] = kept[:, at]
    found = bool(torch.equal(cache, expected))
    cache.copy_(kept)
    return found


def _pinned_peak(torch: Any, device: Any, size: int) -> float:
    """GB/s of one pinned transfer to the host."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    times = []
    for _ in range(GPU_ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return round(size / min(times) / 1e9, 2)


def _step_ms(torch: Any, device: Any, store: Callable[[], object], load: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of a decode step's matrices (64 requests, 16 of 4096 x 4096): alone, with a store, with a load."""
    weights = torch.randn(16, 4096, 4096, dtype=torch.bfloat16, device=device)
    hidden = torch.randn(64, 4096, dtype=torch.bfloat16, device=device)

    def step() -> None:
        for weight in weights:
            hidden @ weight

    found = {}
    for name, begin in {"step_ms": lambda: None, "step_store_ms": store, "step_load_ms": load}.items():
        times = []
        for _ in range(STEPS):
            torch.cuda.synchronize()
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            begin()
            step()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last))
        found[name] = round(float(np.median(times)), 3)
    return found


def main() -> None:
    quick = is_quick(__doc__)
    sizes, total, rounds = ((4, 64), 2**22, 1) if quick else (RUN_KIB, TOTAL_BYTES, ROUNDS)
    cpu = []
    for run_kib in sizes:
        cpu.append(cpu_row(run_kib, total, rounds))
        print(json.dumps(cpu[-1]))
    gpu = gpu_rows()
    print(json.dumps({"gpu": gpu}))
    if not quick:
        found = {"layers": LAYERS, "bytes": total, "rounds": rounds, "cpu": cpu, "gpu": gpu}
        write_result(RESULTS / "kv_copy.json.gz", found)


if __name__ == "__main__":
    main()
