"""How a request ended, as one of a few values that can label a metric."""

from enum import StrEnum


class Outcome(StrEnum):
    """Exactly one of these ends every request; the error behind it, if any, carries the detail."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    """Refused before queueing (:class:`~sloserve.core.errors.Rejected`, :class:`~sloserve.core.errors.InvalidRequest`).
    """
    EVICTED = "evicted"
    """Given up after queueing (:class:`~sloserve.core.errors.Evicted`)."""
    ABORTED = "aborted"
    """The client went away."""
    FAILED = "failed"
    """The engine or this package failed."""
    LOST = "lost"
    """The request never ended: the simulator ran out of work that could be scheduled.

    This is always a bug; it is counted so that it shows.
    """
