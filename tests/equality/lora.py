"""Random LoRA adapters for the tiny model, made on the spot."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

ADAPTERS = (1, 2, 3)
"""Ids; each is also its adapter's seed."""

_RANK = 4


@lru_cache
def lora_request(adapter: int, folder: Path) -> Any:
    """vLLM's handle on an adapter, whose files are written to ``folder`` on first use."""
    from vllm.lora.request import LoRARequest

    path = folder / f"adapter-{adapter}"
    _write(path, adapter)
    return LoRARequest(f"adapter-{adapter}", adapter, str(path))


def _write(path: Path, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(2):
        for module, width in (("q_proj", 128), ("v_proj", 64)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = torch.randn(_RANK, 128, generator=generator) * 0.2
            weights[f"{name}.lora_B.weight"] = torch.randn(width, _RANK, generator=generator) * 0.2
    path.mkdir()
    save_file(weights, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(config))
