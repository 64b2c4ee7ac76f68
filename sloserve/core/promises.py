"""Promises to requests: what a client asks for, and what it was given at its admission."""

from dataclasses import dataclass
from typing import Final

LEAST_LEVEL, MOST_LEVEL = 0.5, 0.99
"""Least and most probability that can be promised: more than 0.99 takes too many requests to learn."""
PROMISES_KEPT: Final = ("kept", "broken", "withdrawn")
"""Outcomes of a promise that was given; it is withdrawn if the client leaves before a target is missed."""
WHY_REFUSED: Final = ("late", "others", "unknown", "policy", "off")
"""Why a promise is refused: the targets cannot be kept, or only at the expense of earlier promises; too little is known
of the class; the policy serves no request first; promises of this request are turned off."""


@dataclass(frozen=True, slots=True)
class PromiseWish:
    """What a request asks for: that all its targets are kept with this probability.

    Args:
        level: Probability, from ``LEAST_LEVEL`` to ``MOST_LEVEL``; 0 for no promise, where the class has one.
        falls_back: Whether the request is served without a promise where none can be given; else it is refused.
        given_after_s: Seconds from its arrival after which the request comes first, if a gateway has promised it its
            targets already; ``None`` if none has.
    """

    level: float
    falls_back: bool = False
    given_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Promised:
    """A promise that was given: all targets of the request will be kept with this probability.

    Args:
        level: Probability, 0..1.
        delayed_s: Price of the promise when it was given: seconds by which the request delays the requests that waited
            without a promise, summed over these requests.
        first_after_s: Seconds from the arrival after which the request comes first; until then it is served in the
            policy's order.
    """

    level: float
    delayed_s: float = 0.0
    first_after_s: float = 0.0
