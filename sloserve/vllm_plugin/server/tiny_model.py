"""Make the model ``builtin:tiny`` on the spot, so that everything runs on a laptop without a download.

It is a Llama of two layers over single bytes, with seeded random weights: its text means nothing, but its greedy output
depends on the whole prompt, which is what tests of a scheduler compare. It is written once into the user's cache folder
(1.5 MB).
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from sloserve.core.errors import ConfigError
from sloserve.core.user_folders import user_folder

BUILT_IN = "builtin:"
NAME = f"{BUILT_IN}tiny"
CONTEXT_TOKENS = 4096

_FORMAT = 1
"""Part of the folder's name: raised with any change below, so that an old folder is never taken for a new one."""

_SEED = 20240229
_INITIALIZER_RANGE = 0.3
"""Standard deviation of the weights: with the usual 0.02 every prompt yields nearly the same tokens."""

_BOS, _EOS = "<s>", "</s>"
_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def check_name(name: str) -> None:
    """Raise ConfigError for the name of a built-in model that does not exist."""
    if name.startswith(BUILT_IN) and name != NAME:
        raise ConfigError(f"model {name}: there is no such built-in model; the only one is {NAME}")


def resolve_model(name: str) -> str:
    """Return a name that vLLM can load: a folder for ``builtin:tiny``, made if needed; any other name unchanged.

    Raises: ConfigError for another built-in model.
    """
    check_name(name)
    return str(tiny_model_path()) if name == NAME else name


def tiny_model_path() -> Path:
    """Return the folder of the tiny model, made on first use; several processes may ask at once."""
    path = user_folder("XDG_CACHE_HOME", ".cache") / f"tiny-v{_FORMAT}"
    if not path.exists():
        scratch = Path(tempfile.mkdtemp(prefix=f"{path.name}.", dir=path.parent))
        try:
            _write_model(scratch)
            scratch.chmod(0o755)
            _rename_unless_there(scratch, path)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return path


def _rename_unless_there(scratch: Path, path: Path) -> None:
    try:
        scratch.rename(path)
    except OSError:
        if not path.exists():  # otherwise another process was first, with the same bytes
            raise


def _write_model(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        initializer_range=_INITIALIZER_RANGE,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = LlamaForCausalLM(config)
    model.lm_head.weight.data[_unspeakable(tokenizer)] = 0.0
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def _unspeakable(tokenizer: Any) -> list[int]:
    """Return tokens that shall not be generated: their logit is 0, which the best of the 96 random others exceeds.

    Bytes outside printable ASCII would come as broken UTF-8, which vLLM holds back until it knows that it is broken, so
    that a stream would show its first text late.
    """
    speakable = {tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(["Ġ", *map(chr, range(33, 127))])}
    return [i for i in range(len(tokenizer)) if i not in speakable]


def _tokenizer() -> Any:
    """Return a byte-level BPE without merges: 256 bytes, then begin and end of text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(_BOS, special=True), AddedToken(_EOS, special=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=_BOS,
        eos_token=_EOS,
        model_max_length=CONTEXT_TOKENS,
        chat_template=_CHAT_TEMPLATE,
    )
