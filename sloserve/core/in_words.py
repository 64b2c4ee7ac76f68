"""Figures and durations as people read them, on a terminal and in the sentences of the live feed."""

import math


def figure(value: float | None) -> str:
    """Return ``value`` with at most one decimal, or ``some`` if it is not known."""
    if value is None or not math.isfinite(value):
        return "some"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """Return a duration in the unit that suits it, empty for none. A negative one, which clocks that differ make, is 0.

    ``duration`` and ``due`` of clients/page/src/dom.ts say the same; a test compares them.
    """
    if seconds is None or not math.isfinite(seconds):
        return ""
    size = max(seconds, 0.0)
    if size < 10:
        return f"{size:.1f} s"
    if size < 120:
        return f"{size:.0f} s"
    return f"{size / 60:.0f} min" if size < 7200 else f"{size / 3600:.1f} h"


def due(left_s: float | None) -> str:
    """Return how long it is until a deadline, or how late it is if the deadline has passed; empty for none."""
    if left_s is None or left_s >= 0.0:
        return duration(left_s)
    return f"{duration(-left_s)} late"
