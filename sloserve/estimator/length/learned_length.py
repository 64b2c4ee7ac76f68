"""Output lengths predicted from a request's features by a model that ``sloserve train-length`` made.

The model is a file of numbers (``forest``, ``prompt_words``), read without running anything from it. It predicts
several quantiles of the length's logarithm once per request, at admission; what remains after k tokens follows from
them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.core.errors import ConfigError
from sloserve.core.files.kinds import reading
from sloserve.estimator.length.forest import Forest, forest_from_json
from sloserve.estimator.length.prompt_words import words_from_json
from sloserve.estimator.length.quantiles import QuantileLengths, quantile_lengths
from sloserve.estimator.length.remaining import Estimator, KnownRequests
from sloserve.estimator.length.request_features import TASK_LEVELS, Features

FORMAT = "sloserve-length-2"
MAX_FILE_BYTES = 64 * 1024 * 1024
_MAX_LOG_TOKENS = 20.0
_REMEMBERED = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class LengthModel:
    """A learned model of lengths.

    Args:
        levels: Levels of the quantiles, ascending within (0, 1), ``[levels]``; each has one row of ``forest.roots``.
        without_gain: Tasks for which the model predicts no better than the distribution of the task.
    """

    levels: FloatArray
    features: Features
    forest: Forest
    without_gain: frozenset[str] = frozenset()

    def quantiles(self, requests: KnownRequests, class_names: Sequence[str] = ()) -> FloatArray:
        """Return output tokens at each level, ``[n, levels]``; quantiles may cross."""
        log_tokens = self.forest.predict(self.features.matrix(requests, class_names))
        quantiles: FloatArray = np.exp(np.clip(log_tokens, 0.0, _MAX_LOG_TOKENS))
        return quantiles

    def save(self, path: Path) -> None:
        """Write the model to ``path``, replacing what is there."""
        fields = {
            "format": FORMAT,
            "levels": self.levels.tolist(),
            "medians": list(self.features.medians),
            "tasks": self.features.tasks,
            "words": None if self.features.words is None else self.features.words.as_json(),
            "without_gain": sorted(self.without_gain),
            "forest": self.forest.as_json(),
        }
        path.write_text(json.dumps(fields, separators=(",", ":")) + "\n", encoding="utf-8")


def load_length_model(path: Path) -> LengthModel:
    """Return the model in the file at ``path``.

    Raises: ConfigError if there is no such file or it is malformed.
    """
    with reading("length_model", path):
        return _loaded(path)


def _loaded(path: Path) -> LengthModel:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: {size} bytes; a length model has at most {MAX_FILE_BYTES}")
        return _from_json(json.loads(path.read_bytes()))
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the length model: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path}: is not a length model: {error}; make one with `sloserve train-length`") from None


def _from_json(fields: dict[str, Any]) -> LengthModel:
    if fields.get("format") != FORMAT:
        raise ValueError(f"format: {fields.get('format')!r} is not {FORMAT!r}, the format of this version")
    levels = np.asarray(fields["levels"], np.float64)
    if (
        levels.ndim != 1
        or levels.size < 2
        or not (0.0 < levels[0] and levels[-1] < 1.0 and (np.diff(levels) > 0).all())
    ):
        raise ValueError("levels: two or more ascending numbers within 0..1 are needed")
    words = None if fields["words"] is None else words_from_json(fields["words"])
    without_gain = fields["without_gain"]
    if not isinstance(without_gain, list) or not all(isinstance(label, str) for label in without_gain):
        raise ValueError("without_gain: a list of tasks is needed")
    medians = tuple(float(value) for value in fields["medians"])
    tasks = {str(label): tuple(float(value) for value in tokens) for label, tokens in fields["tasks"].items()}
    if any(len(tokens) != len(TASK_LEVELS) or not np.isfinite(tokens).all() for tokens in tasks.values()):
        raise ValueError(f"tasks: {len(TASK_LEVELS)} finite numbers are needed for each")
    features = Features(medians, tasks, words)
    if len(medians) != len(features.names) or not np.isfinite(medians).all():
        raise ValueError(f"medians: {len(features.names)} finite numbers are needed")
    forest = forest_from_json(fields["forest"], len(features.names))
    if forest.roots.shape[0] != levels.size:
        raise ValueError(f"roots: {levels.size} rows are needed, one for each level")
    return LengthModel(levels, features, forest, frozenset(without_gain))


class LearnedLength(Estimator):
    """Predicts with a :class:`LengthModel`; does not learn from requests that end.

    Args:
        class_names: Label of each ``class_id`` as in training, for requests without a task.
    """

    def __init__(self, model: LengthModel, class_names: Sequence[str] = ()) -> None:
        self._model = model
        self._class_names = tuple(class_names)
        self._known: dict[int, FloatArray] = {}  # seq -> quantiles; the oldest go first

    def observe(self, class_id: int, output_tokens: int, *, cut: bool = False) -> bool:
        """Return ``False``: the model is fixed. Train it again when the workload changes."""
        return False

    def form(self, requests: KnownRequests) -> QuantileLengths:
        """See :meth:`sloserve.estimator.length.remaining.LengthEstimator.form`.

        With ``seq`` each request's features are looked at once, when it is first asked about.
        """
        model = self._model
        if requests.seq is None:
            return quantile_lengths(model.levels, model.quantiles(requests, self._class_names))
        seqs = requests.seq.tolist()
        new = [place for place, seq in enumerate(seqs) if seq not in self._known]
        if new:
            found = model.quantiles(requests.take(new), self._class_names)
            self._known.update(zip((seqs[place] for place in new), found, strict=True))
        tokens = np.array([self._known[seq] for seq in seqs]).reshape(-1, model.levels.size)
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        return quantile_lengths(model.levels, tokens)
