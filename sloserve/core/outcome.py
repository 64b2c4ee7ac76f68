"""How a request ended, as one of a few values that can label a metric."""

from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    """The one outcome with which every request ends; the error behind it, if any, carries the detail."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    """The request was refused before queueing (:class:`~sloserve.core.errors.Rejected`, ``InvalidRequest``)."""
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


NOT_SERVED: Final = frozenset({Outcome.REJECTED, Outcome.EVICTED, Outcome.FAILED, Outcome.LOST})
"""Outcomes of requests that were not served although their clients waited for them."""
