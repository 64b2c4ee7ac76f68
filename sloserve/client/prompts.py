"""Prompts of given lengths that mean nothing, a function of seed and request alone.

As token ids they are exact without a tokenizer; as words their length is estimated from what the endpoint counted for a
few samples. Requests that share leading ``prefix_ids`` share as much of the beginning of their prompts; all else
differs between requests and seeds, so that a prefix cache finds nothing that the workload does not share.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sloserve.core.errors import ConfigError
from sloserve.core.request import WorkloadRequest

FIRST_TOKEN = 16
"""Lowest token id in a prompt: below lie special tokens (padding, begin and end of text) in many vocabularies."""

WORDS = (
    "air arm art bag ball bank bed bird boat body book box boy bread bus cake car case cat chair city class clock coat "
    "color cook cost cow cup day deal desk dog door dream dress drink ear earth egg end eye face farm fire fish floor "
    "food foot form game garden girl glass gold grass group hair hand hat head heart hill home horse hour idea "
    "ice job key king lake land leg letter life light line list man map mark milk mind moon mountain mouth name "
    "night nose note oil page paper park party path pen place plan plant point rain river road rock room salt sand "
    "school sea ship shoe side sky snow song star step stone story street sugar summer sun table test time town train "
    "tree voice wall water way week wind window winter wood word work world year"
).split()

_PREFIX_STREAM, _OWN_STREAM, _PART_STREAM = 1, 2, 3


class Prompts(Protocol):
    """A way to make the prompt of a request."""

    def make(self, request: WorkloadRequest, seed: int) -> list[int] | str: ...

    def part(self, ids: Sequence[int], block_tokens: int, seed: int) -> list[int] | str:
        """Return a part of a prompt, of blocks of ``block_tokens`` tokens; equal ids and seeds are equal text."""
        ...


@dataclass(frozen=True, slots=True)
class TokenPrompts:
    """Prompts as token ids below ``vocab_size``, exactly as long as the request states.

    Raises: ConfigError for a vocabulary that leaves fewer than two ids to choose from.
    """

    vocab_size: int
    _blocks: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.vocab_size < FIRST_TOKEN + 2:
            raise ConfigError(f"--vocab-size: {self.vocab_size} is not a whole number >= {FIRST_TOKEN + 2}")

    def make(self, request: WorkloadRequest, seed: int) -> list[int]:
        tokens: list[int] = []
        for block in request.prefix_ids:
            if block not in self._blocks:
                self._blocks[block] = self._draw(_stream(_PREFIX_STREAM, block), request.prefix_block_tokens)
            tokens += self._blocks[block]
        missing = request.prompt_tokens - len(tokens)
        if missing > 0:
            tokens += self._draw(_stream(_OWN_STREAM, seed, request.request_id), missing)
        return tokens[: request.prompt_tokens]

    def part(self, ids: Sequence[int], block_tokens: int, seed: int) -> list[int]:
        return [token for block in ids for token in self._draw(_stream(_PART_STREAM, seed, block), block_tokens)]

    def _draw(self, rng: np.random.Generator, n: int) -> list[int]:
        drawn: list[int] = rng.integers(FIRST_TOKEN, self.vocab_size, n).tolist()
        return drawn


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """Prompts as words, of about as many tokens as the request has.

    Args:
        tokens_per_word: Mean tokens of a word, above 0.
        overhead_tokens: Tokens of an empty prompt, such as a chat template's.
    """

    tokens_per_word: float = 1.0
    overhead_tokens: float = 0.0

    def make(self, request: WorkloadRequest, seed: int) -> str:
        total = max(1, round((request.prompt_tokens - self.overhead_tokens) / self.tokens_per_word))
        block_words = max(1, round(request.prefix_block_tokens / self.tokens_per_word))
        words: list[str] = []
        for block in request.prefix_ids:
            words += _words(_stream(_PREFIX_STREAM, block), block_words)
        words += _words(_stream(_OWN_STREAM, seed, request.request_id), max(0, total - len(words)))
        return " ".join(words[:total])

    def part(self, ids: Sequence[int], block_tokens: int, seed: int) -> str:
        count = max(1, round(block_tokens / self.tokens_per_word))
        return "".join(f" {word}" for block in ids for word in _words(_stream(_PART_STREAM, seed, block), count))


def sample_text(words: int) -> str:
    """Return a prompt of ``words`` words for calibration, always the same."""
    return " ".join(_words(_stream(_OWN_STREAM, 0, f"calibration-{words}"), words))


def calibrated(samples: list[tuple[int, int]]) -> TextPrompts:
    """Return prompts fitted through two ``samples`` of (words, tokens that the endpoint counted).

    Raises: ConfigError where the count does not grow with the words.
    """
    (few, few_tokens), (many, many_tokens) = samples
    slope = (many_tokens - few_tokens) / (many - few)
    if slope <= 0.0:
        raise ConfigError(
            f"the endpoint counts {few_tokens} tokens for {few} words and {many_tokens} for {many}, so prompts cannot "
            "be made of words; give --prompt tokens"
        )
    return TextPrompts(slope, few_tokens - slope * few)


def _words(rng: np.random.Generator, n: int) -> list[str]:
    return [WORDS[i] for i in rng.integers(0, len(WORDS), n)]


def _stream(*key: int | str) -> np.random.Generator:
    return np.random.default_rng([part if isinstance(part, int) else zlib.crc32(part.encode()) for part in key])
