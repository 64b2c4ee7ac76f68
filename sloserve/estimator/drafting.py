"""Speculative decoding: how many tokens a decode gains in a step, by class, learnt from the engine's own steps.

A step verifies a decode's draft tokens in order, keeps those before the first that is wrong, and adds one of its own.
So it brings between one token and one more than it had drafts. Classes differ (code is easier to draft than poetry),
and so do requests: a policy asks for a request by :func:`sloserve.lso.drafted.tokens_per_step`.

Guarantees: figures are finite, between 1 and one more than the engine's drafts; equal observations give equal figures;
memory is constant.
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
"""Decodes of a class that count; when there are more, all count half."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftFacts:
    """What drafts bring the engine's decodes, as observed so far.

    Args:
        tokens_per_step: tokens that a decode gains in a step, of all classes.
        error: standard error of that mean.
        of_class: ``[classes]``, the same of each class.
        accepted: ``[num_drafts]``, chance that the draft at each place is accepted where those before it were.
    """

    tokens_per_step: float
    error: float
    of_class: FloatArray
    accepted: FloatArray


class Drafting:
    """Learns what drafts bring.

    Args:
        num_classes: classes of requests.
        num_drafts: draft tokens that a decode has in a step at most, at least 1.
    """

    def __init__(self, num_classes: int, num_drafts: int) -> None:
        self.num_drafts = num_drafts
        self._decodes: FloatArray = np.zeros(num_classes)
        self._tokens: FloatArray = np.zeros(num_classes)
        self._tokens2 = 0.0
        self._tried: FloatArray = np.zeros(num_drafts)
        self._accepted: FloatArray = np.zeros(num_drafts)
        self._facts: DraftFacts | None = None

    def observe(self, class_ids: IntArray, drafts: IntArray, tokens: IntArray) -> None:
        """Record what a step brought its decodes, ``[n]`` each: their classes, drafts, and new tokens."""
        if not tokens.size:
            return
        tokens = np.clip(tokens, 1, self.num_drafts + 1)
        last = self._decodes.size - 1
        classes = np.clip(class_ids, 0, last)
        self._decodes += np.bincount(classes, minlength=last + 1)
        self._tokens += np.bincount(classes, tokens, minlength=last + 1)
        self._tokens2 += float(np.square(tokens).sum())
        places = np.arange(self.num_drafts)
        accepted = np.minimum(tokens - 1, drafts)[:, None]
        self._tried += ((places <= accepted) & (places < drafts[:, None])).sum(axis=0)
        self._accepted += (places < accepted).sum(axis=0)
        if self._decodes.max() > _MOST_DECODES:
            for sums in (self._decodes, self._tokens, self._tried, self._accepted):
                sums /= 2.0
            self._tokens2 /= 2.0
        self._facts = None

    @property
    def facts(self) -> DraftFacts:
        """What is known now."""
        if self._facts is None:
            self._facts = self._figures()
        return self._facts

    def _figures(self) -> DraftFacts:
        expected = float(np.power(PRIOR_ACCEPTANCE, np.arange(self.num_drafts + 1)).sum())
        decodes, tokens = float(self._decodes.sum()), float(self._tokens.sum())
        mean = (_PRIOR_DECODES * expected + tokens) / (_PRIOR_DECODES + decodes)
        of_class = (_PRIOR_DECODES * mean + self._tokens) / (_PRIOR_DECODES + self._decodes)
        prior_tokens2 = _PRIOR_DECODES * (expected**2 + 1.0)
        variance = max((prior_tokens2 + self._tokens2) / (_PRIOR_DECODES + decodes) - mean**2, 0.0)
        accepted = (_PRIOR_DECODES * PRIOR_ACCEPTANCE + self._accepted) / (_PRIOR_DECODES + self._tried)
        return DraftFacts(mean, math.sqrt(variance / (_PRIOR_DECODES + decodes)), of_class, accepted)
