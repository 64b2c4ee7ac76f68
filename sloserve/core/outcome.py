"""How a request ended, as one of a few values that can label a metric."""

from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    """The one outcome with which every request ends; the error behind it, if any, carries the detail."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    """The request was refused before queueing (:class:`~sloserve.core.errors.Rejected`)."""
    INVALID = "invalid"
    """The request cannot be served as its client wrote it (``InvalidRequest``, vLLM's errors for 400): no target of it
    counts, since no server could have met one.
    """
    EVICTED = "evicted"
    """The request was given up after queueing (:class:`~sloserve.core.errors.Evicted`)."""
    ABORTED = "aborted"
    """The client went away."""
    FAILED = "failed"
    """The engine or this package failed."""
    LOST = "lost"
    """The request never ended: the simulator ran out of work that could be scheduled.

    This is always a bug; it is counted so that it shows.
    """


REFUSED: Final = frozenset({Outcome.REJECTED, Outcome.INVALID})
"""Outcomes of requests that were refused, whether by the server's limits or for their client's mistake."""

NOT_SERVED: Final = frozenset({Outcome.REJECTED, Outcome.EVICTED, Outcome.FAILED, Outcome.LOST})
"""Outcomes of requests that were not served although their clients waited for them."""
