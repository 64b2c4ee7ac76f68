"""Encoder of a prompt into two figures: the log of the output's length that its words predict, and how sure that is.

Each word and each pair of neighbouring words is hashed into a column. A prompt is the vector of its columns, each
weighted by how rare it is (inverse document frequency), with length 1; each figure is linear in that vector. The words
are the words of the server's own traffic, so no pretrained weights are needed, and a word that training did not see,
as of a chat template, changes nothing. Nothing of a text is stored.

Characters of scripts that do not put spaces between words count as words. Predicting needs numpy alone;
:mod:`.word_training` has the training.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray

COLUMNS: Final = 1 << 16
"""Columns into which words are hashed; a quarter of them predicted 0.5 % worse on 2,000 prompts."""
FIGURES: Final = ("word_length", "word_spread")
"""What the words predict: the logarithm of the output's length, and the mean absolute error of that."""
TEXT_LIMIT: Final = 4096
"""Characters that are read, half from each end: a prompt of a million must not hold up admission."""
_NO_SPACES = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[^\W{_NO_SPACES}]+|[{_NO_SPACES}]")


@dataclass(frozen=True, slots=True, eq=False)
class PromptWords:
    """What columns say of the output's length.

    Args:
        columns: Columns that count, ascending, ``[m]``.
        rarity: Weight of each column in a prompt's vector, above 0, ``[m]``.
        weights: What a prompt that consists of one column adds to each of FIGURES, ``[m, 2]``.
        bias: FIGURES of a prompt without a known word, ``[2]``.

    Raises: ValueError if the arrays do not fit together or hold what is not allowed.
    """

    columns: IntArray
    rarity: FloatArray
    weights: FloatArray
    bias: FloatArray

    def __post_init__(self) -> None:
        size = self.columns.size
        if self.columns.shape != (size,) or size > COLUMNS:
            raise ValueError(f"words: a list of at most {COLUMNS} columns is needed")
        if size and not (0 <= self.columns[0] and self.columns[-1] < COLUMNS and (np.diff(self.columns) > 0).all()):
            raise ValueError(f"words: columns must ascend within 0..{COLUMNS - 1}")
        shapes = (self.rarity.shape, self.weights.shape, self.bias.shape)
        if shapes != ((size,), (size, len(FIGURES)), (len(FIGURES),)):
            raise ValueError(f"words: {size} rarities, {size} x {len(FIGURES)} weights, {len(FIGURES)} biases needed")
        if not all(np.isfinite(one).all() for one in (self.rarity, self.weights, self.bias)):
            raise ValueError("words: every number must be finite")
        if not (self.rarity > 0.0).all():
            raise ValueError("words: every rarity must be above 0")

    def figures(self, prompts: Sequence[Sequence[str]]) -> FloatArray:
        """Return FIGURES of each prompt, ``[n, 2]``, given its words."""
        found = np.tile(self.bias, (len(prompts), 1))
        for row, words in zip(found, prompts, strict=True):
            asked = word_columns(words)
            place = np.searchsorted(self.columns, asked)
            known = place < self.columns.size
            known[known] = self.columns[place[known]] == asked[known]
            rarity = self.rarity[place[known]]
            if rarity.size:
                row += rarity @ self.weights[place[known]] / np.sqrt(rarity @ rarity)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return lists of numbers; :func:`words_from_json` reads them back exactly."""
        return {name: getattr(self, name).tolist() for name in self.__dataclass_fields__}


def words_from_json(fields: dict[str, Any]) -> PromptWords:
    """Return the words of :meth:`PromptWords.as_json`.

    Raises: ValueError, KeyError or TypeError for anything else.
    """
    columns = np.asarray(fields["columns"])
    if columns.size and columns.dtype.kind != "i":
        raise ValueError("words: columns must be whole numbers")
    numbers = {name: np.asarray(fields[name], np.float64) for name in ("rarity", "weights", "bias")}
    numbers["weights"] = numbers["weights"].reshape(-1, len(FIGURES))
    return PromptWords(columns=columns.astype(np.int64), **numbers)


def both_ends(text: str) -> str:
    """Return at most TEXT_LIMIT characters of ``text``, from both of its ends."""
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT // 2] + "\n" + text[-TEXT_LIMIT // 2 :]


def words_of(text: str) -> list[str]:
    """Return the words of ``text`` in lower case."""
    return _WORD.findall(text.lower())


def word_columns(words: Sequence[str]) -> IntArray:
    """Return the columns of a prompt's words and pairs of neighbouring words, ascending, each once."""
    grams = {*words, *map(" ".join, zip(words, words[1:], strict=False))}
    return np.unique(np.array([zlib.crc32(gram.encode(errors="replace")) % COLUMNS for gram in grams], np.int64))
