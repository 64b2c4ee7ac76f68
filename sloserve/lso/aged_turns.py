"""Bounded overtaking: one admission in each ``period`` goes to the oldest aged request, whatever the policy prefers.

A request is aged once it has waited for its class's ``aged_after_s``. The engine port counts admissions, and each
snapshot says which requests have the next turns. Policies weave these turns into their order of admission before they
forecast, limit or choose victims for it, so that their plan fits the requests that are really admitted.
"""

from dataclasses import dataclass, field

import numpy as np

from sloserve.core.arrays import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class AgedTurns:
    """The turns of aged requests.

    Args:
        aged: Slots of the aged requests, oldest first.
        period: Number of admissions of which one is a turn of an aged request.
        before_next: Admissions of other requests that may come before the next turn.
    """

    aged: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    period: int = 1
    before_next: int = 0

    def weave(self, order: IntArray) -> IntArray:
        """Return ``order`` with aged requests moved forward to their turns, and aged requests that it lacks at its end.

        Each slot occurs once. No aged request has more of the other requests before it than in ``order``. Weaving the
        result again does not change it.
        """
        if not self.aged.size:
            return order
        oldest_first = self.aged.tolist()
        woven: dict[int, None] = {}
        gap, at = self.before_next, 0
        for slot in order.tolist():
            while gap <= 0 and at < len(oldest_first):
                if oldest_first[at] not in woven:
                    woven[oldest_first[at]] = None
                    gap = self.period - 1
                at += 1
            if slot not in woven:
                woven[slot] = None
                gap -= 1
        woven.update(dict.fromkeys(oldest_first))
        return np.array(list(woven), np.int64)


NO_TURNS = AgedTurns()
