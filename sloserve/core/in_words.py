"""Figures and durations as people read them, on a terminal and in the sentences of the live feed."""

import math


def figure(value: float | None) -> str:
    """With at most one decimal; ``some`` for what is not known."""
    if value is None or not math.isfinite(value):
        return "some"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def duration(seconds: float | None) -> str:
    """In the unit that suits it, empty for none."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    sign, size = ("-" if seconds < 0 else ""), abs(seconds)
    if size < 10:
        return f"{sign}{size:.1f} s"
    if size < 120:
        return f"{sign}{size:.0f} s"
    return f"{sign}{size / 60:.0f} min" if size < 7200 else f"{sign}{size / 3600:.1f} h"
