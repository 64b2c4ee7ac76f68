"""Expected output lengths: as in the model's ended requests, or, for a ceiling, as they will be."""

import math
from collections.abc import Mapping

from sloserve.core.request import WorkloadRequest
from sloserve.estimator.length.remaining import PRIOR_WEIGHT
from sloserve.fleet.simulated.dispatcher import WaitingRequest
from sloserve.fleet.sizes import USUAL_OUTPUT_TOKENS


class OutputLengths:
    """Output lengths of a fleet's models.

    Args:
        oracle: The true lengths by request, which no gateway knows; ``None`` to learn from ended requests.
    """

    def __init__(self, oracle: Mapping[str, WorkloadRequest] | None = None) -> None:
        self._oracle = oracle
        self._sums: dict[str, tuple[float, float, float]] = {}

    def ended(self, model: str, tokens: int) -> None:
        """Record that an output of the model had ``tokens`` tokens."""
        n, total, squares = self._of(model)
        self._sums[model] = n + 1.0, total + tokens, squares + float(tokens) ** 2

    def expected(self, request: WaitingRequest, generated: int) -> tuple[float, float]:
        """Return mean and standard deviation of the tokens still to come, after ``generated`` tokens in all."""
        if self._oracle is not None:
            return max(float(self._oracle[request.request_id].output_tokens - generated), 1.0), 0.0
        n, total, squares = self._of(request.model)
        mean = total / n
        deviation = math.sqrt(max(squares / n - mean**2, 0.0))
        # Lengths are skewed: an output that has outlived the mean continues for about as long as lengths vary.
        return (max(mean - generated, 0.5 * deviation, 1.0) if generated else max(mean, 1.0)), deviation

    def _of(self, model: str) -> tuple[float, float, float]:
        usual, n = float(USUAL_OUTPUT_TOKENS), PRIOR_WEIGHT
        prior = n, n * usual, 2.0 * n * usual**2  # with an equal standard deviation
        return self._sums.get(model, prior)
