"""Quantiles around a point prediction, calibrated on line by the outcomes of earlier predictions.

A score is actual over predicted. A quantile is the prediction times a quantile of the latest scores, and the level at
which that one is taken follows the misses: it rises when more outcomes than allowed lie above the quantile, and
falls when fewer do. So the coverage comes out right in the long run for any sequence of scores, also one that drifts,
and after a change of regime within about ``WINDOW`` outcomes. What is judged is the quantile that was given when the
prediction was made. Outcomes may come late and in any order; long ones come last, so a quantile that has passed counts
as missed when it does (:meth:`ConformalQuantiles.ran_out`), not when the outcome is known.

Source: Gibbs and Candes, "Adaptive conformal inference under distribution shift" (NeurIPS 2021), eq. 2. Differs: one
sided, over a window of scores that are ratios; a level that has run past the window's largest score goes on above it,
where theirs is infinite; and the largest score counts as the second largest does, so that one outlier, however
far off, moves no quantile beyond the other scores. A second one is news, and is believed.

Memory is bounded by the window; an outcome costs two binary searches in it. Deterministic, no clock.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

WINDOW = 128
"""Scores that count. The 0.9-quantile of 128 is sure to 2.7 percentage points, and a regime is forgotten after 128."""

RATE = 0.02
"""How far a level moves per outcome: at most 2 percentage points. Gibbs and Candes use 0.005 on daily data."""

MIN_SCORES = 8
"""Least scores: fewer have no 0.9-quantile."""

_MAX_LEVEL, _BEYOND = 1.2, 100.0
"""How far a level may run past 1, and what a level of 2 would make of the largest score: at most 2.5 times as much."""

_LEAST = 1e-9
"""Least latency in seconds that counts, which keeps scores finite."""


@dataclass(slots=True, eq=False)
class Prediction:
    """One prediction with its quantiles; the quantile of a higher level is never below one of a lower level.

    Args:
        predicted: The prediction, above 0.
        quantiles: Quantiles by level, ascending; ``None`` while too few outcomes were seen.
        broken: Levels with quantiles that are known to have been passed.
        over: Whether nothing more can be learnt of the prediction.
    """

    predicted: float
    quantiles: Mapping[float, float] | None
    broken: set[float] = field(default_factory=set)
    over: bool = False

    def factor(self, level: float) -> float | None:
        """Return the factor by which the prediction is multiplied at ``level``."""
        return None if self.quantiles is None else self.quantiles[level] / self.predicted


class ConformalQuantiles:
    """The quantiles of one stream of predictions of positive amounts, such as the TTFT of one class.

    Args:
        levels: Levels of the quantiles, each within 0..1, ends excluded.
    """

    def __init__(self, levels: Sequence[float], window: int = WINDOW) -> None:
        if not all(0.0 < level < 1.0 for level in levels):
            raise ValueError(f"levels: {levels} are not within 0..1, ends excluded")
        self._at = {level: level for level in sorted(levels)}
        self._latest: deque[float] = deque(maxlen=window)
        self._sorted: list[float] = []
        self._judged: dict[float, deque[bool]] = {level: deque(maxlen=window) for level in self._at}

    def set_levels(self, levels: Sequence[float]) -> None:
        """Give the quantiles of ``levels`` to later predictions; a level that was known keeps what was learnt of it."""
        self._at = {level: self._at.get(level, level) for level in sorted(levels)}
        size = self._latest.maxlen
        self._judged = {level: self._judged.get(level, deque(maxlen=size)) for level in self._at}

    def predict(self, predicted: float, at_least: Mapping[float, float] | None = None) -> Prediction:
        """Return what the actual value stays at or below with the probability of each level.

        Args:
            predicted: The prediction, above 0.
            at_least: Quantiles, by level, of an amount that is a part of this one, so that these may not lie below
                them; ``None`` for no such bound.
        """
        if len(self._sorted) < MIN_SCORES:
            return Prediction(predicted, None)
        found, least = {}, 0.0
        for level, at in self._at.items():
            bound = 0.0 if at_least is None else at_least[level]
            least = found[level] = max(self._factor(at) * predicted, least, bound)
        return Prediction(predicted, found)

    def ran_out(self, prediction: Prediction, level: float) -> None:
        """Record that the actual value will lie above the quantile at ``level``.

        The outcome will say so again; it counts once.
        """
        if level in self._at and not prediction.over and level not in prediction.broken:
            prediction.broken.add(level)
            self._judge(level, kept=False)

    def observe(self, prediction: Prediction, actual: float) -> None:
        """Record the actual value of a prediction."""
        for level, limit in (prediction.quantiles or {}).items():
            if actual > limit:
                self.ran_out(prediction, level)
            elif level in self._at and level not in prediction.broken:
                self._judge(level, kept=True)
        prediction.over = True
        score = max(actual, _LEAST) / max(prediction.predicted, _LEAST)
        if len(self._latest) == self._latest.maxlen:
            del self._sorted[bisect_left(self._sorted, self._latest[0])]
        self._latest.append(score)
        insort(self._sorted, score)

    def coverage(self, level: float) -> float | None:
        """Return the share of the latest outcomes within their quantiles of ``level``; ``None`` before the first."""
        judged = self._judged[level]
        return sum(judged) / len(judged) if judged else None

    def _judge(self, level: float, *, kept: bool) -> None:
        self._judged[level].append(kept)
        at = self._at[level] + RATE * ((0.0 if kept else 1.0) - (1.0 - level))
        # Past the ends of 0..1 by little only: after a long calm a surprise must not take as long to be believed.
        self._at[level] = min(max(at, 0.0), _MAX_LEVEL)

    def _factor(self, at: float) -> float:
        """Return the score of rank ``at`` * (n + 1), interpolated between two scores; past a level of 1 it grows.

        The largest of the n scores is taken to be as large as the second largest.
        """
        scores = self._sorted
        most = len(scores) - 2
        rank = at * (len(scores) + 1) - 1.0
        if rank >= most:
            return scores[most] * math.pow(_BEYOND, max(at - 1.0, 0.0))
        low = max(int(rank), 0)
        return scores[low] + max(rank - low, 0.0) * (scores[low + 1] - scores[low])
