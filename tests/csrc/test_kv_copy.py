"""Copies of KV blocks: all layouts of vLLM against a strided view, and what is refused."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sloserve.core.kernels.kv_copy import MOST_THREADS, Region, block_bytes, copy_blocks

LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
"""Of vLLM's v1/kv_cache_layout.py: the axes (layer, block, head, token, content) from the outermost on."""

Bytes = NDArray[np.uint8]


class Cache:
    """A KV cache in one of the layouts: raw memory, a view of it, and the regions that the strides give."""

    def __init__(self, layout: str, sizes: dict[str, int], padding: int = 0, seed: int = 0) -> None:
        strides, stride = dict[str, int](), 1
        for axis in reversed(layout):
            strides[axis] = stride
            stride = stride * sizes[axis] + (padding if axis in layout[1 : layout.index("B") + 2] else 0)
        rng = np.random.default_rng(seed)
        self.memory: Bytes = rng.integers(0, 256, stride, np.uint8)
        self.num_blocks, self.layout = sizes["B"], layout
        outer, run = layout.replace("B", ""), 1
        while outer and strides[outer[-1]] == run:
            run *= sizes[outer[-1]]
            outer = outer[:-1]
        base = self.memory.ctypes.data
        self.regions = [
            Region(base + sum(i * strides[axis] for i, axis in zip(at, outer, strict=True)), strides["B"], run)
            for at in product(*(range(sizes[axis]) for axis in outer))
        ]
        order = "B" + layout.replace("B", "")
        self.blocks: Bytes = np.lib.stride_tricks.as_strided(
            self.memory, [sizes[axis] for axis in order], [strides[axis] for axis in order]
        )

    def packed(self, block: int) -> bytes:
        return self.blocks[block].tobytes()

    def copy(self, pool: Bytes, device_ids: Any, host_ids: Any, *, to_host: bool, threads: int = 1) -> None:
        at = pool.ctypes.data
        copy_blocks(
            self.regions, self.num_blocks, at, len(pool), device_ids, host_ids, to_host=to_host, threads=threads
        )


@pytest.mark.parametrize(
    ("layout", "regions"),
    [("LBHNC", 3), ("LBNHC", 3), ("LHBNC", 6), ("BLHNC", 1), ("BLNHC", 1), ("BHLNC", 1)],
)
def test_regions_of_the_layouts(layout: str, regions: int) -> None:
    cache = Cache(layout, {"L": 3, "B": 4, "H": 2, "N": 5, "C": 7})
    assert len(cache.regions) == regions and block_bytes(cache.regions) == 3 * 2 * 5 * 7


@given(
    layout=st.sampled_from(LAYOUTS),
    sizes=st.fixed_dictionaries({"L": st.integers(1, 4), "B": st.integers(1, 9), "H": st.integers(1, 3)}),
    tokens=st.sampled_from([1, 3, 16]),
    content=st.sampled_from([1, 7, 16, 48, 130]),
    padding=st.sampled_from([0, 1, 16]),
    threads=st.sampled_from([1, 3, MOST_THREADS]),
    draw=st.data(),
)
def test_out_and_in_again(
    layout: str, sizes: dict[str, int], tokens: int, content: int, padding: int, threads: int, draw: st.DataObject
) -> None:
    """What is stored is what the view shows; what is loaded elsewhere is that again; no other byte changes."""
    sizes = {**sizes, "N": tokens, "C": content}
    cache = Cache(layout, sizes, padding)
    device_ids = draw.draw(st.permutations(range(sizes["B"])))[: draw.draw(st.integers(0, sizes["B"]))]
    host_ids = draw.draw(st.permutations(range(12)))[: len(device_ids)]
    pool = np.full((12, block_bytes(cache.regions)), 77, np.uint8)
    before = cache.memory.copy()
    cache.copy(pool, device_ids, host_ids, to_host=True, threads=threads)
    assert np.array_equal(cache.memory, before)
    stored = dict(zip(host_ids, device_ids, strict=True))
    for host in range(12):
        assert pool[host].tobytes() == (cache.packed(stored[host]) if host in stored else bytes([77]) * pool.shape[1])

    other = Cache(layout, sizes, padding, seed=1)
    expected = other.memory.copy()
    view = np.lib.stride_tricks.as_strided(expected, other.blocks.shape, other.blocks.strides)
    loaded = draw.draw(st.permutations(range(sizes["B"])))[: len(device_ids)]
    for source, target in zip(device_ids, loaded, strict=True):
        view[target] = cache.blocks[source]
    other.copy(pool, loaded, host_ids, to_host=False, threads=threads)
    assert np.array_equal(other.memory, expected)


@pytest.mark.slow
def test_neighbouring_blocks_of_many_chunks_and_threads() -> None:
    """70 blocks of 128 KiB are several chunks, merged where neighbours stay neighbours."""
    cache = Cache("BLHNC", {"L": 2, "B": 70, "H": 1, "N": 16, "C": 4096})
    pool = np.zeros((70, block_bytes(cache.regions)), np.uint8)
    ids = np.concatenate([np.arange(40, 70), np.arange(40)])
    cache.copy(pool, ids, np.arange(70), to_host=True, threads=4)
    assert np.array_equal(pool.ravel(), cache.memory.reshape(70, -1)[ids].ravel())


def refused(**changes: Any) -> Callable[[], None]:
    def call() -> None:
        memory = np.zeros(64, np.uint8)
        regions = [Region(memory.ctypes.data, 16, 16)]
        named = {"regions": regions, "num_blocks": 4, "pool_base": memory.ctypes.data, "pool_blocks": 2, **changes}
        ids = {"device_ids": [0], "host_ids": [1], "to_host": True}
        copy_blocks(**{**ids, **named})

    return call


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device_ids": [4]}, "device_ids: 4 is not within 0 to 3, the blocks of the KV cache"),
        ({"device_ids": [-1]}, "device_ids: -1 is not within 0 to 3"),
        ({"device_ids": [2**63 - 1]}, "device_ids: 9223372036854775807 is not within 0 to 3"),
        ({"host_ids": [2]}, "host_ids: 2 is not within 0 to 1, the blocks of the host pool"),
        ({"device_ids": [1, 2, 1], "host_ids": [0, 1, 2], "pool_blocks": 3}, "device_ids: 1 is there twice"),
        ({"device_ids": [1, 2], "host_ids": [1, 1]}, "host_ids: 1 is there twice; a block is copied once"),
        ({"host_ids": []}, "host_ids: 0 for 1 device_ids; there must be one for each"),
        ({"host_ids": [[1]]}, r"host_ids: shape \(1, 1\) is not one-dimensional"),
        ({"pool_base": 0}, "pool_base: 0 is no address"),
        ({"pool_blocks": -1}, "pool_blocks: -1 is not within 0 to 2147483647"),
        ({"threads": 0}, "threads: 0 is not within 1 to 64"),
        ({"num_blocks": 0}, "num_blocks: 0 is not within 1 to 2147483647"),
        ({"regions": []}, "regions: there is none"),
        ({"regions": [Region(0, 16, 16)]}, r"regions\[0\].base: 0 is no address"),
        ({"regions": [Region(8, 15, 16)]}, r"regions\[0\].stride: 15 is not within 16 to"),
        ({"regions": [Region(8, 16, 0)]}, r"regions\[0\].bytes: 0 is not within 1 to"),
        ({"regions": [Region(-8, 16, 16)]}, r"regions\[0\].base: -8 is not within 1 to"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refused(**changes)()


def test_nothing_to_copy() -> None:
    refused(device_ids=[], host_ids=[], pool_base=0, pool_blocks=0)()
