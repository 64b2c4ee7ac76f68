"""How long replies are expected to be: as those of the model that have ended, or, for a ceiling, as they will be."""

import math
from collections.abc import Mapping

from sloserve.core.request import WorkloadRequest
from sloserve.estimator.length.remaining import PRIOR_WEIGHT
from sloserve.fleet.simulated.dispatcher import WaitingRequest
from sloserve.fleet.sizes import USUAL_OUTPUT_TOKENS


class ReplyLengths:
    """oracle: the true lengths by request, as no gateway knows them; ``None``: learnt from what has ended."""

    def __init__(self, oracle: Mapping[str, WorkloadRequest] | None = None) -> None:
        self._oracle = oracle
        self._sums: dict[str, tuple[float, float, float]] = {}

    def ended(self, model: str, tokens: int) -> None:
        """A reply of the model was ``tokens`` long."""
        n, total, squares = self._of(model)
        self._sums[model] = n + 1.0, total + tokens, squares + float(tokens) ** 2

    def expected(self, request: WaitingRequest, generated: int) -> tuple[float, float]:
        """Mean and standard deviation of what is still to come, after ``generated`` tokens in all."""
        if self._oracle is not None:
            return max(float(self._oracle[request.request_id].output_tokens - generated), 1.0), 0.0
        n, total, squares = self._of(request.model)
        mean = total / n
        deviation = math.sqrt(max(squares / n - mean**2, 0.0))
        # Replies are skewed: one that has outlived the mean goes on for about as long as they vary.
        return (max(mean - generated, 0.5 * deviation, 1.0) if generated else max(mean, 1.0)), deviation

    def _of(self, model: str) -> tuple[float, float, float]:
        usual, n = float(USUAL_OUTPUT_TOKENS), PRIOR_WEIGHT
        prior = n, n * usual, 2.0 * n * usual**2  # with as large a standard deviation
        return self._sums.get(model, prior)
