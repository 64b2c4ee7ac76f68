"""The length of an output, predicted once at admission by what ``sloserve train-length`` learned.

The front end predicts, since it has the prompt and time to spare; the prediction travels to the engine as quantiles at
``LEVELS`` beside the request's SLO, and policies read them as columns of the request table.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from sloserve.core.arrays import FloatArray
from sloserve.estimator.length.learned_length import load_length_model
from sloserve.estimator.length.quantiles import quantile_lengths
from sloserve.estimator.length.remaining import KnownRequests, rest_of

LEVELS: Final[FloatArray] = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
"""Levels of the quantiles that travel from the front end to the scheduler."""


def expected_tokens(quantiles: Sequence[float], max_tokens: int) -> float:
    """Return the mean length, 1 to ``max_tokens``, of an output with these quantiles at LEVELS."""
    none = np.zeros(1, np.int64)
    asked = KnownRequests(class_id=none, output_tokens=none, max_tokens=np.array([max_tokens]))
    return float(rest_of(quantile_lengths(LEVELS, np.array([quantiles])), asked).mean()[0])


class LengthAtAdmission:
    """Predicts with the model in the file at ``path``; ``class_names`` are the labels of its tasks.

    Raises: ConfigError when the file holds no length model.
    """

    def __init__(self, path: Path, class_names: Sequence[str]) -> None:
        self._class_id = {name: i for i, name in enumerate(class_names)}
        self._class_names = tuple(class_names)
        self._model = load_length_model(path)

    def quantiles(
        self,
        class_name: str,
        *,
        arrival_s: float,
        prompt_tokens: int | None = None,
        max_tokens: int | None = None,
        prompt: str | None = None,
    ) -> list[float] | None:
        """Return output tokens at LEVELS, ascending; ``None`` for a class for which the model gained nothing.

        Of such a request policies know the distribution of its class, which learns on line.

        Args:
            class_name: Class of the request; a request of an unknown class is predicted without a class.
            arrival_s: Arrival in epoch seconds; the hour of the day is a feature.
            prompt_tokens: Length of the prompt in tokens; ``None`` if the prompt is not tokenized yet.
            max_tokens: The client's cap on output tokens; ``None`` for no cap.
            prompt: Text of the prompt, if the front end has it.
        """
        if class_name in self._model.without_gain:
            return None
        # Without a cap, take more than any output has, which the features treat as no cap.
        cap = 1 << 20 if max_tokens is None else max_tokens
        asked = KnownRequests(
            class_id=np.array([self._class_id.get(class_name, -1)]),
            output_tokens=np.zeros(1, np.int64),
            max_tokens=np.array([cap]),
            prompt_tokens=None if prompt_tokens is None else np.array([prompt_tokens]),
            arrival_s=np.array([arrival_s]),
            prompt=None if prompt is None else [prompt],
        )
        # One row for each level: a call for each level would take most of the time of a prediction.
        tokens = np.repeat(self._model.quantiles(asked, self._class_names), LEVELS.size, axis=0)
        whole = quantile_lengths(self._model.levels, tokens).quantile_after(np.zeros(LEVELS.size, np.int64), LEVELS)
        quantiles: list[float] = whole.tolist()
        return quantiles
