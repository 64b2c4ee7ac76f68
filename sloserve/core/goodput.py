"""How many requests were good: attainment and goodput.

A request is good when it was completed and met every target it has. Requests without targets are left out of
numerator and denominator; they have nothing to attain. One that was rejected, aborted, evicted or lost met none of
its targets. One that its client wrote wrongly is left out. Attainment is reported twice: over all requests that have
targets, so that refusing work does not improve it, and over the admitted ones, which says what a client may expect once
it is in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from sloserve.core.finished import FinishedRequest
from sloserve.core.outcome import Outcome

Finished = TypeVar("Finished", bound=FinishedRequest)


@dataclass(frozen=True, slots=True)
class Attainment:
    """Counts of requests that have targets.

    Args:
        good: Requests that met all of their targets.
        total: All requests, whatever their outcome.
        rejected: Requests of ``total`` that were refused before queueing.
    """

    good: int = 0
    total: int = 0
    rejected: int = 0

    @property
    def ratio(self) -> float | None:
        """Share of good requests among all, 0..1; ``None`` if there are no requests."""
        return self.good / self.total if self.total else None

    @property
    def ratio_admitted(self) -> float | None:
        """Share of good requests among the ones not rejected, 0..1; ``None`` if there are none."""
        admitted = self.total - self.rejected
        return self.good / admitted if admitted else None

    def goodput_per_s(self, duration_s: float) -> float | None:
        """Return good requests per second over ``duration_s`` > 0; ``None`` if no request has a target."""
        return self.good / duration_s if self.total else None


def attainment(ended: Iterable[FinishedRequest]) -> Attainment:
    """Return the attainment over ``ended``; requests without targets are left out."""
    good = total = rejected = 0
    for one in ended:
        if one.good is None:
            continue
        total += 1
        good += one.good
        rejected += one.outcome is Outcome.REJECTED
    return Attainment(good, total, rejected)


def by_class(ended: Iterable[Finished]) -> dict[str, list[Finished]]:
    """Return the requests of each service class, classes in order of rank and then name."""
    found: dict[str, list[Finished]] = {}
    ranks: dict[str, int] = {}
    for one in ended:
        slo_class = one.asked.slo_class
        found.setdefault(slo_class.name, []).append(one)
        ranks[slo_class.name] = slo_class.rank
    return {name: found[name] for name in sorted(found, key=lambda name: (ranks[name], name))}


def attainment_by_class(ended: Iterable[FinishedRequest]) -> dict[str, Attainment]:
    """Return the attainment of each service class in which at least one request has a target, in order of rank."""
    counted = {name: attainment(of_class) for name, of_class in by_class(ended).items()}
    return {name: counts for name, counts in counted.items() if counts.total}
