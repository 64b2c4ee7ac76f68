"""Quantiles around a point prediction, calibrated on line by the outcomes of earlier predictions.

A score is actual over predicted. A quantile is the prediction times a quantile of the scores, which has four parts:

- a centre, the middle of the latest ``CENTRE`` scores, which follows a change of regime within some tens of outcomes;
- a quantile of the last ``WINDOW`` scores, each relative to the centre when it was predicted, so that it holds what the
  centre was wrong by as well. A level beyond the largest of them follows the slope of the tail;
- a bound in seconds, by how far the actual values lay above the centre;
- a shift of the level, in proportion to the misses above the ones that the level allows. So the coverage comes out
  right in the long run for any sequence of scores. It pays back about 1 / ``PAYBACK`` of an excess with each outcome.

Outcomes come late, and the longest last, so a prediction counts before its outcome is known, as its chance to be
missed: from :meth:`ConformalQuantiles.awaits` on by the level at which it was made; once a lower quantile has passed
(:meth:`ConformalQuantiles.ran_out`) by the chance of requests that pass it; and as a miss once its own has passed.
Each count replaces the one before. So a shift that is on its way is not made twice, and requests in flight that pass
their medians too often already raise the high quantiles. An outcome that will never be known stays at its last chance.

Sources: the level follows the misses as in Gibbs and Candes, "Adaptive conformal inference under distribution shift"
(NeurIPS 2021), eq. 2, and saturates as the integrator of Angelopoulos, Candes and Tibshirani, "Conformal PID control
for time series prediction" (NeurIPS 2023), Sec. 2.2. Differs: one sided; scores are ratios around a centre; the level
moves as a normal deviate; predictions count before their outcomes; and the largest score counts as the second largest
does, so that one outlier, however far off, moves no quantile beyond the other scores. A second one is believed.

Memory is bounded by the windows; an outcome costs a few binary searches. Deterministic, no clock.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

WINDOW = 1024
"""Scores that count: ten of them lie above the 0.99-quantile."""

CENTRE = 32
"""Latest scores that make the centre, by the mean of the middle quarter of them; there is none of fewer."""

FEWER, STRETCH = 4.0, 3.0
"""A quantile exceeds the centre by at most ``STRETCH`` times the excess in seconds that is ``FEWER`` times rarer.

The ratio of a short prediction, as of a request that found no other waiting and was put off, would make hours of a long
one.
"""

PAYBACK = 500.0
"""Outcomes within which about two thirds of an excess of misses are paid back."""

MAX_SHIFT = 0.4
"""Most by which a level is shifted, as a normal deviate: the 0.9-quantile is taken between 0.81 and 0.954."""

MAX_DEBT = 10.0
"""Most excess of misses that is paid back, in multiples of the excess that shifts a level by the most.

