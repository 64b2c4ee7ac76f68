"""The number of tokens of a text, for files that hold texts: by a tokenizer's file, or by a rule of thumb."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from sloserve.core.errors import ConfigError

BYTES_A_TOKEN: Final = 4
"""The bytes of UTF-8 text per token: the usual rule of four characters for English and tokenizers of 100,000 tokens."""
_FILE: Final = "tokenizer.json"

TokenCounter = Callable[[Sequence[str]], list[int]]
"""A function that returns the tokens of each text, at least 1."""


def estimated(texts: Sequence[str]) -> list[int]:
    return [max(-(-len(text.encode("utf-8", "surrogatepass")) // BYTES_A_TOKEN), 1) for text in texts]


def token_counter(tokenizer: Path | None) -> TokenCounter:
    """Return a counter with the file ``tokenizer.json`` at this path or in this folder, without special tokens.

    Without a path it returns the counter that estimates.

    Raises: ConfigError where the file cannot be read, or the package that reads it is not installed.
    """
    if tokenizer is None:
        return estimated
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ConfigError(
            "--tokenizer needs the package tokenizers, which vLLM brings: pip install tokenizers"
        ) from None
    path = tokenizer / _FILE if tokenizer.is_dir() else tokenizer
    try:
        read = Tokenizer.from_file(str(path))
    except Exception as error:  # what it raises is a plain Exception
        raise ConfigError(f"--tokenizer {path}: is no {_FILE} that can be read: {error}") from None

    def counted(texts: Sequence[str]) -> list[int]:
        return [max(len(one.ids), 1) for one in read.encode_batch_fast(list(texts), add_special_tokens=False)]

    return counted
