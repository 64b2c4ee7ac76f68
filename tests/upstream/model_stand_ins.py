"""Local models under the names that vLLM's scheduler tests ask for: no model hub, no weights, no image library.

A scheduler sees of a model its context length and, for one that takes images, how many tokens an item may have. So each
name is redirected to a folder with a configuration of the right context length (``VLLM_MODEL_REDIRECT_PATH``, a switch
of vLLM's), and the models that take images to a class that states the sizes and computes nothing.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, OPTConfig, PretrainedConfig, PreTrainedTokenizerFast, Qwen2Config
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.interfaces import SupportsMRoPE, SupportsMultiModal
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.opt import OPTForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import BaseDummyInputsBuilder, BaseMultiModalProcessor, BaseProcessingInfo

_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512}
# LLaVA 1.5: 24 x 24 patches of a 336-pixel image. Qwen2.5-VL: its processor's max_pixels over 28 x 28 pixels a token.
_IMAGE_TOKENS = {"LlavaStandIn": 576, "Qwen2VLStandIn": 16384}


def _llava() -> PretrainedConfig:
    return LlamaConfig(**_SMALL, intermediate_size=128, max_position_embeddings=4096, architectures=["LlavaStandIn"])


def _opt(context: int) -> PretrainedConfig:
    return OPTConfig(**_SMALL, ffn_dim=128, max_position_embeddings=context, architectures=["OPTForCausalLM"])


def _qwen(context: int, architecture: str) -> PretrainedConfig:
    return Qwen2Config(**_SMALL, intermediate_size=128, max_position_embeddings=context, architectures=[architecture])


_CONFIGS = {
    "facebook/opt-125m": lambda: _opt(2048),
    "facebook/opt-350m": lambda: _opt(2048),
    "Qwen/Qwen1.5-7B": lambda: _qwen(32768, "Qwen2ForCausalLM"),
    "llava-hf/llava-1.5-7b-hf": _llava,
    "Qwen/Qwen2.5-VL-3B-Instruct": lambda: _qwen(128000, "Qwen2VLStandIn"),
}


class _ImageSizes(BaseProcessingInfo):
    """States how many tokens an image may have, so that no processor has to be run to find out."""

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"image": None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        return {"image": _IMAGE_TOKENS[self.ctx.model_config.architecture]}


class _NoInputs(BaseDummyInputsBuilder[_ImageSizes]):
    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        return ""

    def get_dummy_mm_data(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {}


class _NoProcessor(BaseMultiModalProcessor[_ImageSizes]):
    def _get_mm_fields_config(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {}

    def _get_prompt_updates(self, *args: Any, **kwargs: Any) -> list[Any]:
        return []


_takes_images = MULTIMODAL_REGISTRY.register_processor(_NoProcessor, info=_ImageSizes, dummy_inputs=_NoInputs)


@_takes_images
class LlavaStandIn(LlamaForCausalLM, SupportsMultiModal):
    """A text model that says it takes images of LLaVA's size."""


@_takes_images
class Qwen2VLStandIn(Qwen2ForCausalLM, SupportsMultiModal, SupportsMRoPE):
    """A text model that says it takes images of Qwen2.5-VL's size."""


def install(folder: Path) -> Path:
    """Writes configurations under ``folder``, registers classes; returns the file for ``VLLM_MODEL_REDIRECT_PATH``."""
    redirect = {}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>")))
    for name, config in _CONFIGS.items():
        local = folder / name.replace("/", "--")
        config().save_pretrained(local)
        tokenizer.save_pretrained(local)
        redirect[name] = str(local)
    path = folder / "redirect.json"
    path.write_text(json.dumps(redirect))
    # Classes, not names: vLLM then looks at them here and not in a process of its own (10 to 20 s each).
    for model in (OPTForCausalLM, Qwen2ForCausalLM, LlavaStandIn, Qwen2VLStandIn):
        ModelRegistry.register_model(model.__name__, model)
    return path
