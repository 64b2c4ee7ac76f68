"""Regression trees as arrays, with which a learned length model computes.

A model file holds numbers only and is checked before use, so a file from anywhere can at worst predict badly: children
lie behind their parents, so every walk ends, and every index is in range. Predicting needs numpy alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sloserve.core.arrays import FloatArray

MAX_NODES = 200_000
"""Nodes of all trees together, which also bounds the longest walk; 480 trees of 7 leaves have 6,240."""

MAX_TREES = 20_000
MAX_DEPTH = 64
"""Longest walk from a root to a leaf: trees of 7 leaves have 6 at most."""
MAX_VALUE = 1e6
"""Greatest size of a leaf's value; a leaf is a difference of logarithms of lengths."""


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Nodes of all trees in a row, ``[nodes]``.

    Args:
        feature: Column to compare, -1 in a leaf.
        threshold: Greatest value with which to go left; in a leaf, its value.
        left: Left child of each node.
        right: Right child of each node.
        roots: First node of each tree, ``[levels, trees]``.

    Raises: ValueError if the nodes are not trees.
    """

    feature: NDArray[np.int32]
    threshold: FloatArray
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    roots: NDArray[np.int32]
    num_features: int

    def __post_init__(self) -> None:
        nodes = self.feature.size
        if not 0 < nodes <= MAX_NODES or any(a.shape != (nodes,) for a in (self.threshold, self.left, self.right)):
            raise ValueError(f"nodes: arrays of one length, 1 to {MAX_NODES}, are needed")
        if not np.isfinite(self.threshold).all():
            raise ValueError("threshold: every number must be finite")
        if self.feature.min() < -1 or self.feature.max() >= self.num_features:
            raise ValueError(f"feature: must be -1 to {self.num_features - 1}")
        inner, here = self.feature >= 0, np.arange(nodes)
        for name, child in (("left", self.left), ("right", self.right)):
            if ((child <= here) | (child >= nodes))[inner].any():
                raise ValueError(f"{name}: a child must lie behind its parent, below {nodes}")
        if self.roots.ndim != 2 or not self.roots.size or self.roots.min() < 0 or self.roots.max() >= nodes:
            raise ValueError(f"roots: one row of nodes below {nodes} for each level is needed")
        if (np.abs(self.threshold[~inner]) > MAX_VALUE).any():
            raise ValueError(f"threshold: a leaf's value is at most {MAX_VALUE:g}")
        if _depth(self.left, self.right, inner, self.roots) > MAX_DEPTH:
            raise ValueError(f"left, right: a walk has at most {MAX_DEPTH} nodes")
        if self.roots.size > MAX_TREES:
            raise ValueError(f"roots: {self.roots.size} trees; at most {MAX_TREES} are evaluated")

    def predict(self, rows: FloatArray) -> FloatArray:
        """Return the sum of each level's trees, ``[n, levels]``, for each row of ``rows``, ``[n, num_features]``."""
        out = np.empty((rows.shape[0], self.roots.shape[0]))
        for start in range(0, rows.shape[0], 256):  # bounds the memory of a large batch
            out[start : start + 256] = self._predict(rows[start : start + 256])
        return out

    def _predict(self, rows: FloatArray) -> FloatArray:
        n, levels = rows.shape[0], self.roots.shape[0]
        node = np.tile(self.roots.ravel(), n)
        values = np.ascontiguousarray(rows).ravel()
        offset = np.repeat(np.arange(n) * self.num_features, self.roots.size)
        walking = np.arange(node.size)
        while True:
            at = node[walking]
            feature = self.feature[at]
            inner = feature >= 0
            if not inner.all():
                walking, at, feature = walking[inner], at[inner], feature[inner]
            if not walking.size:
                break
            goes_left = values[offset[walking] + feature] <= self.threshold[at]
            node[walking] = np.where(goes_left, self.left[at], self.right[at])
        total: FloatArray = self.threshold[node].reshape(n, levels, -1).sum(axis=2)
        return total

    def as_json(self) -> dict[str, Any]:
        """Return lists of numbers; :func:`forest_from_json` reads them back exactly."""
        names = ("feature", "threshold", "left", "right", "roots")
        return {name: getattr(self, name).tolist() for name in names}


def _depth(
    left: NDArray[np.int32], right: NDArray[np.int32], inner: NDArray[np.bool_], roots: NDArray[np.int32]
) -> int:
    """Return the nodes of the longest walk from a root, or ``MAX_DEPTH + 1`` where it is longer."""
    level = np.unique(roots)
    for depth in range(1, MAX_DEPTH + 1):
        level = level[inner[level]]
        if not level.size:
            return depth
        level = np.unique(np.concatenate((left[level], right[level])))
    return MAX_DEPTH + 1


def forest_from_json(fields: dict[str, Any], num_features: int) -> Forest:
    """Return the forest of :meth:`Forest.as_json`.

    Raises: ValueError or KeyError for anything else.
    """
    whole = {name: _whole(name, fields[name]) for name in ("feature", "left", "right", "roots")}
    threshold = np.asarray(fields["threshold"])
    if threshold.dtype.kind not in "fi":
        raise ValueError("threshold: a list of numbers is needed")
    return Forest(threshold=threshold.astype(np.float64), num_features=num_features, **whole)


def _whole(name: str, value: Any) -> NDArray[np.int32]:
    array = np.asarray(value)
    if array.dtype.kind != "i" or array.size and not -(2**31) <= array.min() <= array.max() < 2**31:
        raise ValueError(f"{name}: a list of whole numbers is needed")
    return array.astype(np.int32)
