"""Factor by which requests of a model take longer than its profile says, learnt from ended requests.

The factor is the median of measured by predicted time, followed in small steps: one request moves it by 3 %, however
late it was, so that a few clients that read slowly do not bar a model to the others. It is forgotten within an hour: a
model that was too slow gets requests again, and shows whether it still is.
"""

import math
from dataclasses import dataclass
from typing import Final

MEMORY_S: Final = 1800.0
STEP: Final = 0.03
LEAST, MOST = 0.5, 8.0
"""Least and greatest value of the factor."""


@dataclass(slots=True)
class Calibration:
    """Ratio of measured to predicted times of one model. Times are seconds of one monotonic clock."""

    _log: float = 0.0
    _seen_s: float = float("-inf")

    def factor(self, now_s: float) -> float:
        """Return the factor by which predicted times are to be multiplied."""
        return math.exp(self._faded(now_s))

    def ended(self, ratio: float, now_s: float) -> None:
        """Record that a request took ``ratio`` times what was predicted without a factor.

        The ratio does not depend on the factor, so that requests on their way when it changes count as all others do.
        """
        known = self._faded(now_s)
        moved = known + math.copysign(STEP, ratio - math.exp(known))
        self._log, self._seen_s = min(max(moved, math.log(LEAST)), math.log(MOST)), now_s

    def _faded(self, now_s: float) -> float:
        return self._log * math.exp(min(self._seen_s - now_s, 0.0) / MEMORY_S)