A change of regime that could not be foreseen makes every prediction in flight a miss; to pay back hundreds of them
would keep the 0.99-quantile wide for tens of thousands of outcomes.
"""

MIN_SCORES = 8
"""Least scores: fewer have no 0.9-quantile."""

TAIL_SCORES = 128
"""Least scores of which the tail has a slope."""

_LEAST = 1e-9
"""Least latency in seconds that counts, which keeps scores finite."""

_ROUNDING = 1e-9
"""Logarithm of what quantiles are lengthened by, so that an outcome that repeats an earlier one is not above it."""

_NORMAL = NormalDist()


@dataclass(slots=True, eq=False)
class Prediction:
    """One prediction with its quantiles; the quantile of a higher level is never below one of a lower level.

    Args:
        predicted: The prediction, above 0.
        quantiles: Quantiles by level, ascending; ``None`` while too few outcomes were seen.
        broken: Levels with quantiles that are known to have been passed.
        over: Whether nothing more can be learnt of the prediction.
        centre: Logarithm of the centre of the scores when it was made.
        chances: Chance to be missed at each level, when it was made.
        counted: The part of a miss as which the prediction counts at each level.
    """

    predicted: float
    quantiles: Mapping[float, float] | None
    broken: set[float] = field(default_factory=set)
    over: bool = False
    centre: float = 0.0
    chances: dict[float, float] = field(default_factory=dict)
    counted: dict[float, float] = field(default_factory=dict)


class ConformalQuantiles:
    """The quantiles of one stream of predictions of positive amounts, such as the TTFT of one class.

    Args:
        levels: Levels of the quantiles, each within 0..1, ends excluded.
        window: Number of latest scores that count.
        centred: Whether quantiles follow a centre of the latest scores; not where the prediction itself follows the
            latest outcomes, since following twice swings.
    """

    def __init__(self, levels: Sequence[float], window: int = WINDOW, *, centred: bool = True) -> None:
        if not all(0.0 < level < 1.0 for level in levels):
            raise ValueError(f"levels: {levels} are not within 0..1, ends excluded")
        self._levels = {level: _Level(level, window) for level in sorted(levels)}
        self._window = window
        self._spread, self._excess = _SortedWindow(window), _SortedWindow(window)
        self._centre = _Centre() if centred else None

    def __len__(self) -> int:
        """Return the number of scores that count."""
        return len(self._spread.scores)

    def set_levels(self, levels: Sequence[float]) -> None:
        """Give the quantiles of ``levels`` to later predictions; a level that was known keeps what was learnt of it."""
        known = self._levels
        self._levels = {level: known.get(level) or _Level(level, self._window) for level in sorted(levels)}

    def predict(self, predicted: float, at_least: Mapping[float, float] | None = None) -> Prediction:
        """Return what the actual value stays at or below with the probability of each level.

        Args:
            predicted: The prediction, above 0.
            at_least: Quantiles, by level, of an amount that is a part of this one, so that these may not lie below
                them; ``None`` for no such bound.
        """
        centre = _ROUNDING + (0.0 if self._centre is None else self._centre.value)
        if len(self._spread.scores) < MIN_SCORES:
            return Prediction(predicted, None)
        found, chances, least = {}, {}, 0.0
        middle = math.exp(centre) * predicted
        for level, state in self._levels.items():
            at = state.shifted()
            part = 0.0 if at_least is None else at_least[level]
            quantile = math.exp(self._spread.at(at)) * middle
            if self._excess.has_tail:
                quantile = min(quantile, middle + STRETCH * self._excess.at(1.0 - (1.0 - at) / FEWER))
            least = found[level] = max(quantile, least, part)
            chances[level] = 1.0 - at
        return Prediction(predicted, found, centre=centre, chances=chances)

    def awaits(self, prediction: Prediction) -> None:
        """Count a prediction, of which the outcome will come, as its chances to be missed."""
        for level, chance in prediction.chances.items():
            self._count(prediction, level, chance)

    def ran_out(self, prediction: Prediction, level: float) -> None:
        """Record that the actual value will lie above the quantile at ``level``.

        The outcome will say so again; it counts once.
        """
        if level not in self._levels or prediction.over or level in prediction.broken:
            return
        prediction.broken.add(level)
        self._levels[level].judged.append(False)
        self._count(prediction, level, 1.0)
        self._condition(prediction, prediction.chances.get(level, 1.0))

    def left(self, prediction: Prediction, at: float) -> None:
        """Record that the outcome will never be known, but that it lies above ``at``: the prediction is over.

        It counts as its chance to be missed from there on. To leave it out would count requests that end early more
        often than others.
        """
        if not prediction.over and prediction.quantiles is not None:
            self._condition(prediction, 1.0 - self._spread.rank(_log_score(at, prediction) - prediction.centre))
        prediction.over = True

    def observe(self, prediction: Prediction, actual: float) -> None:
        """Record the actual value of a prediction."""
        for level, limit in (prediction.quantiles or {}).items():
            if actual > limit:
                self.ran_out(prediction, level)
            elif level in self._levels and level not in prediction.broken:
                self._levels[level].judged.append(True)
                self._count(prediction, level, 0.0)
        prediction.over = True
        score = _log_score(actual, prediction)
        self._excess.add(actual - math.exp(prediction.centre) * prediction.predicted)
        self._spread.add(score - prediction.centre)
        if self._centre is not None and self._centre.add(score):
            self._spread.move(self._centre.value)

    def coverage(self, level: float) -> float | None:
        """Return the share of the latest outcomes within their quantiles of ``level``; ``None`` before the first."""
        judged = self._levels[level].judged
        return sum(judged) / len(judged) if judged else None

    def _condition(self, prediction: Prediction, survivors: float) -> None:
        """Count higher quantiles by their chance among the ``survivors``, the part that reaches what has passed."""
        for level, chance in prediction.chances.items():
            if level not in prediction.broken:
                among = min(chance / survivors, 1.0) if survivors > 0.0 else 1.0
                self._count(prediction, level, max(among, prediction.counted.get(level, 0.0)))

    def _count(self, prediction: Prediction, level: float, part: float) -> None:
        """Let a prediction count as ``part`` of a miss, in place of what it counted as before."""
        state = self._levels.get(level)
        if state is not None:
            state.count(part - prediction.counted.get(level, 1.0 - level))
            prediction.counted[level] = part


class _Level:
    """One level: its misses above the ones it allows, in flight and judged, and the latest outcomes."""

    def __init__(self, level: float, window: int) -> None:
        self.judged: deque[bool] = deque(maxlen=window)
        self._deviate = _NORMAL.inv_cdf(level)
        # With this gain an excess shrinks by 1 / PAYBACK an outcome, whatever the level.
        self._gain = 1.0 / (PAYBACK * _NORMAL.pdf(self._deviate))
        self._most = MAX_DEBT * MAX_SHIFT / self._gain
        self._excess = 0.0

    def shifted(self) -> float:
        """Return the level at which the quantile is taken."""
        shift = min(max(self._gain * self._excess, -MAX_SHIFT), MAX_SHIFT)
        return 0.5 * math.erfc(-(self._deviate + shift) * math.sqrt(0.5))

    def count(self, misses: float) -> None:
        """Add to the excess of misses."""
        self._excess = min(max(self._excess + misses, -self._most), self._most)


class _SortedWindow:
    """The latest logarithmic scores, in order of coming and in order of size."""

    def __init__(self, size: int) -> None:
        self.scores: list[float] = []
        self._latest: deque[float] = deque(maxlen=size)

    def add(self, score: float) -> None:
        if len(self._latest) == self._latest.maxlen:
            del self.scores[bisect_left(self.scores, self._latest[0])]
        self._latest.append(score)
        insort(self.scores, score)

    @property
    def has_tail(self) -> bool:
        """Whether there are enough scores to say how far the rarest go."""
        return len(self.scores) >= TAIL_SCORES

    def move(self, centre: float) -> None:
        """Take all scores relative to ``centre``."""
        self.scores = [score - centre for score in self.scores]
        self._latest = deque((score - centre for score in self._latest), self._latest.maxlen)

    def at(self, level: float) -> float:
        """Return the score of rank ``level`` * (n + 1), interpolated; the largest score counts as the second does."""
        scores, most = self.scores, len(self.scores) - 2
        rank = level * (len(scores) + 1) - 1.0
        if rank >= most:
            return scores[most] + self._beyond(level)
        low = max(int(rank), 0)
        return scores[low] + max(rank - low, 0.0) * (scores[low + 1] - scores[low])

    def rank(self, score: float) -> float:
        """Return the part of the scores that lies below ``score``."""
        return bisect_left(self.scores, score) / len(self.scores)

    def _beyond(self, level: float) -> float:
        """Return by how much the quantile lies beyond the second largest score: by an exponential tail."""
        scores, size = self.scores, len(self.scores)
        if not self.has_tail:
            return 0.0
        tail = size // 10
        slope = (scores[-2] - scores[-2 - tail]) / math.log((tail + 2.0) / 2.0)
        return slope * max(math.log(2.0 / ((size + 1.0) * max(1.0 - level, _LEAST))), 0.0)


class _Centre:
    """The middle of the latest scores: the mean of the middle quarter, which moves more smoothly than the median."""

    def __init__(self) -> None:
        self._window = _SortedWindow(CENTRE)
        self.value = 0.0
        """Logarithm of the centre; 0 while there is none."""
        self._has_value = False

    def add(self, score: float) -> bool:
        """Add a score; return whether there is a centre for the first time."""
        self._window.add(score)
        scores = self._window.scores
        if len(scores) < CENTRE:
            return False
        skipped = (len(scores) - 1) * 3 // 8
        middle = scores[skipped : len(scores) - skipped]
        first = not self._has_value
        self.value, self._has_value = sum(middle) / len(middle), True
        return first


def _log_score(actual: float, prediction: Prediction) -> float:
    return math.log(max(actual, _LEAST) / max(prediction.predicted, _LEAST))
