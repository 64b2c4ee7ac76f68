"""Figures and durations as people read them, on a terminal and in the sentences of the live feed."""

import math
from collections.abc import Sequence


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


def in_one_unit(seconds: Sequence[float | None]) -> tuple[str, list[str]]:
    """Return the durations of one column in the unit and with the decimals that suit the longest; empty for none.

    Seconds go up to 1,000, and keep a decimal as minutes do: a column often has seconds beside a tail of minutes.
    ``inOneUnit`` of clients/page/src/dom.ts says the same; a test compares them.

    Returns: the unit, and a text for each duration; a negative one keeps its sign.
    """
    known = [abs(one) for one in seconds if one is not None]
    longest_s = max(known, default=0.0)
    if 0.0 < longest_s < 1.0:
        unit, factor = "ms", 1e3
    elif longest_s < 1000.0:
        unit, factor = "s", 1.0
    else:
        unit, factor = ("min", 1.0 / 60.0) if longest_s < 7200.0 else ("h", 1.0 / 3600.0)
    shown = longest_s * factor
    decimals = 2 if shown < 9.995 else 1 if shown < 99.95 or unit in ("s", "min") else 0
    return unit, ["" if one is None else f"{one * factor:.{decimals}f}" for one in seconds]
