"""The constants of ``auto``, all but one of them ratios; docs/policies/auto.md explains each.

They are no options: an operator has nothing to gain by them. Benchmarks vary them by replacing :data:`CONSTANTS`, which
is read at each plan.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """experience: what the perfect experience of a reader counts, in good requests. stretch: what an immediate reply
    counts, in good requests. unhurried_s: the target by which the stretch of a request without targets is measured.

    wait_share: the mean delay of what is not served now, as a share of the cost of all that wait and have a chance.
    late_wait_share: the same in deep overload, where ``late_at`` of the requests with targets, or more, have no chance
    any more and step time is what is short; in between the share grows as a power of both.
    class_weight: of a class relative to the next more urgent one. price_power: a resource that is needed for the share
    x of the time for which the scarcest is has the price x to this power.
    """

    experience: float = 0.5
    stretch: float = 0.1
    unhurried_s: float = 600.0
    wait_share: float = 0.2
    late_wait_share: float = 5.0
    late_at: float = 0.2
    class_weight: float = 0.5
    price_power: float = 2.0


CONSTANTS = Constants()
