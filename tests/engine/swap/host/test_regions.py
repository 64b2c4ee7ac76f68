"""Regions describe vLLM's own caches: a block that is stored and loaded elsewhere is the same in every layer's view."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.other_vllm import IS_0_33

pytestmark = pytest.mark.vllm

BLOCKS, HEADS, TOKENS, SIZE = 7, 3, 4, 10
LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")


def cache(layout: str, *specs: Any) -> tuple[Any, dict[str, Any]]:
    """vLLM's configuration and cache of layers with ``specs``, filled with random bytes."""
    import torch
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, UniformTypeKVCacheSpecs
    from vllm.v1.kv_cache_layout import KVCacheLayout
    from vllm.v1.worker.utils import allocate_kv_cache

    names = [f"layer.{i}" for i in range(len(specs))]
    spec = UniformTypeKVCacheSpecs.from_specs(dict(zip(names, specs, strict=True)))
    group = KVCacheGroupSpec(names, specs[0] if len(set(specs)) == 1 else spec)
    settings = SimpleNamespace(
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=BLOCKS,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: KVCacheLayout[layout],
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
    )
    planning = importlib.import_module(f"vllm.v1.core.kv_cache_{'planning' if IS_0_33 else 'utils'}")
    config = planning.get_kv_cache_config_from_groups(settings, [group], 2**20)
    caches = allocate_kv_cache(config, torch.device("cpu"), KVCacheLayout[layout])
    storage = torch.empty(0, dtype=torch.int8).set_(next(iter(caches.values())).untyped_storage())
    storage.random_(-128, 127)
    return config, caches


def spec(**others: Any) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    shape = {"block_size": TOKENS, "num_kv_heads": HEADS, "head_size": SIZE, "dtype": torch.float16}
    return FullAttentionSpec(**(shape | others))


@pytest.mark.parametrize(
    ("layout", "layers"),
    [(layout, layers) for layout in LAYOUTS for layers in ("alike", "one", "latent")]
    # With heads outside the blocks vLLM has no layout for pages of several sizes.
    + [(layout, "fp8 beside") for layout in LAYOUTS if layout not in ("LHBNC", "BHLNC")],
)
def test_a_block_comes_back_elsewhere_as_it_was(layout: str, layers: str) -> None:
    import torch

    from sloserve.core.kernels.kv_copy import block_bytes
    from sloserve.engine.swap.host.copier import CpuCopier
    from sloserve.engine.swap.host.host_pool import HostPool
    from sloserve.engine.swap.host.regions import block_bytes_of, regions_of

    specs = {
        "alike": [spec()] * 3,
        "one": [spec()],
        "fp8 beside": [spec(), spec(), spec(dtype=torch.uint8)],
        "latent": [spec(num_kv_heads=1)] * 2,
    }[layers]
    config, caches = cache(layout, *specs)
    regions = regions_of(config, caches)
    assert block_bytes(regions) <= block_bytes_of(config)
    pool = HostPool(4, block_bytes(regions))
    copier = CpuCopier(regions, BLOCKS, pool)
    before = {name: view.clone().view(torch.uint8) for name, view in caches.items()}
    copier.store([1, 5], [3, 0])
    for view in caches.values():
        view[[1, 5]] = 0
    copier.load("r", [6, 2], [3, 0])
    assert copier.finished() == ({"r"}, set())
    for name, view in caches.items():
        after = view.view(torch.uint8)
        assert torch.equal(after[[6, 2]], before[name][[1, 5]])
        assert torch.equal(after[[0, 3, 4]], before[name][[0, 3, 4]])
    pool.close()


def test_a_cache_that_lies_elsewhere_is_refused() -> None:
    from sloserve.engine.swap.host.regions import regions_of

    config, caches = cache("LBHNC", spec(), spec())
    caches["layer.0"] = caches["layer.1"]
    with pytest.raises(ValueError, match=r"layer\.0 does not begin where"):
        regions_of(config, caches)
