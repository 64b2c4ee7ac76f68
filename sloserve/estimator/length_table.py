"""Expected tokens still to come, looked up: for policies that ask for all requests in every plan.

A predictor that follows each ended request is asked anew only now and then, for every 32nd length of a class; between,
an answer is a lookup. Plans change little for it, and cost microseconds.
"""

from typing import Final

import numpy as np

from sloserve.estimator.length import LengthPredictor
from sloserve.estimator.length_rest import FloatArray, IntArray

STRIDE_TOKENS: Final = 32
MOST_TOKENS: Final = 8192
"""Requests beyond are taken to have as much left as one of this length."""
_LENGTHS: Final[IntArray] = np.arange(0, MOST_TOKENS + 1, STRIDE_TOKENS)
_RENEW: Final = 32


class LengthTable:
    """``predictor``'s answers on a grid, renewed after 1, 2, 4, ... and then every 32 ended requests of a class."""

    def __init__(self, predictor: LengthPredictor) -> None:
        self._predictor = predictor
        self._ended: dict[int, int] = {}
        self._table: FloatArray = np.empty((0, _LENGTHS.size))

    def observe(self, class_id: int, output_tokens: int) -> None:
        """See :meth:`sloserve.estimator.length.LengthPredictor.observe`."""
        self._predictor.observe(class_id, output_tokens)
        ended = self._ended[class_id] = self._ended.get(class_id, 0) + 1
        if class_id < len(self._table) and (ended % _RENEW == 0 or (ended < _RENEW and ended & (ended - 1) == 0)):
            self._table[class_id] = self._row(class_id)

    def remaining(self, class_id: IntArray, output_tokens: IntArray, max_tokens: IntArray) -> FloatArray:
        """See :meth:`sloserve.estimator.length.LengthPredictor.remaining`."""
        highest = int(class_id.max(initial=-1))
        if highest >= len(self._table):
            new = [self._row(one) for one in range(len(self._table), highest + 1)]
            self._table = np.concatenate((self._table, np.array(new)))
        place = np.minimum(output_tokens // STRIDE_TOKENS, _LENGTHS.size - 1)
        expected: FloatArray = np.maximum(np.minimum(self._table[class_id, place], max_tokens - output_tokens), 1.0)
        return expected

    def _row(self, class_id: int) -> FloatArray:
        no_cap = np.full(_LENGTHS.size, np.iinfo(np.int64).max)
        return self._predictor.remaining(np.full(_LENGTHS.size, class_id), _LENGTHS, no_cap)
