"""How fast people take in a reply: reading speeds by age and speaking speeds by language (Andes, Tables 1 and 2).

The tables are in words per minute; Andes states their averages in tokens, 4.8 tokens/s for reading and 3.3 tokens/s for
speaking, but not the ratio of words to tokens. So each table is scaled by the one ratio that gives its stated average:
1.388 tokens a word for reading, 1.283 for speaking.
"""

from dataclasses import dataclass

import numpy as np

from sloserve.sim.trace import FloatArray

EXPECTED_TTFT_S = 1.0
"""The first token every reader and listener expects within this time (Andes, Sec. 6.1)."""


@dataclass(frozen=True, slots=True)
class DigestSpeeds:
    """Groups of users, each with its share of them and its speed; the mean over users is ``mean_tds``.

    groups: (name, share, words per minute); shares sum to 1. mean_tds: tokens per second.
    """

    groups: tuple[tuple[str, float, float], ...]
    mean_tds: float

    @property
    def tokens_per_word(self) -> float:
        """The ratio that makes the groups' average equal ``mean_tds``."""
        return self.mean_tds * 60.0 / sum(share * wpm for _, share, wpm in self.groups)

    def tds(self) -> FloatArray:
        """Speed of each group in tokens per second, ``[groups]``."""
        return np.array([wpm for _, _, wpm in self.groups]) / 60.0 * self.tokens_per_word

    def at(self, quantile: FloatArray) -> FloatArray:
        """The speeds of users drawn by ``quantile``, uniform numbers in [0, 1), ``[n]``; tokens per second, ``[n]``."""
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
"""Source: Andes, Table 1 and Sec. 2.2."""

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
"""Source: Andes, Table 2 and Sec. 2.2."""

SPEEDS = {"reading": READING, "speaking": SPEAKING}
"""By the name that an SLO file uses in ``tds:``."""
