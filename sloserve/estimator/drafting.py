"""Speculative decoding: how many tokens a decode gains in a step, by class, learnt from the engine's own steps.

A step verifies a decode's draft tokens in order, keeps the drafts before the first wrong one, and adds one of its own.
So it brings between one token and one more than it had drafts. How many drafts a decode has varies: an engine may draft
fewer under load, n-grams find no match, a plan leaves some out. So what is learnt is how the drafts of each *place*
fare, over all requests, and how a class fares beside that: the drafts that were accepted over the drafts that their
places promised. Classes differ (code is easier to draft than poetry), and so do requests: a policy asks for a request
by :func:`sloserve.lso.drafted.tokens_per_step`.

Guarantees: figures are finite, tokens are between 1 and one more than the engine's drafts; equal observations give
equal figures; memory is constant.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray

PRIOR_ACCEPTANCE: Final = 0.7
"""Chance that a draft is accepted if those before it were, before any was seen; published figures are 0.6 to 0.9."""
_PRIOR_DECODES: Final = 16.0
"""Decodes that the prior counts for, and what all classes know together for each of them."""
_MOST_DECODES: Final = 8192.0
"""Decodes that count; when there are more, all count half."""
_LATE_DECODES: Final = 512.0
"""Decodes over which recent drafts are averaged."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftFacts:
    """What drafts bring the engine's decodes, as observed so far.

    Args:
        tokens_per_step: Tokens that a decode gains in a step with the recent number of drafts, over all classes.
        error: Standard error of that mean.
        promised: Drafts that are accepted of the drafts that a decode has had recently, by their places.
        of_class: Drafts that were accepted over drafts that were promised, ``[classes]``.
        accepted: Chance that the draft at each place is accepted if the drafts before it were, ``[num_drafts]``.
    """

    tokens_per_step: float
    error: float
    promised: float
    of_class: FloatArray
    accepted: FloatArray


class Drafting:
    """Learns what drafts bring.

    Args:
        num_classes: Classes of requests.
        num_drafts: Draft tokens that a decode has in a step at most, at least 1.
    """

    def __init__(self, num_classes: int, num_drafts: int) -> None:
        self.num_drafts = num_drafts
        self._gained: FloatArray = np.zeros(num_classes)
        self._promised: FloatArray = np.zeros(num_classes)
        self._decodes = self._gained2 = 0.0
        self._tried: FloatArray = np.zeros(num_drafts)
        self._accepted: FloatArray = np.zeros(num_drafts)
        self._late = float(self._expected()[-1])
        self._facts: DraftFacts | None = None

    def observe(self, class_ids: IntArray, drafts: IntArray, tokens: IntArray) -> tuple[FloatArray, FloatArray]:
        """Record what a step brought its decodes, ``[n]`` each: their classes, drafts, and new tokens.

        Returns: drafts that were promised and that were accepted of each, ``[n]``.
        """
        last = self._gained.size - 1
        drafts = np.minimum(np.maximum(drafts, 0), self.num_drafts)
        promised = self._expected()[drafts]
        accepted = np.minimum(np.maximum(tokens - 1, 0), drafts)
        gained = accepted.astype(np.float64)
        if not tokens.size:
            return promised, gained
        classes = np.minimum(np.maximum(class_ids, 0), last)
        self._gained += np.bincount(classes, gained, minlength=last + 1)
        self._promised += np.bincount(classes, promised, minlength=last + 1)
        self._gained2 += float(gained @ gained)
        self._decodes += tokens.size
        self._tried += self._reaching(np.minimum(accepted + 1, drafts))
        self._accepted += self._reaching(accepted)
        self._late += (float(promised.mean()) - self._late) * min(tokens.size / _LATE_DECODES, 1.0)
        if self._decodes > _MOST_DECODES:
            for sums in (self._gained, self._promised, self._tried, self._accepted):
                sums /= 2.0
            self._gained2 /= 2.0
            self._decodes /= 2.0
        self._facts = None
        return promised, gained

    @property
    def facts(self) -> DraftFacts:
        """The figures as of now."""
        if self._facts is None:
            self._facts = self._figures()
        return self._facts

    def _reaching(self, counts: IntArray) -> IntArray:
        """Return how many of ``counts`` are above each place of a draft, ``[num_drafts]``."""
        reaching: IntArray = np.bincount(counts, minlength=self.num_drafts + 1)[:0:-1].cumsum()[::-1]
        return reaching

    def _chances(self) -> FloatArray:
        return (_PRIOR_DECODES * PRIOR_ACCEPTANCE + self._accepted) / (_PRIOR_DECODES + self._tried)

    def _expected(self) -> FloatArray:
        """Return the drafts that are accepted of the first ``k``, ``[num_drafts + 1]``, of the mean request."""
        expected: FloatArray = np.concatenate(([0.0], np.cumsum(np.cumprod(self._chances()))))
        return expected

    def _figures(self) -> DraftFacts:
        prior = _PRIOR_DECODES * max(self._late, 1e-6)
        of_all = (prior + float(self._gained.sum())) / (prior + float(self._promised.sum()))
        of_class = (prior * of_all + self._gained) / (prior + self._promised)
        count = _PRIOR_DECODES + self._decodes
        mean = float(self._gained.sum()) / max(self._decodes, 1.0)
        variance = max((_PRIOR_DECODES + self._gained2) / count - (self._decodes / count * mean) ** 2, 0.0)
        tokens = min(1.0 + of_all * self._late, self.num_drafts + 1.0)
        return DraftFacts(tokens, math.sqrt(variance / count), self._late, of_class, self._chances())
