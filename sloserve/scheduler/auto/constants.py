"""The constants of ``auto``, all but one of them ratios; docs/policies/auto.md explains each.

They are no options: an operator has nothing to gain by them. Benchmarks vary them by replacing :data:`CONSTANTS`, which
is read at each plan.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of the worth of requests.

    Args:
        experience: Worth of the perfect experience of a reader, in good requests.
        stretch: Worth of an immediate response, in good requests.
        unhurried_s: Target in seconds by which the stretch of a request without targets is measured; among waiting
            requests without targets it changes no order.
        wait_share: Mean delay of a request that is not served now, as a share of the cost of all waiting requests that
            have a chance.
        late_wait_share: ``wait_share`` in deep overload, where ``late_at`` of the requests with targets, or more, have
            no chance any more and step time is short; in between the share grows as a power of both.
        late_at: Share of the requests with targets that have no chance any more, from which on overload is deep.
        class_weight: Weight of a class relative to the next more urgent one.
        price_power: Power that turns the time for which a resource is needed, as a share of the time for which the
            scarcest is needed, into its price.
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
