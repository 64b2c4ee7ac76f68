"""Tiny random models, one of each KV cache layout that vLLM serves, with the tokenizer of ``builtin:tiny``.

Made with transformers' own classes at the smallest sizes that vLLM's CPU kernels take. A reply varies from token to
token and depends on its whole prompt, and its tokens lead clearly: what an engine gets wrong shows, rounding does not.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 4096
HIDDEN = 128
WINDOW = 64
"""Tokens of a window, and of a local chunk: two blocks, less than most prompts of the tests."""

_MAMBA_ENGINE = {"block_size": 64, "max_num_batched_tokens": 60}
"""Blocks longer than a step. In a longer step vLLM's CPU kernels fail with the prefix cache on: it keeps the state at a
block's end, and they have none from inside a step. In one as long as a block prompts wait until nothing decodes."""

_EMBEDDING, _WEIGHT = 0.3, 0.12
"""Standard deviations: logits are a few units apart, and what layers add outweighs the embedding of the last token."""

_ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 2 * HIDDEN}
_HEADS = {**_ATTENTION, "head_dim": 32}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_MAMBA = {
    "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_expand": 2,
    "mamba_chunk_size": 32,
}  # fmt: skip
_LLAMA = {**_HEADS, "num_hidden_layers": 2}
_LOCAL = ["sliding_attention"]
_FULL = ["full_attention"]


@dataclass(frozen=True)
class TinyModel:
    """kind: transformers' name of the architecture. seed: of the weights. engine: arguments that its engine needs.
    noise: standard deviation of what is added to the weights, for a draft model that is right more often than not.
    """

    kind: str
    sizes: dict[str, Any]
    seed: int = 1
    engine: dict[str, Any] = field(default_factory=dict)
    noise: float = 0.0


MODELS = {
    "gpt-oss": TinyModel(
        "gpt_oss",
        {**_HEADS, **_EXPERTS, "num_hidden_layers": 4, "sliding_window": WINDOW, "layer_types": (_LOCAL + _FULL) * 2},
    ),
    "gemma3": TinyModel(
        "gemma3_text",
        {
            **_HEADS,
            "num_hidden_layers": 6,
            "sliding_window": WINDOW,
            "layer_types": _LOCAL * 5 + _FULL,
            "query_pre_attn_scalar": 32,
        },
        seed=2,
    ),
    "llama4": TinyModel(
        "llama4_text",
        {
            **_HEADS,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 1,
            "intermediate_size_mlp": 2 * HIDDEN,
            "num_hidden_layers": 4,
            "attention_chunk_size": WINDOW,
            "no_rope_layers": [1, 1, 1, 0],
            "layer_types": ["chunked_attention"] * 3 + _FULL,
        },
    ),
    "cohere2": TinyModel(
        "cohere2",
        {
            **_ATTENTION,
            "num_hidden_layers": 4,
            "sliding_window": WINDOW,
            "layer_types": _LOCAL * 3 + _FULL,
            "logit_scale": 1.0,
            "tie_word_embeddings": True,
        },
    ),
    "granite4": TinyModel(
        "granitemoehybrid",
        {
            **_ATTENTION,
            **_EXPERTS,
            **_MAMBA,
            "shared_intermediate_size": HIDDEN // 2,
            "num_hidden_layers": 4,
            "layer_types": ["mamba"] * 3 + ["attention"],
            "attention_multiplier": 32**-0.5,
        },
        seed=2,
        engine=_MAMBA_ENGINE,
    ),
    "nemotron-h": TinyModel(
        "nemotron_h",
        {
            **_HEADS,
            "hybrid_override_pattern": "M-M*",
            "num_hidden_layers": 4,
            "mamba_num_heads": 8,
            "mamba_head_dim": 32,
            "ssm_state_size": 16,
            "n_groups": 1,
            "expand": 2,
            "chunk_size": 32,
        },
        seed=3,
        engine=_MAMBA_ENGINE,
    ),
    "falcon-h1": TinyModel(
        "falcon_h1",
        {**_HEADS, **_MAMBA, "mamba_d_ssm": 2 * HIDDEN, "num_hidden_layers": 2},
        seed=3,
        engine=_MAMBA_ENGINE,
    ),
    "mamba2": TinyModel(
        "mamba2",
        {
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 32,
            "state_size": 16,
            "n_groups": 1,
            "expand": 2,
            "chunk_size": 32,
        },
        engine=_MAMBA_ENGINE,
    ),
    "mistral": TinyModel("mistral", {**_LLAMA, "sliding_window": WINDOW}),
    "llama": TinyModel("llama", _LLAMA),
    "llama-draft": TinyModel("llama", _LLAMA, noise=0.02),
    "mimo": TinyModel("qwen2", {**_ATTENTION, "num_hidden_layers": 2}),  # see ``drafters.mimo``
    "qwen3-next": TinyModel(
        "qwen3_next",
        {
            **_HEADS,
            "num_key_value_heads": 4,
            "head_dim": 128,
            # All experts for every token: a choice among them would turn rounding into another token's logits.
            "num_experts": 2,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": HIDDEN // 2,
            "shared_expert_intermediate_size": HIDDEN // 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "num_hidden_layers": 4,
            "layer_types": ["linear_attention"] * 3 + _FULL,
        },
        engine={"dtype": "bfloat16"},
    ),
    "deepseek-v3": TinyModel(
        "deepseek_v3",
        {
            **_ATTENTION,
            "num_key_value_heads": 4,
            "num_hidden_layers": 2,
            "moe_intermediate_size": HIDDEN // 2,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "topk_method": "noaux_tc",
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "num_nextn_predict_layers": 0,
            "q_lora_rank": 64,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
        },
        engine={"dtype": "bfloat16"},
    ),
}


class ModelFolders:
    """The folders of the models, each made when it is first asked for. root: where."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def of(self, name: str) -> str:
        path = self._root / name
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=self._root) as scratch:
                folder = Path(scratch) / name
                _write(MODELS[name], folder)
                folder.rename(path)
        return str(path)


def _write(tiny: TinyModel, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from sloserve.vllm_plugin.server import tiny_model

    tokenizer = tiny_model._tokenizer()
    common = {
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN,
        "max_position_embeddings": CONTEXT_TOKENS,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.eos_token_id,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    config = AutoConfig.for_model(tiny.kind, **{**common, **tiny.sizes})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(tiny.seed)
        model = AutoModelForCausalLM.from_config(config)
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "conv" not in name:
                weight.normal_(0.0, _EMBEDDING if "embed" in name or "lm_head" in name else _WEIGHT)
            elif name.endswith("sinks"):
                weight.normal_(0.0, _EMBEDDING)
            elif name.endswith("dt_bias"):
                # Softplus of it is what a token moves a state by: some heads forget soon, others remember a prompt.
                weight.copy_(torch.logspace(-3, -1, weight.numel()).expm1().log())
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape), alpha=tiny.noise)
        model.get_output_embeddings().weight[tiny_model._unspeakable(tokenizer)] = 0.0
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
