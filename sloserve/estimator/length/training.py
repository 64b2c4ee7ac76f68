"""Training of a length model.

The learner is LightGBM: gradient-boosted trees, one set for each quantile. It is imported here alone and only when a
model is trained; its trees are then turned into plain numbers (``forest``). Training is single-threaded and seeded, so
the same examples give the same model.

Quantiles of boosted trees cover less than they should on requests that training has not seen. Each quantile is
therefore shifted so that it covers what it should in cross-validation (split conformal prediction for quantile
regression: Romano, Patterson, Candes 2019, with the folds of cross-validation in place of one split).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.errors import ConfigError
from sloserve.core.extras import install_command
from sloserve.estimator.length.examples import Examples
from sloserve.estimator.length.forest import Forest
from sloserve.estimator.length.learned_length import LengthModel
from sloserve.estimator.length.request_features import TASK_LEVELS, Features
from sloserve.estimator.length.word_training import learn_words

LEAST_EXAMPLES = 100
CALIBRATION_FOLDS = 3
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
        trees: Trees of each quantile.
        leaves: Leaves of each tree.
        learning_rate: Learning rate of each quantile.
        least_in_leaf: Least examples in a leaf.
    """

    levels: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
    text: bool = True
    trees: int = 60
    leaves: int = 7
    learning_rate: float = 0.1
    least_in_leaf: int = 20
    seed: int = 0

    @property
    def boosts(self) -> int:
        """How often trees are learned for one model."""
        return len(self.levels) * (1 + CALIBRATION_FOLDS)


Progress = Callable[[], None]
"""Called each time that trees were learned, ``LengthTrainingSettings.boosts`` times for a model."""


def train(examples: Examples, settings: LengthTrainingSettings, progress: Progress = lambda: None) -> LengthModel:
    """Return the model of ``examples``.

    Raises: ConfigError for too few examples, or when LightGBM is not installed.
    """
    if len(examples) < LEAST_EXAMPLES:
        raise ConfigError(f"{len(examples)} requests to train on; at least {LEAST_EXAMPLES} are needed")
    logs = np.log(examples.lengths)
    prompts, words, figures = examples.requests.prompt, None, None
    if settings.text and prompts is not None:
        words, figures = learn_words(prompts, logs, settings.seed)
    features = Features(tasks=task_quantiles(examples), words=words)
    raw = features.matrix(examples.requests, figures=figures)
    medians = tuple(float(np.median(known)) if (known := c[~np.isnan(c)]).size else 0.0 for c in raw.T)
    features = Features(medians, features.tasks, words)
    rows = np.where(np.isnan(raw), medians, raw)
    trees = []
    for level in settings.levels:
        trees.append(boost(rows, logs, level, settings).dump_model()["tree_info"])
        progress()
    by = shifts(rows, logs, settings, progress)
    return LengthModel(np.array(settings.levels), features, _forest(trees, by, rows.shape[1]))


def shifts(rows: FloatArray, target: FloatArray, settings: LengthTrainingSettings, progress: Progress) -> FloatArray:
    """Return by how much each quantile must be shifted to cover in cross-validation what it should, ``[levels]``.

    Args:
        rows: Features of the examples, ``[n, features]``.
        target: Logarithms of their lengths, ``[n]``.
        settings: Settings of the training.
        progress: Called each time that trees were learned.
    """
    fold = np.random.default_rng(settings.seed).permutation(target.size) % CALIBRATION_FOLDS
    found = np.empty(len(settings.levels))
    for place, level in enumerate(settings.levels):
        short = np.empty(target.size)
        for one in range(CALIBRATION_FOLDS):
            out = fold == one
            short[out] = target[out] - boost(rows[~out], target[~out], level, settings).predict(rows[out])
            progress()
        rank = min(math.ceil(level * (target.size + 1)), target.size)
        found[place] = np.sort(short)[rank - 1]
    return found


def task_quantiles(examples: Examples) -> dict[str, tuple[float, ...]]:
    """Return output tokens at TASK_LEVELS by task, a rare task's are drawn to the figures of all."""
    logs = np.log(examples.lengths)
    overall = np.quantile(logs, TASK_LEVELS)
    found = {}
    for place, label in enumerate(examples.tasks):
        own = logs[examples.requests.class_id == place]
        if own.size:
            share = own.size / (own.size + _TASK_PRIOR)
            found[label] = tuple(np.exp(overall + share * (np.quantile(own, TASK_LEVELS) - overall)).tolist())
    return found


def boost(rows: FloatArray, target: FloatArray, level: float, settings: LengthTrainingSettings) -> Any:
    """Return LightGBM's trees for one quantile."""
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
    return lightgbm.train(parameters, lightgbm.Dataset(rows, target), settings.trees)


def _forest(levels: list[list[dict[str, Any]]], shifts: FloatArray, num_features: int) -> Forest:
    """Return the trees of each level as arrays, with a tree of one leaf for each level's shift.

    A level with too few trees gets further trees with value 0.
    """
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

    roots = np.zeros((len(levels), max(map(len, levels)) + 1), np.int32)
    for level, trees in enumerate(levels):
        roots[level, : len(trees)] = [add(tree["tree_structure"]) for tree in trees]
        roots[level, -1] = add({"leaf_value": float(shifts[level])})
    whole = [np.array(column, np.int32) for column in (feature, left, right)]
    return Forest(whole[0], np.array(threshold), whole[1], whole[2], roots, num_features)
