"""Judges a length model on requests that its training has not seen, beside what a server knows without one.

Where arrivals are known, the held-out requests are the latest, and training has only requests before them, as in
service; else they are drawn. The rival is the distribution of the task as the server's policies keep it: over the last
requests that ended, and it goes on learning from each held-out request that was judged.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.errors import ConfigError
from sloserve.estimator.length.accuracy import Accuracy, Predictions, accuracy, pinball_losses
from sloserve.estimator.length.empirical import EmpiricalLength
from sloserve.estimator.length.examples import Examples
from sloserve.estimator.length.gaussian import GaussianLength
from sloserve.estimator.length.learned_length import LearnedLength
from sloserve.estimator.length.remaining import Estimator
from sloserve.estimator.length.training import LEAST_EXAMPLES, LengthTrainingSettings, Progress, train

LEARNED, CLASS, GAUSSIAN = "learned", "empirical", "gaussian"
LEAST_JUDGED = 30
"""Held-out requests of a task without which it has the verdict of all tasks together."""
_AT_ONCE = 32
"""Requests that are judged before a rival learns their lengths: some run at the same time."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """One split's result.

    Args:
        places: Places of the held-out requests among the examples, ``[n]``.
        accuracy: Accuracy by predictor.
        losses: Pinball loss of each held-out request in tokens by predictor, ``[n]``.
    """

    places: IntArray
    accuracy: dict[str, Accuracy]
    losses: dict[str, FloatArray]


@dataclass(frozen=True, slots=True)
class Gain:
    """What a model gains over the distribution of a task.

    Args:
        task: Label of the task; ``None`` for all together.
        requests: Held-out requests.
        change: Relative change of the pinball loss, below 0 if the model predicts better.
        half_95: Half the width of the 95 % interval of ``change``, paired by request.
    """

    task: str | None
    requests: int
    change: float
    half_95: float

    @property
    def is_sure(self) -> bool:
        """Whether the model predicts better beyond chance."""
        return self.change + self.half_95 < 0.0


def held_out(
    examples: Examples, settings: LengthTrainingSettings, *, share: float, seeds: int, progress: Progress = lambda: None
) -> Iterator[Split]:
    """Yield the result of each split: a ``share`` of the examples is held out, and a model trained on others.

    Raises: ConfigError for impossible splits, or too few examples.
    """
    if not 0.0 < share < 1.0 or seeds < 1:
        raise ConfigError(
            f"held-out share {share}, seeds {seeds}: the share is within 0..1, at least one seed is needed"
        )
    for kept_places, places in _splits(examples, share, seeds, settings.seed):
        kept, test = examples.take(kept_places), examples.take(places)
        model = train(kept, settings, progress)
        predicted = {
            LEARNED: _predictions(LearnedLength(model), test),
            CLASS: _predictions(fed(EmpiricalLength(), kept), test, learns=True),
            GAUSSIAN: _predictions(fed(GaussianLength(memory=len(kept)), kept), test),
        }
        yield Split(
            places,
            {name: accuracy(one, test.lengths) for name, one in predicted.items()},
            {name: pinball_losses(one, test.lengths) for name, one in predicted.items()},
        )


def _splits(examples: Examples, share: float, seeds: int, first: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the places to train on and those held out; the later splits of examples with arrivals are earlier ones."""
    n, arrival_s = len(examples), examples.requests.arrival_s
    tested = max(int(share * n), 1)
    if arrival_s is None:
        for seed in range(first, first + seeds):
            order = np.random.default_rng(seed).permutation(n)
            yield order[tested:], order[:tested]
        return
    order = np.argsort(arrival_s, kind="stable")
    for end in range(n, n - seeds * tested, -tested):
        if end < n and end - tested < LEAST_EXAMPLES:  # the first split says what is missing
            return
        yield order[: max(end - tested, 0)], order[max(end - tested, 0) : end]


def gains(splits: Sequence[Split], examples: Examples) -> list[Gain]:
    """Return the gain of all tasks together, then of each task; a request of several splits counts once."""
    change: dict[int, list[tuple[float, float]]] = {}
    for split in splits:
        for place, ours, theirs in zip(
            split.places.tolist(), split.losses[LEARNED].tolist(), split.losses[CLASS].tolist(), strict=True
        ):
            change.setdefault(place, []).append((ours - theirs, theirs))
    places = np.array(sorted(change))
    less, of = np.array([np.mean(change[place], axis=0) for place in places.tolist()]).T
    class_id = examples.requests.class_id[places]
    by_task = [_gain(label, less[class_id == i], of[class_id == i]) for i, label in enumerate(examples.tasks)]
    return [_gain(None, less, of), *by_task]


def _gain(task: str | None, less: FloatArray, of: FloatArray) -> Gain:
    scale = float(of.mean()) if of.size else 0.0
    if less.size < 2 or scale <= 0.0:
        return Gain(task, less.size, 0.0, 0.0)
    half = 1.96 * float(less.std(ddof=1)) / np.sqrt(less.size)
    return Gain(task, less.size, float(less.mean()) / scale, float(half) / scale)


def without_gain(found: Sequence[Gain]) -> frozenset[str]:
    """Return the tasks for which a model is of no use, given the gains of all together and of each task."""
    overall, *by_task = found
    return frozenset(
        one.task
        for one in by_task
        if one.task is not None and not (one if one.requests >= LEAST_JUDGED else overall).is_sure
    )


def fed(estimator: Estimator, examples: Examples) -> Estimator:
    """Return ``estimator``, after it has observed ``examples``."""
    for class_id, length in zip(examples.requests.class_id.tolist(), examples.lengths.tolist(), strict=True):
        estimator.observe(class_id, length)
    return estimator


def judge(estimator: Estimator, examples: Examples) -> Accuracy:
    """Return how well ``estimator`` predicts ``examples`` at admission; it learns nothing from them."""
    return accuracy(_predictions(estimator, examples), examples.lengths)


def _predictions(estimator: Estimator, examples: Examples, *, learns: bool = False) -> Predictions:
    if not learns:
        return Predictions.of(estimator.rest(examples.requests))
    parts = []
    for start in range(0, len(examples), _AT_ONCE):
        some = examples.take(np.arange(start, min(start + _AT_ONCE, len(examples))))
        parts.append(Predictions.of(estimator.rest(some.requests)))
        fed(estimator, some)
    return Predictions(*(np.concatenate([getattr(one, name) for one in parts]) for name in ("median", "p90", "mean")))
