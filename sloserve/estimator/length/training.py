"""Training of a length model, and its accuracy on requests that it has not seen.

The learner is LightGBM: gradient-boosted trees, one set for each quantile. It is imported here alone and only when a
model is trained; its trees are then turned into plain numbers (``length_forest``). Training is single-threaded and
seeded, so the same examples give the same model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.errors import ConfigError
from sloserve.core.extras import install_command
from sloserve.estimator.length.accuracy import Accuracy, Predictions, accuracy
from sloserve.estimator.length.empirical import EmpiricalLength
from sloserve.estimator.length.examples import Examples
from sloserve.estimator.length.forest import Forest
from sloserve.estimator.length.gaussian import GaussianLength
from sloserve.estimator.length.learned_length import LearnedLength, LengthModel
from sloserve.estimator.length.remaining import Estimator
from sloserve.estimator.length.request_features import TASK_LEVELS, Features

LEAST_EXAMPLES = 100
_TASK_PRIOR = 10.0
"""Requests that the quantiles of all are worth against a task's own; keeps rare tasks from being learned by heart."""


@dataclass(frozen=True)
class LengthTrainingSettings:
    """Settings of the training of a length model.

    Twice as many leaves predict no better on production traces of some thousand requests, and their p90 covers less
    than it should.

    Args:
        levels: Quantiles that are learned; more of them cost more per prediction.
        text: Whether prompts are used, if the examples have them.
        word_buckets: Columns of hashed words; 2,000 short prompts gained nothing from more.
        trees: Trees of each quantile.
        leaves: Leaves of each tree.
        learning_rate: Learning rate of each quantile.
        least_in_leaf: Least examples in a leaf.
    """

    levels: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
    text: bool = True
    word_buckets: int = 256
    trees: int = 60
    leaves: int = 7
    learning_rate: float = 0.1
    least_in_leaf: int = 20
    seed: int = 0


Progress = Callable[[], None]
"""Called after each quantile that was learned."""


def train(examples: Examples, settings: LengthTrainingSettings, progress: Progress = lambda: None) -> LengthModel:
    """Return the model of ``examples``.

    Raises: ConfigError for too few examples, or when LightGBM is not installed.
    """
    if len(examples) < LEAST_EXAMPLES:
        raise ConfigError(f"{len(examples)} requests to train on; at least {LEAST_EXAMPLES} are needed")
    buckets = settings.word_buckets if settings.text and examples.requests.prompt is not None else 0
    features = Features(tasks=_task_quantiles(examples), buckets=buckets)
    raw = features.matrix(examples.requests)
    medians = tuple(float(np.median(known)) if (known := c[~np.isnan(c)]).size else 0.0 for c in raw.T)
    features = Features(medians, features.tasks, buckets)
    rows = np.where(np.isnan(raw), medians, raw)
    trees = []
    for level in settings.levels:
        trees.append(_boost(rows, np.log(examples.lengths), level, settings))
        progress()
    return LengthModel(np.array(settings.levels), features, _forest(trees, rows.shape[1]))


def _task_quantiles(examples: Examples) -> dict[str, tuple[float, ...]]:
    logs = np.log(examples.lengths)
    overall = np.quantile(logs, TASK_LEVELS)
    found = {}
    for place, label in enumerate(examples.tasks):
        own = logs[examples.requests.class_id == place]
        if own.size:
            share = own.size / (own.size + _TASK_PRIOR)
            found[label] = tuple(np.exp(overall + share * (np.quantile(own, TASK_LEVELS) - overall)).tolist())
    return found


def _boost(
    rows: FloatArray, target: FloatArray, level: float, settings: LengthTrainingSettings
) -> list[dict[str, Any]]:
    """Return the trees of one quantile, as nested dictionaries."""
    try:
        import lightgbm
    except ImportError as error:
        raise ConfigError(f"training needs LightGBM ({error}); {install_command('train')}") from None
    parameters = {
        "objective": "quantile",
        "alpha": level,
        "num_leaves": settings.leaves,
        "learning_rate": settings.learning_rate,
        "min_data_in_leaf": settings.least_in_leaf,
        "seed": settings.seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbosity": -1,
    }
    booster = lightgbm.train(parameters, lightgbm.Dataset(rows, target), settings.trees)
    trees: list[dict[str, Any]] = [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]
    return trees


def _forest(levels: list[list[dict[str, Any]]], num_features: int) -> Forest:
    """Return the trees of each level as arrays; a level with too few trees gets further trees with value 0."""
    feature, threshold, left, right = [-1], [0.0], [0], [0]

    def add(tree: dict[str, Any]) -> int:
        here = len(feature)
        inner = "split_feature" in tree
        feature.append(tree["split_feature"] if inner else -1)
        threshold.append(tree["threshold"] if inner else tree["leaf_value"])
        left.append(0)
        right.append(0)
        if inner:
            left[here], right[here] = add(tree["left_child"]), add(tree["right_child"])
        return here

    roots = np.zeros((len(levels), max(map(len, levels))), np.int32)
    for level, trees in enumerate(levels):
        roots[level, : len(trees)] = [add(tree) for tree in trees]
    whole = [np.array(column, np.int32) for column in (feature, left, right)]
    return Forest(whole[0], np.array(threshold), whole[1], whole[2], roots, num_features)


def held_out(
    examples: Examples, settings: LengthTrainingSettings, *, share: float, seeds: int, progress: Progress = lambda: None
) -> Iterator[dict[str, Accuracy]]:
    """Yield for each seed the accuracy by predictor on a random ``share`` of the examples, trained on the others.

    Beside the model, the predictors that learn on line are judged after the same training requests, by task.
    """
    if not 0.0 < share < 1.0 or seeds < 1:
        raise ConfigError(
            f"held-out share {share}, seeds {seeds}: the share is within 0..1, at least one seed is needed"
        )
    for seed in range(settings.seed, settings.seed + seeds):
        order = np.random.default_rng(seed).permutation(len(examples))
        tested = max(int(share * len(examples)), 1)
        kept, test = examples.take(order[tested:]), examples.take(order[:tested])
        model = train(kept, settings, progress)
        yield {
            "learned": judge(LearnedLength(model), test),
            "empirical": judge(fed(EmpiricalLength(window=len(kept)), kept), test),
            "gaussian": judge(fed(GaussianLength(memory=len(kept)), kept), test),
        }


def fed(estimator: Estimator, examples: Examples) -> Estimator:
    """Return ``estimator``, after it has observed ``examples``."""
    for class_id, length in zip(examples.requests.class_id.tolist(), examples.lengths.tolist(), strict=True):
        estimator.observe(class_id, length)
    return estimator


def judge(estimator: Estimator, examples: Examples) -> Accuracy:
    """Return how well ``estimator`` predicts ``examples`` at admission; it learns nothing from them."""
    return accuracy(Predictions.of(estimator.rest(examples.requests)), examples.lengths)
