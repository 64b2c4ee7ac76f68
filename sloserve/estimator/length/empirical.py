"""Tokens that a request will still emit, predicted from the requests of its class that have ended.

Pure and deterministic: a prediction follows from the lengths observed, in their order. A request that its cap, its
client or an error cut is known only to be longer (Kaplan-Meier).

Requests that run are left out. Just after a start the requests that ended are the short ones, and counting the others
as known to be longer corrects that; but served by truer, longer lengths, fewer requests are admitted beside each other,
and on outputs with a long tail ``auto`` kept 3 points less in time and ``econo`` 20
(benchmarks/policies/long_replies.py has the workload).

When the lengths of a class change, what came before is forgotten: the ``RECENT`` last ones are compared with all before
them by a log-rank test.

The other predictors behind the same interface, ``remaining.LengthEstimator``, are ``gaussian``, ``given`` (oracle,
oracle with an error) and ``learned_length``.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from sloserve.estimator.length.kaplan_meier import CurveOfEach, SurvivalCurve, log_rank, survival_curve
from sloserve.estimator.length.remaining import (
    PRIOR_MEAN_TOKENS,
    PRIOR_WEIGHT,
    Estimator,
    KnownRequests,
    is_uninformative,
)

RECENT: Final = 32
"""Ended requests of a class that tell whether its lengths have changed."""
_EVERY: Final = 8
"""Ended requests between two such tests."""
_DRIFT_Z: Final = 4.0
"""Limit of the log-rank statistic: with no change one test in 16,000 exceeds it."""


@dataclass(slots=True)
class _Window:
    """The requests of one class that ended last, in the order in which they ended.

    ``cut`` says whether they did not end by themselves.
    """

    tokens: deque[int] = field(default_factory=deque)
    cut: deque[bool] = field(default_factory=deque)
    ended: int = 0

    def add(self, tokens: int, cut: bool, most: int) -> None:
        self.tokens.append(tokens)
        self.cut.append(cut)
        self.ended += 1
        self.keep(most)

    def keep(self, most: int) -> None:
        """Keep only the ``most`` last requests."""
        while len(self.tokens) > most:
            self.tokens.popleft()
            self.cut.popleft()

    def has_drifted(self) -> bool:
        """Return whether the last RECENT requests differ in length from at least as many before them."""
        if self.ended % _EVERY or len(self.tokens) < 2 * RECENT:
            return False
        recent = np.arange(len(self.tokens)) >= len(self.tokens) - RECENT
        return abs(log_rank(np.array(self.tokens), np.array(self.cut), recent)) > _DRIFT_Z


class EmpiricalLength(Estimator):
    """The class's last lengths above k, the tokens so far; shrunk to a prior (see ``kaplan_meier``).

    A new class predicts the prior, and a request longer than all that were seen predicts the class's mean.

    Args:
        window: Ended requests remembered per class.
        prior_mean_tokens, prior_weight: see PRIOR_MEAN_TOKENS and PRIOR_WEIGHT.

    Raises: ValueError when an argument is out of range.
    """

    def __init__(
        self, window: int = 512, prior_mean_tokens: float = PRIOR_MEAN_TOKENS, prior_weight: float = PRIOR_WEIGHT
    ) -> None:
        if window < 1 or not prior_mean_tokens >= 1.0 or not prior_weight > 0.0:
            raise ValueError(
                f"window {window}, prior_mean_tokens {prior_mean_tokens}, prior_weight {prior_weight}:"
                " window and mean must be at least 1, the weight above 0"
            )
        self._window = window
        self._prior_mean_tokens = prior_mean_tokens
        self._prior_weight = prior_weight
        self._ended: dict[int, _Window] = {}
        self._curves: dict[int, SurvivalCurve] = {}

    def observe(self, class_id: int, output_tokens: int, *, cut: bool = False) -> bool:
        """See :meth:`sloserve.estimator.length.remaining.LengthEstimator.observe`.

        Raises: ValueError for less than one token.
        """
        if output_tokens < 1:
            raise ValueError(
                f"output_tokens: {output_tokens} is not a length; a request that ended without a token has none"
            )
        if is_uninformative(output_tokens, cut=cut):
            return False
        ended = self._ended.setdefault(class_id, _Window())
        ended.add(output_tokens, cut, self._window)
        self._curves.pop(class_id, None)
        drifted = ended.has_drifted()
        if drifted:
            ended.keep(RECENT)
        return drifted

    def form(self, requests: KnownRequests) -> CurveOfEach:
        """See :meth:`sloserve.estimator.length.remaining.LengthEstimator.form`."""
        parts = [
            (self._curve(int(one)), np.flatnonzero(requests.class_id == one)) for one in np.unique(requests.class_id)
        ]
        return CurveOfEach(parts, requests.class_id.size)

    def _curve(self, class_id: int) -> SurvivalCurve:
        found = self._curves.get(class_id)
        if found is None:
            ended = self._ended.get(class_id, _Window())
            tokens, cut = np.array(ended.tokens, np.int64), np.array(ended.cut, bool)
            found = self._curves[class_id] = survival_curve(
                tokens[~cut],
                tokens[cut],
                prior_mean_tokens=self._prior_mean_tokens,
                prior_weight=self._prior_weight,
            )
        return found
