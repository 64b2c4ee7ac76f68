"""Speeds at which people take in text: reading speeds by age and speaking speeds by language (Andes, Tables 1 and 2).

The tables are in words per minute; Andes states their averages in tokens, 4.8 tokens/s for reading and 3.3 tokens/s for
speaking, but not the ratio of words to tokens. So each table is scaled by the one ratio that gives its stated average:
1.388 tokens a word for reading, 1.283 for speaking.

A reader of a known group has ``READING.of("25-44")``, a listener has ``SPEAKING.of("Spanish")``, and
:func:`tokens_per_s` converts a known pace; each is a TDS.
"""

from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DigestSpeeds:
    """Groups of users, each with its share of them and its speed; the mean over users is ``mean_tds``.

    Args:
        groups: Tuples of (name, share, words per minute); shares sum to 1.
        mean_tds: Mean speed of all users in tokens per second.
    """

    groups: tuple[tuple[str, float, float], ...]
    mean_tds: float

    @property
    def tokens_per_word(self) -> float:
        """The ratio that makes the groups' average equal ``mean_tds``."""
        return self.mean_tds * 60.0 / sum(share * wpm for _, share, wpm in self.groups)

    def tds(self) -> FloatArray:
        """Return the speed of each group in tokens per second, ``[groups]``."""
        return np.array([wpm for _, _, wpm in self.groups]) / 60.0 * self.tokens_per_word

    def of(self, group: str) -> float:
        """Return the speed of one group in tokens per second.

        Raises: ConfigError for a group that the table does not have.
        """
        for name, _, wpm in self.groups:
            if name == group:
                return tokens_per_s(wpm, self.tokens_per_word)
        raise ConfigError(f"no speed of {group!r}; groups are {', '.join(name for name, _, _ in self.groups)}")

    def at(self, quantile: FloatArray) -> FloatArray:
        """Return the speeds of users drawn by ``quantile``, in tokens per second, ``[n]``.

        Args:
            quantile: Uniform numbers in [0, 1), ``[n]``.
        """
        steps = np.cumsum([share for _, share, _ in self.groups])
        return np.asarray(self.tds()[np.searchsorted(steps / steps[-1], quantile, side="right")], np.float64)


READING = DigestSpeeds(
    groups=(
        ("18-24", 0.280, 236.0),
        ("25-44", 0.519, 200.0),
        ("45-54", 0.112, 192.0),
        ("55-64", 0.056, 185.0),
        ("65+", 0.033, 175.0),
    ),
    mean_tds=4.8,
)
"""Reading speeds by age. Source: Andes, Table 1 and Sec. 2.2."""

SPEAKING = DigestSpeeds(
    groups=(
        ("English", 0.793, 150.0),
        ("Chinese", 0.070, 158.0),
        ("Korean", 0.069, 150.0),
        ("French", 0.036, 195.0),
        ("Spanish", 0.032, 218.0),
    ),
    mean_tds=3.3,
)
"""Speaking speeds by language. Source: Andes, Table 2 and Sec. 2.2."""

SPEEDS = {"reading": READING, "voice": SPEAKING}
"""The tables of speeds, by the name that an SLO file uses in ``tds:``."""


def tokens_per_s(words_per_minute: float, tokens_per_word: float = READING.tokens_per_word) -> float:
    """Return a pace in tokens per second.

    Args:
        words_per_minute: The pace in words per minute, above 0.
        tokens_per_word: Tokens per word, which depend on language and tokenizer; by default of reading in Andes.

    Raises: ConfigError unless both are above 0.
    """
    for name, value in (("words_per_minute", words_per_minute), ("tokens_per_word", tokens_per_word)):
        if not value > 0.0:
            raise ConfigError(f"{name}: {value!r} is not above 0")
    return words_per_minute / 60.0 * tokens_per_word
