"""On a GPU: blocks come back whole from the pool, by our kernels and by vLLM's op, in every layout."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sloserve.core.kernels.kv_copy import Region, block_bytes
from sloserve.engine.swap.host.cuda_copier import CudaCopier, Transfer
from sloserve.engine.swap.host.cuda_library import CudaTransfer, built_library
from sloserve.engine.swap.host.host_pool import HostPool
from sloserve.engine.swap.host.op_transfer import OpTransfer
from sloserve.vllm_plugin.swap.cuda_start import gpu_copier, gpu_pool, staging_bytes_for

pytestmark = pytest.mark.gpu

BLOCKS = 64
LAYOUTS = {
    "a layer": ((4, BLOCKS, 32768), 1),
    "a layer and head": ((4, 2, BLOCKS, 4096), 2),
    "one long": ((BLOCKS, 131072), 0),
    "one short": ((BLOCKS, 8192), 0),
    "odd": ((3, BLOCKS, 1007), 1),
}
"""Runs of bytes that a block has: the cache's shape in bytes, and which axis the blocks are."""


class Cache:
    def __init__(self, runs: str) -> None:
        import torch

        shape, axis = LAYOUTS[runs]
        self.memory = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
        self.by_block = self.memory.movedim(axis, 0)
        count, stride = int(np.prod(shape[:axis], dtype=int)), int(np.prod(shape[axis + 1 :]))
        at = self.memory.data_ptr()
        self.regions = [Region(at + i * BLOCKS * stride, stride, stride) for i in range(count)]
        self.pool = gpu_pool(BLOCKS, block_bytes(self.regions), self.memory.device)

    def transfer(self, by: str) -> Transfer:
        import torch
        from vllm._custom_ops import swap_blocks_batch

        if by == "op":
            return OpTransfer(swap_blocks_batch, self.regions, self.pool, torch.cuda, torch.from_numpy)
        staging, stream = staging_bytes_for(self.regions), torch.cuda.current_stream
        return CudaTransfer(
            built_library(),
            0,
            self.regions,
            BLOCKS,
            self.pool,
            staging_bytes=staging,
            compute=lambda: int(stream().cuda_stream),
        )


@pytest.fixture(params=sorted(LAYOUTS))
def cache(request: pytest.FixtureRequest) -> Iterator[Cache]:
    made = Cache(request.param)
    yield made
    made.pool.close()


@pytest.mark.parametrize("by", ["kernels", "op"])
@pytest.mark.parametrize("beside", [False, True], ids=["first", "beside"])
def test_blocks_written_over_at_once_come_back_elsewhere(cache: Cache, by: str, beside: bool) -> None:
    copier, before = CudaCopier(cache.transfer(by)), cache.by_block.clone()
    ids = np.random.default_rng(3).permutation(BLOCKS)
    out, back = ids[:30], ids[30:60]
    number = copier.store(out.tolist(), list(range(10, 40)), beside=beside)
    if beside:
        cache.by_block[ids[30:].tolist()] = 0  # a step beside the copy
        copier.await_store(number)
    cache.memory.zero_()  # the engine's next step
    copier.load("a", back.tolist(), list(range(10, 40)))
    assert copier.drain(10.0) and copier.finished() == ({"a"}, set())
    expected = before.clone().zero_()
    expected[back.tolist()] = before[out.tolist()]
    assert bool((cache.by_block == expected).all())
    assert cache.pool.memory[10:40].tobytes() == before[out.tolist()].cpu().numpy().tobytes()
    copier.close()


def test_the_faster_is_taken_and_leaves_the_cache_as_it_was(cache: Cache) -> None:
    pool: HostPool = cache.pool
    before = cache.memory.clone()
    device: Any = cache.memory.device
    copier = gpu_copier(cache.regions, BLOCKS, pool, device, 0.5)
    assert bool((cache.memory == before).all())
    copier.close()
