"""What drafts for the tiny models beside a model of its own: an EAGLE head, and a module for multi-token prediction.

Both pass on the embedding of the last token, whose best successor by the model's own head is the draft: it is right now
and then, and wrong often.
"""

import json
from pathlib import Path
from typing import Any

from tests.equality.layouts.models import HIDDEN, ModelFolders

WEAKER = 0.25
"""What the layers of ``mimo`` add, of what those of the other models do."""


def eagle_head(folders: ModelFolders) -> str:
    """Return the folder of an EAGLE head for ``llama``."""
    import torch
    from safetensors.torch import load_file, save_file

    target = Path(folders.of("llama"))
    path = target.with_name("llama-eagle")
    if not path.exists():
        config = json.loads((target / "config.json").read_text())
        weights = load_file(target / "model.safetensors")
        head = _idle_layer(weights)
        del head["layers.0.input_layernorm.weight"]  # the first layer of such a head has none
        head["fc.weight"] = torch.cat((torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)), dim=1)
        head["embed_tokens.weight"] = weights["model.embed_tokens.weight"]
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
        save_file(head, path / "model.safetensors", metadata={"format": "pt"})
    return str(path)


def mimo(folders: ModelFolders) -> str:
    """Return the folder of ``mimo`` as published models of MiMo are: Qwen2 with a module for multi-token prediction."""
    import torch
    from safetensors.torch import load_file, save_file

    path = Path(folders.of("mimo"))
    config = json.loads((path / "config.json").read_text())
    if "num_nextn_predict_layers" not in config:
        weights = load_file(path / "model.safetensors")
        for name in weights:  # so that the last token says more of the next one, and some drafts are right
            if "o_proj" in name or "down_proj" in name:
                weights[name] *= WEAKER
        ones = torch.ones(HIDDEN)
        module = {name.removeprefix("layers.0."): weight for name, weight in _idle_layer(weights).items()}
        module |= {f"{name}_layernorm.weight": ones.clone() for name in ("token", "hidden", "final")}
        module["input_proj.weight"] = torch.cat((torch.zeros(HIDDEN, HIDDEN), torch.eye(HIDDEN)), dim=1)
        weights |= {f"model.mtp_layers.0.{name}": weight for name, weight in module.items()}
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        config |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
        (path / "config.json").write_text(json.dumps(config))
    return str(path)


def _idle_layer(weights: dict[str, Any]) -> dict[str, Any]:
    """Return the model's first layer, by names without ``model.``, made to add nothing to what it is given."""
    first = {name.removeprefix("model."): w.clone() for name, w in weights.items() if ".layers.0." in name}
    return {name: w * 0.0 if "o_proj" in name or "down_proj" in name else w for name, w in first.items()}
