"""Bounded overtaking: every so-manieth admission is the turn of the oldest aged request, whatever a policy ranks first.

A request is aged once it has waited for its class's ``aged_after_s``. The adapter counts admissions and says in each
snapshot whose turn comes when; policies weave those turns into their order of admission before they forecast, limit or
choose victims for it, so that what they plan fits who is really admitted.
"""

from dataclasses import dataclass, field

import numpy as np

from sloserve.core.arrays import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """aged: waiting requests whose turn comes, oldest first. period: each so-manieth admission is theirs.

    before_next: admissions that may come before the next of theirs.
    """

    aged: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    period: int = 1
    before_next: int = 0

    def weave(self, order: IntArray) -> IntArray:
        """``order`` with the oldest of the aged drawn forward to the places that are theirs, each slot once; aged ones
        that it does not name follow at its end.

        No aged request gets more of the others before it than ``order`` puts there. What is woven stays so if woven
        again.
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


NOBODYS_TURN = Turns()
