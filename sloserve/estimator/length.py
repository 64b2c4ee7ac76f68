"""How many tokens a request will still emit, judged from the requests of its class that have ended.

Pure and deterministic: a prediction follows from the lengths observed, in their order. Finished requests
over-represent short ones just after a start, since long ones are still running; the window forgets that once it has
turned over.
"""

from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class LengthPredictor(Protocol):
    """How many tokens are still to come?"""

    def observe(self, class_id: int, output_tokens: int) -> None:
        """A request of the class ended by itself after ``output_tokens``."""
        ...

    def remaining(self, class_id: IntArray, output_tokens: IntArray, max_tokens: IntArray) -> FloatArray:
        """Expected tokens still to come, ``[n]`` like its arguments, given the ``output_tokens`` so far.

        At least 1, and at most what ``max_tokens`` leaves, if that is 1 or more.
        """
        ...


class EmpiricalLength:
    """The mean of L - k over the class's last finished lengths L above k, the tokens so far; shrunk to a prior.

    The prior is ``prior_weight`` pseudo-requests of geometric length, of which ``prior_weight * (1 - 1/m) ** k``
    outlive k tokens and whose expected rest is m whatever k. m is the class's own mean, itself shrunk to
    ``prior_mean_tokens`` with the same weight: a new class predicts the prior, and a request longer than all that
    were seen predicts the class's mean.

    Args:
        window: finished requests remembered per class.
        prior_mean_tokens: mean length before any was seen; 256 lies between the means of Azure's conversations (201)
            and of Mooncake's (346).
        prior_weight: finished requests that the prior is worth.

    Raises: ValueError when an argument is out of range.
    """

    def __init__(self, window: int = 512, prior_mean_tokens: float = 256.0, prior_weight: float = 4.0) -> None:
        if window < 1 or not prior_mean_tokens >= 1.0 or not prior_weight > 0.0:
            raise ValueError(
                f"window {window}, prior_mean_tokens {prior_mean_tokens}, prior_weight {prior_weight}:"
                " window and mean must be at least 1, the weight above 0"
            )
        self._window = window
        self._prior_mean_tokens = prior_mean_tokens
        self._prior_weight = prior_weight
        self._lengths: dict[int, deque[int]] = {}
        self._sorted: dict[int, tuple[IntArray, IntArray]] = {}

    def observe(self, class_id: int, output_tokens: int) -> None:
        """A request of the class ended by itself after ``output_tokens``. Raises: ValueError when that is below 1."""
        if output_tokens < 1:
            raise ValueError(
                f"output_tokens: {output_tokens} is no length; a request that ended with no token tells none"
            )
        self._lengths.setdefault(class_id, deque(maxlen=self._window)).append(output_tokens)
        self._sorted.pop(class_id, None)

    def remaining(self, class_id: IntArray, output_tokens: IntArray, max_tokens: IntArray) -> FloatArray:
        """See :meth:`LengthPredictor.remaining`."""
        expected = np.empty(class_id.shape, np.float64)
        for one in np.unique(class_id):
            members = class_id == one
            expected[members] = self._expected(int(one), output_tokens[members])
        capped: FloatArray = np.maximum(np.minimum(expected, max_tokens - output_tokens), 1.0)
        return capped

    def _expected(self, class_id: int, so_far: IntArray) -> FloatArray:
        lengths, sums_from = self._sorted_window(class_id)
        weight = self._prior_weight
        mean = (sums_from[0] + weight * self._prior_mean_tokens) / (lengths.size + weight)
        index = np.searchsorted(lengths, so_far, side="right")
        longer = lengths.size - index
        rest = sums_from[index] - longer * so_far
        pseudo = weight * (1.0 - 1.0 / mean) ** so_far
        # A correction of the mean, so that it is the mean where nothing is longer and the prior's weight underflows.
        expected: FloatArray = mean + (rest - longer * mean) / np.where(longer > 0, longer + pseudo, 1.0)
        return expected

    def _sorted_window(self, class_id: int) -> tuple[IntArray, IntArray]:
        """The class's window ascending ``[n]``, and the sum from each place to its end ``[n + 1]``."""
        found = self._sorted.get(class_id)
        if found is None:
            lengths = np.sort(np.array(self._lengths.get(class_id, ()), dtype=np.int64))
            sums_from = np.zeros(lengths.size + 1, np.int64)
            sums_from[:-1] = np.cumsum(lengths[::-1])[::-1]
            found = self._sorted[class_id] = lengths, sums_from
        return found
