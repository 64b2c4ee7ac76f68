"""A tiny Qwen2-Audio with random weights, whose processor needs neither torchvision nor a download."""

from pathlib import Path
from typing import Any

SAMPLES_PER_S = 16_000
AUDIO, BEGINS, ENDS = "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"
CLIP = BEGINS + AUDIO + ENDS
"""What stands in a prompt for a clip; it becomes 25 tokens for each second."""

_HIDDEN = 128


def write(folder: Path) -> None:
    """Write configuration, tokenizer, processor and weights in vLLM's names."""
    import torch
    from safetensors.numpy import load_file, save_file
    from transformers import (
        Qwen2AudioConfig,
        Qwen2AudioEncoderConfig,
        Qwen2AudioForConditionalGeneration,
        Qwen2AudioProcessor,
        Qwen2Config,
        WhisperFeatureExtractor,
    )

    tokenizer = _tokenizer()
    text = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        architectures=["Qwen2ForCausalLM"],
        tie_word_embeddings=False,
    )
    audio = Qwen2AudioEncoderConfig(
        num_mel_bins=80,
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=128,
        max_source_positions=1500,
    )
    config = Qwen2AudioConfig(
        audio_config=audio, text_config=text, audio_token_index=tokenizer.convert_tokens_to_ids(AUDIO)
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = Qwen2AudioForConditionalGeneration(config)
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.3 if "language" in name else 0.1)
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    weights = {
        name.replace("language_model.model.model.", "language_model.model."): w for name, w in load_file(path).items()
    }
    save_file(weights, path, metadata={"format": "pt"})
    extractor = WhisperFeatureExtractor(feature_size=80, sampling_rate=SAMPLES_PER_S, chunk_length=30)
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    Qwen2AudioProcessor(feature_extractor=extractor, tokenizer=tokenizer, chat_template=template).save_pretrained(
        folder
    )


def _tokenizer() -> Any:
    """Return one of single bytes, with the words that stand for clips."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "</s>", AUDIO, BEGINS, ENDS, "<pad>"]
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *special]
    found = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens(special)
    return PreTrainedTokenizerFast(tokenizer_object=found, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
