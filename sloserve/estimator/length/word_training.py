"""Training of :class:`~.prompt_words.PromptWords`: ridge regression on the words of the prompts.

The figures of a training prompt must come from a regression that has not seen it: otherwise the trees that use them
would trust them more than they deserve. So the examples are split into folds, and each fold is predicted from the
others. These predictions also choose the strength of the ridge.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.estimator.length.prompt_words import COLUMNS, PromptWords, both_ends, word_columns, words_of

FOLDS: Final = 5
_LEAST_PROMPTS: Final = 2
"""Prompts that a column must occur in: what occurs once may be chance."""
_RIDGES: Final = (0.3, 1.0, 3.0, 10.0)
_STEPS: Final = 60
"""Most steps of the solver, which also bounds the training."""


def learn_words(prompts: Sequence[str], log_lengths: FloatArray, seed: int) -> tuple[PromptWords, FloatArray]:
    """Return what the words say of the lengths, and the figures of each prompt by the other folds, ``[n, 2]``."""
    from scipy import sparse  # LightGBM, which training needs, brings it

    found = [word_columns(words_of(both_ends(prompt))) for prompt in prompts]
    counts = np.bincount(np.concatenate(found), minlength=COLUMNS) if found else np.zeros(COLUMNS, np.int64)
    columns = np.flatnonzero(counts >= _LEAST_PROMPTS)
    rarity: FloatArray = np.round(np.log((len(prompts) + 1.0) / (counts[columns] + 1.0)) + 1.0, 4)
    rows = []
    for asked in found:
        place = np.searchsorted(columns, asked[np.isin(asked, columns, assume_unique=True)])
        rows.append((place, rarity[place] / max(float(np.sqrt(rarity[place] @ rarity[place])), 1e-12)))
    ends = np.cumsum([0, *(place.size for place, _ in rows)])
    flat = [np.concatenate([row[i] for row in rows]) for i in (0, 1)]
    matrix = sparse.csr_matrix((flat[1], flat[0], ends), shape=(len(prompts), columns.size))
    fold = np.random.default_rng(seed).permutation(len(prompts)) % FOLDS
    length, length_weights, length_bias = ridge(matrix, log_lengths, fold)
    spread, spread_weights, spread_bias = ridge(matrix, np.abs(log_lengths - length), fold)
    weights: FloatArray = np.stack((length_weights, spread_weights), axis=1).round(5)
    bias: FloatArray = np.array([length_bias, spread_bias]).round(5)
    return PromptWords(columns, rarity, weights, bias), np.stack((length, spread), axis=1)


def ridge(matrix: Any, target: FloatArray, fold: IntArray) -> tuple[FloatArray, FloatArray, float]:
    """Return the predictions of each fold from the others, and weights and bias by all examples.

    Args:
        matrix: Sparse matrix, one row for each example.
        target: What to predict, ``[n]``.
        fold: Fold of each example, 0 to FOLDS - 1, ``[n]``.
    """
    best: tuple[float, float, FloatArray] | None = None
    for strength in _RIDGES:
        predicted = np.empty(target.size)
        for one in range(FOLDS):
            weights, bias = _solved(matrix, target, fold != one, strength)
            predicted[fold == one] = matrix[fold == one] @ weights + bias
        error = float(((predicted - target) ** 2).mean())
        if best is None or error < best[0]:
            best = error, strength, predicted
    assert best is not None
    return best[2], *_solved(matrix, target, np.ones(target.size, bool), best[1])


def _solved(matrix: Any, target: FloatArray, use: np.ndarray, strength: float) -> tuple[FloatArray, float]:
    from scipy.sparse.linalg import lsqr

    bias = float(target[use].mean())
    weights: FloatArray = lsqr(matrix[use], target[use] - bias, damp=np.sqrt(strength), iter_lim=_STEPS)[0]
    return weights, bias
