"""The quality table: the quality of each model at each task, and the task of a request.

A request's task is the one in its header, else the one of its class, else unknown; the quality for an unknown task is
the mean over tasks.

Source: Quality-of-Service Aware LLM Serving, Table 1, where qualities are parts of the largest model's accuracy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sloserve.core.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class QualityTable:
    """The quality of models at tasks.

    Args:
        quality: Quality by task, then by model, from 0 to 1.
        task_by_class: Task of requests without a task in their header, by class.
    """

    quality: Mapping[str, Mapping[str, float]]
    task_by_class: Mapping[str, str]

    def task(self, stated: str | None, slo_class: str | None) -> str | None:
        """Return the request's task: the ``stated`` one if the table has it, else its class's, or ``None``."""
        if stated is not None and stated in self.quality:
            return stated
        return None if slo_class is None else self.task_by_class.get(slo_class)

    def of(self, task: str | None, models: Sequence[str]) -> FloatArray:
        """Return the quality of ``models`` for ``task``, ``[models]``; 0 for a model that the table does not have."""
        if task is None:
            rows = [[row.get(model, 0.0) for model in models] for row in self.quality.values()]
            return np.asarray(np.mean(rows, axis=0), np.float64)
        return np.array([self.quality[task].get(model, 0.0) for model in models], np.float64)
